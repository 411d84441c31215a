from tasks.squad.program import main

main()
