"""`python -m benchmarks.published` runs the papers' tables and shows them next to ours."""

import sys

from commonweal.base.errors import CommonwealError

from .command import app

if __name__ == "__main__":
    try:
        app()
    except CommonwealError as error:
        sys.exit(str(error))
