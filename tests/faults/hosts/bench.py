"""Where faults are tried on a real node: what was tried, what did not hold, and a new node after that."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from installer.model.names import Mode
from tests.host.mortal import converge, temporary_directory
from tests.host.node import Node
from tests.host.product import put_right
from tests.lib.throwaway.host import HostError, ThrowawayHost


@dataclass(slots=True)
class Tried:
    """How many instants there were, and of each that did not hold a line; what was skipped, and why."""

    count: int = 0
    bad: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class Bench:
    """A node to be tried on; a new one when something has gone wrong with it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._stack = contextlib.ExitStack()
        self._count = 0
        self.node = self._boot()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _boot(self) -> Node:
        self._count += 1
        scratch = self._scratch / f"node-{self._count}"
        scratch.mkdir()
        temporary_directory(scratch).mkdir()
        with contextlib.ExitStack() as stack:
            node = Node(stack.enter_context(ThrowawayHost()), scratch)
            self._stack = stack.pop_all()
        return node

    def attempt(self, what: str, trial: Callable[[Node], str], tried: Tried) -> str:
        """Makes a trial, and a line of what has not held in it. Returns what the trial did, `` if nothing."""
        tried.count += 1
        try:
            return trial(self.node)
        except (AssertionError, HostError, OSError, subprocess.SubprocessError) as error:
            tried.bad.append(f"{what}: {type(error).__name__}: {error}")
            self._stack.close()
            self.node = self._boot()
            return ""

    def finish(self, tried: Tried) -> None:
        """Nothing is left of all that, and systemd agrees."""

        def leave(node: Node) -> str:
            put_right(node)
            assert converge(node, Mode.REMOVE) in ("changed", "nothing")
            node.expect_untraced()
            return "left"

        self.attempt("at the end", leave, tried)
        tried.count -= 1
