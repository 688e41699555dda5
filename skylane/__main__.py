"""`python -m skylane`."""

from skylane.cli import main

if __name__ == "__main__":
    main()
