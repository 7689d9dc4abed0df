"""`python -m commonweal` is the command `commonweal`."""

import sys


def main() -> None:
    """Import the command and run it. Ctrl-C while it is imported ends it without a traceback."""
    try:
        from commonweal.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
