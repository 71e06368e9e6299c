"""The name by which Python knows what is installed: `installer` belongs to another project on PyPI.

In a wheel the package `installer` lies in this one, where only our own process looks for it, so both
projects can live in one environment. In a checkout it is the one that this lies in.
"""

import os
import sys


def main() -> int:
    """Run the command line; return the exit code."""
    sys.path.insert(0, os.path.dirname(__file__))
    from installer.cli import main as run

    return run()
