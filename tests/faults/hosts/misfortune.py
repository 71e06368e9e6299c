"""One case of a system that misbehaves: what happens, when, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tests.host.node import Node
from tests.throwaway.kubelet import wait_healthy

Act = Callable[[Node], object]


class Before(StrEnum):
    """What the run finds."""

    BARE = "nothing of ours"
    UPGRADE = "installed, and another version to install"
    CONFIG = "installed, and another configuration"
    BAD = "installed, and a version that does not work"
    SAME = "installed, and nothing to change"


class Kubelet(StrEnum):
    """How kubelet is when the run has ended."""

    STAYED = "healthy, and never restarted"
    RELAY = "healthy on the relay"
    OWN = "healthy on its own endpoint"
    SICK = "not healthy"


@dataclass(frozen=True, slots=True)
class Case:
    """`happens` at the beginning, or as soon as the run says `when`; `over` ends it. The run exits with
    `code`, `says` all of these words, leaves kubelet as `kubelet`, and, if `as_before`, every file but what
    is below `theirs`, in `seconds`. With `reboot` the host boots anew before it is over.
    `rare`: left out where time is scarce."""

    name: str
    happens: Act
    over: Act
    code: int
    says: tuple[str, ...] = ()
    kubelet: Kubelet = Kubelet.STAYED
    before: Before = Before.UPGRADE
    verb: str = "install"
    when: str = ""
    as_before: bool = True
    theirs: tuple[str, ...] = ()
    seconds: float = 30.0
    reboot: bool = False
    rare: bool = False


def nothing(_node: Node) -> None:
    """It is over by itself."""


def wait_until_healthy(node: Node) -> None:
    """Kubelet comes up again."""
    wait_healthy(node.host)


def shell(script: str) -> Act:
    """Somebody types this on the node."""
    return lambda node: node.host.run("sh", "-c", script)


def fault(unit: str, text: str) -> Act:
    """From its next start on the stand-in for `unit` does this; nothing wrong, if empty."""
    return lambda node: node.fault(unit, text)


def both(*acts: Act) -> Act:
    """One after the other."""

    def act(node: Node) -> None:
        for one in acts:
            one(node)

    return act


def good_version(node: Node) -> None:
    """A version that works is there to install."""
    node.upgrade(version="v0.9.99")


def written(path: str, text: str) -> Act:
    """Somebody puts a file there, and systemd reads it."""

    def act(node: Node) -> None:
        place = node.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        node.host.systemctl("daemon-reload")

    return act


def unlinked(*paths: str) -> Act:
    """The files go, directories that are empty then, too, and systemd reads that."""

    def act(node: Node) -> None:
        for path in paths:
            node.path(path).unlink(missing_ok=True)
            parent = node.path(path).parent
            if not any(parent.iterdir()):
                parent.rmdir()
        node.host.systemctl("daemon-reload")

    return act
