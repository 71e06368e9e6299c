"""Runs the command line: `python -m installer.cli` in a checkout, or by the path of this file, as `run`
starts its child runs, wherever the package lies."""

import os
import sys

if not __package__:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from installer.cli import main

if __name__ == "__main__":
    sys.exit(main())
