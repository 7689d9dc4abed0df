"""`python -m commonweal` is the command `commonweal`."""

from commonweal.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
