"""The command line as `python -m dibs`, for environments without the `dibs` script on the path."""

import sys

from dibs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
