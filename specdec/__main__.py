"""`python -m specdec` is the `specdec` command."""

from specdec.cli import main

if __name__ == "__main__":
    main()
