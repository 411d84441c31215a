from tasks.export.program import main

main()
