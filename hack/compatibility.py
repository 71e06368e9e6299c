"""Tries the checks of the matrix on each system that this machine has, and writes what was seen: hack/matrix.

The checks are the tests with the marker `matrix`; how they ended is read from pytest's own report. What was
seen is kept in docs/compatibility.yaml, also by others and elsewhere; docs/compatibility.md is made of it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from tests.lib.bootstrap import RELEASE, apt_sources
from tests.lib.throwaway import real
from tests.lib.throwaway.host import missing_needs
from tests.lib.tree import tree
from tests.machine.parts import missing_parts

DATA = Path("docs/compatibility.yaml")
PAGE = Path("docs/compatibility.md")
COMMAND, MARKER = "hack/matrix", "matrix"
STAND_IN = "stand-in"
UNTRIED, YES, NO = "not tried", "yes", "no"
PACKAGES = ("systemd", "containerd", "runc", "python3")

CHECKS = {
    "own Python": "the program runs on the Python and the PyGObject of the node's distribution",
    "install": "a bare node is installed, and kubelet is healthy on the relay",
    "no-op": "a second installation changes and restarts nothing",
    "upgrade": "a new version is installed without a restart of kubelet",
    "bad upgrade": "a version that does not start is rolled back to the last good one",
    "policy switch": "containers keep their weight through policies, and get their CPUs back",
    "kill": "the program or the node is killed at some instant, and the next run finishes the work",
    "boot with a dead proxy": "kubelet starts in time, without the proxy",
    "frozen proxy": "a proxy that stops answering is restarted",
    "remove": "kubelet is on its base endpoint, and nothing of the installer is left",
    "exactness": "every file, owner, mode and time is as it was before",
    "words": "`status` and `history` report what is true",
}

HEAD = f"""\
# Compatibility

Written by `{COMMAND}`: the same checks on throwaway hosts of each release and, with cgroup v2, an emulated
machine ([testing.md](testing.md#other-releases)). A stand-in plays kubelet or cri-resmgr where no real one
was named. A number is that of a note below.

"""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one check has shown on one system. `by` is who tried it, if not the command."""

    result: str
    date: str
    why: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """What was tried together; `versions` are those of the distribution's packages."""

    distribution: str
    cgroup: str
    kubelet: str
    cri_resmgr: str
    versions: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, Cell] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.distribution, self.cgroup, self.cri_resmgr, self.kubelet)


def load(text: str) -> list[System]:
    """What was seen so far. Raises ValueError for a check that there is not."""
    systems = []
    for item in yaml.safe_load(text) or []:
        cells = {check: Cell(**cell) for check, cell in item.pop("cells").items()}
        if unknown := sorted({*cells} - {*CHECKS}):
            raise ValueError(f"{DATA}: there is no check {', '.join(unknown)}")
        systems.append(System(**item, cells=cells))
    return systems


def dump(systems: Iterable[System]) -> str:
    items: list[dict[str, Any]] = [asdict(system) for system in systems]
    for item in items:
        cells = ((check, item["cells"].get(check, {})) for check in CHECKS)
        item["cells"] = {check: {k: v for k, v in cell.items() if v} for check, cell in cells if cell}
    head = f"# What {COMMAND} has seen, and what others have (`by`). It writes {PAGE.name} from this.\n"
    return head + yaml.safe_dump(items, sort_keys=False, width=110, allow_unicode=True)


def merged(systems: Iterable[System], seen: System) -> list[System]:
    """With what was just seen in the place of what was seen of this system before. A check that could not be
    tried now does not undo one that others have tried."""
    known = {system.key: system for system in systems}
    old = known.get(seen.key, seen).cells
    untried = {check for check in old if check not in seen.cells or seen.cells[check].result == UNTRIED}
    kept = {check: cell for check, cell in old.items() if check in untried and cell.by}
    known[seen.key] = replace(seen, cells={**seen.cells, **kept})
    return [known[key] for key in sorted(known)]


def cells_of(report: str, date: str) -> dict[str, Cell]:
    """The checks of a junit report. One failure is a no; where no test has passed, nothing was tried."""
    cells = dict[str, Cell]()
    badness = (UNTRIED, YES, NO).index
    for case in ElementTree.fromstring(report).iter("testcase"):
        bad = next((end for kind in ("failure", "error") for end in case.iter(kind)), None)
        end = bad if bad is not None else next(case.iter("skipped"), None)
        why = "" if end is None else (end.get("message") or "").split("\n")[0]
        result = YES if end is None else UNTRIED if bad is None else NO
        cell = Cell(result, date, why if bad is None else f"{case.get('name')}: {why}")
        for check in (each.get("value", "") for each in case.iter("property") if each.get("name") == MARKER):
            if check not in cells or badness(result) > badness(cells[check].result):
                cells[check] = cell
    return cells


