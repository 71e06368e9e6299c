"""`python -m installer.cli`, as `run` starts its child runs."""

import sys

from installer.cli import main

if __name__ == "__main__":
    sys.exit(main())
