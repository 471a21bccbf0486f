from percentmatch.cli import main

main()
