"""`python -m peewit.cli`: the same as the command."""

import sys

from .program import main

if __name__ == "__main__":
    sys.exit(main())
