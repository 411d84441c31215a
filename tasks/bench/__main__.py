from tasks.bench.program import main

main()
