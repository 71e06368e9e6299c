"""`hack/certify node`: from every start to every target, cut at every effect."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import installer.node
from tests.certify.branches import Branches, Ways
from tests.certify.node.engine import Found, certify
from tests.certify.node.holds import RESCUES, rescue
from tests.certify.node.starts import (
    FACTORS,
    RARE_WAYS,
    TAKEOVERS,
    Ground,
    Start,
    all_starts,
    describe,
    repairs,
)
from tests.certify.node.targets import INSTALL, REMOVAL, TARGETS, Target
from tests.certify.node.troubles import TROUBLED, troubled
from tests.certify.node.unreached import reached_of_listed, unlisted
from tests.certify.node.walks import Walk, all_walks, walk

NODE = Path(str(installer.node.__file__)).parent
_SHOWN = 4  # defects of each way
_OF_REPAIRS = {1: 5, 2: 1, 3: 1}
_OF_RARE = {1: 11, 2: 1, 3: 1}
_OF_TROUBLE = {1: 97, 2: 7, 3: 1}
_WALKS = {1: 30, 2: 300, 3: 3000}


class Job(NamedTuple):
    """One start and one target, of which only each so many cuts are tried; or a walk, or a rescue."""

    start: Start
    target: Target
    walk: Walk = ()
    every: int = 1
    rescues: bool = False  # instead of the target, kubelet is held
    troubles: bool = False  # instead of the cuts, something goes wrong

    def __str__(self) -> str:
        if self.walk:
            return f"walk: {', '.join(target.name for target in self.walk)}"
        name = f"{describe(self.start)} -> {'rescue' if self.rescues else self.target.name}"
        return f"{name}, in trouble" if self.troubles else name


class Asked(NamedTuple):
    """`every`: only each so many cuts."""

    job: Job
    every: int = 1


def all_jobs(bound: int) -> list[Job]:
    ways = [Job(start, target) for start in all_starts(bound) for target in TARGETS]
    ways += [
        Job(start, target, every=_OF_REPAIRS[bound]) for start in repairs() for target in (INSTALL, REMOVAL)
    ]
    ways += [
        Job(start, target, every=1 if start in TAKEOVERS and target.takes_over else _OF_RARE[bound])
        for start, targets in RARE_WAYS.items()
        for target in targets
    ]
    ways += [Job(start, INSTALL, rescues=True) for start in RESCUES]
    ways += [Job(*way, every=_OF_TROUBLE[bound], troubles=True) for way in TROUBLED]
    return [*ways, *(Job((), each[-1], each) for each in all_walks(_WALKS[bound]))]


def memory() -> str | None:
    """A directory that is no disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def carry_out(job: Job, ground: Ground, every: int = 1) -> Found:
    """All of one job."""
    if job.walk:
        return walk(ground, job.walk)
    if job.rescues:
        return rescue(ground, job.start)
    # An earlier installation whose proxy is broken leads no boot to a kubelet that works, whatever we do. And
    # after a boot, kubelet has to be restarted, which is what a run may have to ask for.
    target = job.target
    if job.troubles:
        return troubled(ground, job.start, target, every * job.every)
    broken = {("former", "earlier"), ("nature", "broken")} <= {*job.start}
    # And the disk of a power loss knows no rename to another directory, where a record goes that is none.
    unknown = broken or ("record", "a directory") in job.start
    power = not (unknown or target.asks or not target.restarts_left)
    return certify(ground, job.start, target, every=every * job.every, power=power)


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 if all has held."""
    parser = argparse.ArgumentParser(prog="hack/certify node", description=__doc__)
    about = (
        "how many factors of a start are tried in all combinations of their values: 1 (default, minutes), "
    )
    parser.add_argument(
        "--bound", type=int, default=1, choices=(1, 2, 3), help=f"{about}2 (an hour), 3 (a day)"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth cut of a run")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only ways whose description has that text"
    )
    parser.add_argument("--first", action="store_true", help="end with the first defect")
    parser.add_argument(
        "--coverage", action="store_true", help="say which branches of installer/node were not reached"
    )
    given = parser.parse_args(arguments)
    if given.every < 1:
        parser.error(f"--every {given.every}: give 1 or more")
    jobs = [job for job in all_jobs(given.bound) if given.only in str(job)]
    if not jobs:
        parser.error(f"no way has {given.only!r} in its description")
    began, total, branches = time.monotonic(), Found(), Branches(modules() if given.coverage else ())
    for number, (found, ways) in enumerate(all_of(jobs, given.every, covers=given.coverage), 1):
        total.add(found)
        branches.add(ways)
        for fault in found.faults[:_SHOWN]:
            sys.stdout.write(f"{fault}\n")
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{number} of {len(jobs)} ways, {total.states} states ")
        if total.faults and given.first:
            break
    if given.coverage:
        missed = list(branches.missed())
        sys.stdout.writelines(f"not reached: {each}\n" for each in missed)
        sys.stdout.write("what `unreached.py` lacks, and what it has though it was reached:\n")
        sys.stdout.writelines(f"+       {each!r},\n" for each in unlisted(missed))
        sys.stdout.writelines(f"-       {each!r},\n" for each in reached_of_listed(missed))
        reached, every = branches.figures()
        sys.stdout.write(f"reached: {reached} of {every} branches of installer/node\n")
    _write_figure(jobs, given.bound, total, time.monotonic() - began)
    return 1 if total.faults else 0


def modules() -> list[ModuleType]:
    """What is under certificate."""
    names = sorted(path.stem for path in NODE.glob("*.py") if path.stem != "__init__")
    return [importlib.import_module(f"{installer.node.__name__}.{name}") for name in names]


def _write_figure(jobs: Sequence[Job], bound: int, total: Found, seconds: float) -> None:
    starts, walks = {job.start for job in jobs if not job.walk}, sum(bool(job.walk) for job in jobs)
    values = sum(map(len, FACTORS.values()))
    ends = ", ".join(f"{count} {word}" for word, count in sorted(total.ends.items()))
    sys.stdout.write(
        f"{len(starts)} starts ({len(FACTORS)} factors with {values} values, all combinations of {bound}) to "
        f"{len(TARGETS)} targets, and {walks} walks; ends of what was not cut: {ends}; "
        f"{total.twice} of the others took one more run\n"
        f"node: {total.states} states, depth {total.depth}, {seconds:.0f} s, "
        f"{len(total.faults)} defects found\n"
    )
    sys.stdout.flush()


def all_of(jobs: Sequence[Job], every: int, *, covers: bool) -> Iterator[tuple[Found, Ways]]:
    """In a process for each core. `covers`: with the branches that were reached."""
    asked = [Asked(job, every) for job in jobs]
    with (
        tempfile.TemporaryDirectory(prefix="certify-", dir=memory()) as directory,
        multiprocessing.Pool(os.cpu_count(), _begin, (directory, covers)) as pool,
    ):
        yield from pool.imap_unordered(_one, asked)


_grounds: list[Ground] = []
_reached: list[Branches] = []


def _begin(directory: str, covers: bool) -> None:
    own = Path(directory, str(os.getpid()))
    own.mkdir()
    _grounds.append(Ground(own))
    _reached.append(Branches(modules() if covers else ()))


def _one(asked: Asked) -> tuple[Found, Ways]:
    with _reached[0] as reached:
        try:
            found = carry_out(asked.job, _grounds[0], asked.every)
        except Exception as error:  # whatever it is, it is what we look for
            found = Found(faults=[f"{asked.job}: {type(error).__name__}: {error}"])
    return found, reached.ways()
