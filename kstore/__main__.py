"""`python -m kstore` is the command line."""

import sys

from kstore.cli import main

if __name__ == "__main__":
    sys.exit(main())
