"""What a stand-in should do wrong, and how fast: read at each start.

Baked into its file when that was built, overridden by a file on the host, so a
test can switch a fault on without touching what the installer manages.
"""

import json
import sys
from typing import Any

#: The name of the baked faults in a stand-in's archive.
MEMBER = "faults.json"


def baked() -> dict[str, Any]:
    """The faults that this archive was built with; none when not run from one."""
    loader = getattr(sys.modules["__main__"], "__loader__", None)
    archive = getattr(loader, "archive", None)
    if archive is None or loader is None:
        return {}
    found: dict[str, Any] = json.loads(loader.get_data(f"{archive}/{MEMBER}"))
    return found


def load(path: str) -> dict[str, Any]:
    """The faults in force now. A missing file is none; a broken one ends us loudly."""
    faults = baked()
    try:
        with open(path, encoding="utf-8") as file:
            faults.update(json.load(file))
    except FileNotFoundError:
        pass
    return faults
