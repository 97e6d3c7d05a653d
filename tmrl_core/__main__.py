"""`python -m tmrl_core`."""

import sys

from tmrl_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
