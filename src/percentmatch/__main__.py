from percentmatch.cli.main import main

main()
