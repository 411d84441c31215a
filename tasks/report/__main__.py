"""python -m tasks.report."""

from tasks.report.page import main

if __name__ == "__main__":
    main()
