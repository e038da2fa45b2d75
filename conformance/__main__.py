"""Make ``python -m conformance`` the command."""

import sys

from conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
