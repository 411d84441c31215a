from tasks.classifier.program import main

main()
