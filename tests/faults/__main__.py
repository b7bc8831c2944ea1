"""`python -m faults` is the long form."""

import sys

from faults.long_form import main

if __name__ == "__main__":
    sys.exit(main())
