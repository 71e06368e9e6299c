"""Seeded defects: a certificate has to find each of them. A small wrong change in a copy of the program."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Defect:
    """In `module`, `new` stands in the place of `old`, and `options` of `hack/certify` find it."""

    what: str
    module: str
    old: str
    new: str
    options: str


def why_lost(defect: Defect) -> str:
    """Why it cannot be tried any more, because the program has changed; empty if it can be."""
    count = (_HERE / defect.module).read_text().count(defect.old)
    return "" if count == 1 else f"{defect.what}: {defect.module} has it {count} times"


def seek(defect: Defect, where: Path, seconds: float = 300.0) -> str:
    """Return what the certificate says of the program with the defect; empty if it has not found it."""
    assert not why_lost(defect)
    shutil.copytree(_HERE / "installer", where / "installer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "units", "templates"):
        (where / name).symlink_to(_HERE / name)
    path = where / defect.module
    path.write_text(path.read_text().replace(defect.old, defect.new))
    command = (sys.executable, "-m", "tests.certify", *defect.options.split())
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=seconds, check=False)
    return done.stdout if done.returncode == 1 and "wrong: " in done.stdout else ""
