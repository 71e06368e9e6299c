"""Random lives of nodes that another installer has been at: takeovers that fail, are killed or lose power,
and removals in the middle of one.

After each step kubelet is healthy; each life ends with a removal that leaves neither installer. One that went
wrong can be lived again, from its seed:

    .venv/bin/python -m tests.faults.hosts.takeovers SEED
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from installer.model.names import Mode
from tests.faults import Report
from tests.faults.hosts.abreast import Share, try_abreast
from tests.faults.hosts.bench import Tried
from tests.faults.hosts.lifemodel import BROKEN, tell
from tests.host.mortal import Instant, run_apart
from tests.host.product import OF_A_START
from tests.host.taken import REPAIRED, Taken
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import running_endpoint, wait_healthy
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import Entry, difference, files

SECONDS = 60.0  # until kubelet is healthy: one on a relay that boots with it is tried again after 10 s
MOST_EFFECTS = 90
STATE = "/var/lib/cri-resmgr-installer"
_RUNS = (STATE, *OF_A_START, "/run/cri-resmgr-installer", "/run/cri-resmgr-installer.lock")


def untimed(found: Mapping[str, Entry]) -> dict[str, Entry]:
    """A file that was written and came back is as it was, but not as old."""
    return {path: replace(entry, modified=0) for path, entry in found.items()}


class Life:
    """One node, from the other installer to neither."""

    def __init__(self, scratch: Path, number: int) -> None:
        self.chance = random.Random(number)
        self.scratch = scratch
        self.kind = self.chance.choice(sorted(REPAIRED))
        self.story = [f"a node of the kind {self.kind}"]

    def live(self) -> None:
        """Raises AssertionError or HostError where something does not hold."""
        with ThrowawayHost() as host:
            self.node = Taken(host, self.scratch, self.kind)
            self.node.command.set(take_over=True)
            self.good = self.node.command.payload
            self.touched = False
            for _ in range(self.chance.randint(0, 3)):
                self.chance.choice((self.fails, self.is_killed, self.is_killed))()
                if self.chance.random() < 0.3:
                    self.boots()
            if self.chance.random() < 0.7:
                self.is_taken_over()
            else:
                self.touched = self._run(Mode.INSTALL, Instant(self.chance.randint(1, MOST_EFFECTS))) != ""
            self.goes()

    def fails(self) -> None:
        """A broken payload: the earlier installation is at work again."""
        fault = self.chance.choice(sorted(BROKEN))
        self.story.append(f"a payload that {fault}")
        before = files(self.node.host)
        self.node.command.payload = build_payload(
            self.scratch / f"broken-{len(self.story)}", version=f"v0.9.{len(self.story)}", fault=BROKEN[fault]
        )
        how = self._run(Mode.INSTALL)
        assert how in ("RolledBackError", "InvalidInputError"), how
        self.node.command.payload = self.good
        if not self.touched:
            assert "cri-resmgr.sock" in running_endpoint(self.node.host), "kubelet was taken from the relay"
            left = difference(untimed(before), untimed(files(self.node.host)))
            left = [line for line in left if not line.split()[1].startswith(_RUNS)]
            assert not left, "after a takeover that failed:\n" + "\n".join(left)

    def is_killed(self) -> None:
        instant = Instant(self.chance.randint(1, MOST_EFFECTS), after=self.chance.random() < 0.5)
        self.story.append(f"killed {instant}")
        self._run(Mode.INSTALL, instant)
        self.touched = True

    def boots(self) -> None:
        self.story.append("power cut, boot")
        self.node.host.kill()
        self.node.host.boot()
        wait_healthy(self.node.host, SECONDS)

    def is_taken_over(self) -> None:
        self.story.append("taken over")
        how = self._run(Mode.INSTALL)
        assert how in ("changed", "nothing"), how
        self.node.expect_good()
        assert self._run(Mode.INSTALL) == "nothing"

    def goes(self) -> None:
        """We go, maybe killed once, and nothing is left. What we had not begun to take over is still
        the other installer's: then we do so first."""
        self.story.append("removed")
        begun = self._owns_anything()
        if self.chance.random() < 0.3:
            self._run(Mode.REMOVE, Instant(self.chance.randint(1, 40)))
        how = self._run(Mode.REMOVE)
        assert how in ("changed", "nothing"), how
        if not begun:
            assert not self.node.path(STATE).exists()
            self.is_taken_over()
            assert self._run(Mode.REMOVE) == "changed"
        self.node.expect_neither()

    def _owns_anything(self) -> bool:
        """Whether a run has recorded what is ours, which comes before its first change."""
        record = self.node.path(f"{STATE}/record.json")
        return record.exists() and bool(json.loads(record.read_text())["owned"])

    def _run(self, mode: Mode, instant: Instant | None = None) -> str:
        ended = run_apart(self.node, mode, instant or Instant(0))
        self.story.append(f"{mode.value}: {ended}")
        wait_healthy(self.node.host, SECONDS)
        return ended.how


def live_share(scratch: Path, number: int) -> Tried:
    """One life; tells of what went wrong in it."""
    tried = Tried(1)
    life = Life(scratch, number)
    try:
        life.live()
    except Exception as error:
        again = f".venv/bin/python -m tests.faults.hosts.takeovers {number}"
        tried.bad.append(f"{type(error).__name__}: {error}\n{tell(life.story)}\nlived again by: {again}")
    return tried


def run(report: Report, amount: int) -> None:
    """Lives `amount` random lives."""
    number = random.SystemRandom().randrange(1 << 32)
    lives = [
        Share("lives after other installers", partial(live_share, number=number + n)) for n in range(amount)
    ]
    try_abreast(report, lives)


def main(number: str) -> None:
    """Lives one life again."""
    with tempfile.TemporaryDirectory(prefix="takeover-") as scratch:
        tried = live_share(Path(scratch), int(number))
    sys.stdout.write("\n".join(tried.bad) or "held\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
