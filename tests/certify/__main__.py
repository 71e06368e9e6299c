"""`hack/certify NAME`: starts the certificate of that name. Each has `main`, which returns the exit code."""

from __future__ import annotations

import importlib
import sys

#: Its module, and what it is about.
CERTIFICATES = {
    "fleet": ("tests.certify.fleet.certify", "every state of a small fleet, and its way out"),
    "node": ("tests.certify.node.certify", "every start of a node, every target, and every cut of the way"),
}


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 if all has held."""
    name = arguments[0] if arguments else ""
    if name not in CERTIFICATES:
        for known, (_, about) in CERTIFICATES.items():
            sys.stdout.write(f"hack/certify {known:<8} {about}\n")
        return 0 if name in ("-h", "--help") else 2
    return int(importlib.import_module(CERTIFICATES[name][0]).main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
