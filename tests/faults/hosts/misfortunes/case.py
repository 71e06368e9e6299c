"""One case of a system that misbehaves: what happens, when, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from tests.host.node import Node
from tests.lib.throwaway.kubelet import wait_healthy

Act = Callable[[Node], object]
_versions = count(1)


class Before(StrEnum):
    """What the run finds."""

    BARE = "nothing of ours"
    UPGRADE = "installed, and another version to install"
    CONFIG = "installed, and another configuration"
    SAME = "installed, and nothing to change"


class Kubelet(StrEnum):
    """How kubelet is when the run has ended."""

    STAYED = "healthy, and never restarted"
    RELAY = "healthy on the relay"
    OWN = "healthy on its base endpoint"
    SICK = "not healthy"


class Reboot(StrEnum):
    """Whether the host reboots before it is over, which ends what does not outlive a boot."""

    NEVER = "without a reboot"
    MEANWHILE = "the power is cut while the run is at work"
    AFTERWARDS = "rebooted in order when the run has ended"


@dataclass(frozen=True, slots=True)
class Case:
    """`happens` at the beginning, or when the run has said `when`, before it goes on; `over` ends it, also if
    a boot has ended it already. The run exits with `code`, `says` all of these words, leaves kubelet as
    `kubelet`, and, if it was refused or undone, every file but what is below `theirs`, in `seconds`.
    With `boots_sick`, kubelet may be sick after a boot. With `clock`, the run's own clock can be set.
    With `crashes`, what a cut leaves is a proxy that dies soon after each start. `rare`: left out where time
    is scarce."""

    name: str
    happens: Act
    over: Act
    code: int
    says: tuple[str, ...] = ()
    kubelet: Kubelet = Kubelet.STAYED
    before: Before = Before.UPGRADE
    verb: str = "install"
    when: str = ""
    theirs: tuple[str, ...] = ()
    seconds: float = 30.0
    boots_sick: bool = False
    crashes: bool = False
    clock: bool = False
    rare: bool = False

    @property
    def may_boot_sick(self) -> bool:
        return self.boots_sick or self.kubelet is Kubelet.SICK


def nothing(_node: Node) -> None:
    """It is over by itself."""


def wait_until_healthy(node: Node) -> None:
    """Kubelet comes up again."""
    wait_healthy(node.host)


def shell(script: str) -> Act:
    """Somebody types this on the node."""
    return lambda node: node.host.run("sh", "-c", script)


def soon(command: str, seconds: float = 0.5) -> Act:
    """This is done on the node some time later, whoever is alive then."""
    timer = f"--on-active={seconds} --timer-property=AccuracySec=10ms"
    return shell(f"systemd-run --quiet {timer} {command}")


def once_started(unit: str, state: str, command: str) -> Act:
    """This is done on the node once the run has started the unit and it has come to that state."""

    def act(node: Node) -> None:
        before = node.host.show(unit, "InvocationID")
        show = f"systemctl show -p ActiveState -p InvocationID {unit}"
        come = f"! {show} | grep -q ={before} && {show} | grep -q ={state}$"
        script = f"until {come}; do sleep 0.05; done; sleep 0.3; {command}"
        node.host.run("systemd-run", "--quiet", "sh", "-c", script.replace("$", "$$"))

    return act


def fault(unit: str, text: str) -> Act:
    """From its next start on the stand-in for `unit` does this; nothing wrong, if empty."""
    return lambda node: node.fault(unit, text)


def both(*acts: Act) -> Act:
    """One after the other."""

    def act(node: Node) -> None:
        for one in acts:
            one(node)

    return act


def version(fault: str | dict[str, object]) -> Act:
    """A version is there to install that nobody has tried yet, and that does this when it starts."""
    return lambda node: node.upgrade(fault, version=f"v0.10.{next(_versions)}")


#: Nothing is wrong with this one.
good_version = version("")


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
