"""`python -m peewit_command`: the command, as it is installed."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
