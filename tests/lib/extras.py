"""The libraries that only Gardener's controller and the commands for a whole cluster need. hack/setup
keeps them apart, so that what nodes run is tried, and measured, without them.
"""

import sys
from pathlib import Path

EXTENSION = Path(sys.prefix, "extension")


def use_extension() -> None:
    """Lets this process import them, behind all that it has already."""
    sys.path.append(str(EXTENSION))
