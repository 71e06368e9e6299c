"""What the tests of faults do with a node: lend it, offer it another payload, put it right again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.host.daemon import SOON, within
from tests.host.node import STATE, Node
from tests.lib.throwaway.snapshot import Entry, difference, files

LOCKED = 75  # another run holds the host's lock

#: Other after each start, by nature.
OF_A_START = (
    "/run/cri-resmgr.pid",
    "/run/cri-resmgr-installer/proxy-start",
    "/run/cri-resmgr-installer/relay-start",
    "/var/lib/cri-resmgr",
)


@contextmanager
def lent(node: Node) -> Iterator[Node]:
    """A node without anything of ours, the good payload and no fault; afterwards it has to be so again, and
    systemd has disliked nothing of ours."""
    yield node
    put_right(node)
    within(SOON, lambda: _is_removed(node))
    node.expect_untraced()
    assert not node.complaints()


def _is_removed(node: Node) -> bool:
    """Not while a pass goes on that a daemon has left behind, which was killed: it ends by itself."""
    ended = node.command("remove")
    assert ended.code in (0, LOCKED), ended.said
    return ended.code == 0


def offer_broken(node: Node, fault: str | dict[str, object]) -> None:
    """From now on the payload is another one, with `fault`; the good one stays as it is, to the byte."""
    node.command.payload = node.scratch / "broken"
    node.upgrade(fault=fault)


def offer_good(node: Node) -> None:
    node.command.payload = node.scratch / "payload"


def put_right(node: Node) -> None:
    """No fault, the good payload, no configs, the settings of a test."""
    node.fault("kubelet", "")
    node.fault("cri-resmgr", "")
    offer_good(node)
    for config in node.command.configs.iterdir():
        config.unlink()
    node.command.set()


def changed_since(before: dict[str, Entry], node: Node, *allowed: str) -> list[str]:
    """The paths that are not what they were, apart from the record and from what each start changes."""
    lines = difference(before, files(node.host))
    return [line for line in lines if not line.split()[1].startswith((STATE, *OF_A_START, *allowed))]
