"""`python -m ncollapse` is `ncollapse`."""

import sys

from ncollapse.cli import main

if __name__ == "__main__":
    sys.exit(main())
