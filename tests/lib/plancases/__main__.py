"""`python -m tests.lib.plancases [NAME...]` writes the plan into `expected` of those cases, or of all.

Not a test: tests write nothing here. Read the difference then (`git diff`), for the code may be wrong.
"""

import sys
import tempfile
from pathlib import Path

from tests.lib.plancases.case import CASES, as_yaml, describe, read_case
from tests.lib.plancases.state import make_node

for path in sorted(CASES.glob("*.yaml")):
    if len(sys.argv) > 1 and path.stem not in sys.argv[1:]:
        continue
    case = read_case(path)
    if "wrong" in case.data:
        continue  # what it expects was written by hand
    with tempfile.TemporaryDirectory() as scratch:
        got = as_yaml(describe(make_node(case, Path(scratch)).look()))
    if case.text + got != path.read_text():
        path.write_text(case.text + got)
        sys.stdout.write(f"{path}\n")
