from tasks.doctor.program import main

main()
