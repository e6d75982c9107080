"""`python -m holdfast` is the console script."""

from holdfast.cli.main import main

if __name__ == "__main__":
    main()
