from tasks.pretraining.program import main

main()
