"""`python -m flash41`: the program `flash41`, for environments whose scripts are not on the path."""

from flash41.cli.main import main

if __name__ == "__main__":
    main()