def render(systems: Iterable[System]) -> str:
    """The page."""
    named = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", systems, strict=False))
    rows = [["", "distribution", "cgroup", *PACKAGES, "kubelet", "cri-resmgr", "tried"]]
    for letter, one in named.items():
        versions = (one.versions.get(name, "") for name in PACKAGES)
        tried = max(cell.date for cell in one.cells.values())
        rows.append([letter, one.distribution, one.cgroup, *versions, one.kubelet, one.cri_resmgr, tried])
    checks, notes = [["check", "held on", "failed on"]], list[str]()
    for check, what in CHECKS.items():
        found: dict[str, list[str]] = {YES: [], NO: []}
        for letter, one in named.items():
            if cell := one.cells.get(check):
                word = _word(letter, check, cell, notes)
                found.setdefault(cell.result, []).append(word)
        checks.append([f"{check}: {what}", ", ".join(found[YES]), ", ".join(found[NO])])
    return HEAD + "\n".join([*_table(rows), "", *_table(checks), "", *notes]) + "\n"


def _word(letter: str, check: str, cell: Cell, notes: list[str]) -> str:
    """The system, with the number of a note where there is more to be said."""
    if not (cell.why or cell.by):
        return letter
    by = f" ({cell.by}, {cell.date})" if cell.by else ""
    notes.append(
        f"{len(notes) + 1}. {letter}, {check}: {cell.result}{by}{': ' if cell.why else ''}{cell.why}"
    )
    return f"{letter} ({len(notes)})"


def _table(rows: list[list[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(word.replace('|', '/') for word in row)} |"
        if number == 0:
            yield f"|{'---|' * len(row)}"


# -- trying -----------------------------------------------------------------------


def system_of(release: str, level: str, given: argparse.Namespace) -> System:
    """What is tried at a level, by the packages of its tree."""
    os.environ[RELEASE] = release
    tree.cache_clear()
    root = tree()
    told = dict(line.partition("=")[::2] for line in (root / "etc/os-release").read_text().splitlines())
    number = told.get("VERSION_ID", "").strip('"')
    query = ("dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=${Version}")
    versions = {}
    for package in PACKAGES:
        found = subprocess.run([*query, package], check=True, capture_output=True, text=True).stdout
        versions[package] = re.sub(r"^\d+:|[^\d.].*$", "", found).rstrip(".")
    unified = level == "machine" or Path("/sys/fs/cgroup/cgroup.controllers").exists()
    programs = (_version(given.real_kubelet, ""), _version(given.real_cri_resmgr, given.cri_resmgr_version))
    return System(
        f"{told['ID'].capitalize()} {number or release}", "v2" if unified else "v1", *programs, versions
    )


def _version(program: Path | None, told: str) -> str:
    """What a real program says of its version, if it is not told."""
    if program is None:
        return STAND_IN
    said = subprocess.run([program, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", said)
    return told or (found[1] if found else "real, of an unknown version")


def tried(release: str, level: str, given: argparse.Namespace) -> System:
    """One system with all its cells. Raises SystemExit where no check has run."""
    system, cells = system_of(release, level, given), dict[str, Cell]()
    print(f"{COMMAND}: {level}, {', '.join(system.key)}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        words = ["-q", "-m", MARKER, f"tests/{level}", f"--release={release}", f"--junitxml={report}"]
        words += ("-n", "2", "--dist", "loadfile", "--tb=short") if level == "host" else ()
        for name in real.FOR_STAND_INS:
            if path := getattr(given, f"real_{name.replace('-', '_')}"):
                words += (f"--real-{name}", str(path))
        subprocess.run([sys.executable, "-m", "pytest", *words], check=False)
        if report.exists():
            cells = cells_of(report.read_text(), f"{datetime.now(UTC):%Y-%m-%d}")
    if not cells:
        raise SystemExit(f"{COMMAND}: no check has run; pytest's own words are above")
    return replace(system, cells=cells)


def main() -> None:
    here = apt_sources()[0]
    parser = argparse.ArgumentParser(prog=COMMAND, description="tries each check on each system")
    for option, what in (("--hosts", "throwaway hosts"), ("--machines", "emulated machines")):
        parser.add_argument(option, nargs="*", default=[here], metavar="RELEASE", help=f"{what} ({here})")
    parser.add_argument("--cri-resmgr-version", default="", help="where the real program does not say it")
    real.add_options(parser.add_argument, real.FOR_STAND_INS)
    given = parser.parse_args()
    levels = {"host": (given.hosts, missing_needs()), "machine": (given.machines, missing_parts())}
    for level, (releases, missing) in levels.items():
        if releases and missing:
            print(f"{COMMAND}: no {level} here: {', '.join(missing)}")
            continue
        for release in releases:
            seen = tried(release, level, given)
            DATA.write_text(dump(merged(load(DATA.read_text()), seen)))
    PAGE.write_text(render(load(DATA.read_text())))


if __name__ == "__main__":
    main()
