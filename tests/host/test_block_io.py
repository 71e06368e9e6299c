"""R6: limits of block I/O that cri-resmgr sets on containers end with it. The kernel is the real one."""

from pathlib import Path

import pytest

from tests.host.daemon import SOON, within
from tests.host.node import Node
from tests.host.workload import CGROUPS, UNSEEN
from tests.lib.rules import rule
from tests.lib.throwaway import real
from tests.lib.throwaway.containers import container_pid, create_container, run_pod
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.proxy import RELAY

pytestmark = pytest.mark.skipif(bool(UNSEEN), reason=UNSEEN)


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


BLOCK_IO = "policy:\n  Active: none\nblockio:\n  Classes:\n" + "".join(
    f"    {name}:\n    - Weight: 80\n" for name in ("BestEffort", "Burstable", "Guaranteed")
)
WEIGHT, RATE = "blkio.bfq.weight", "blkio.throttle.read_bps_device"


@rule("R6")
@pytest.mark.parametrize("ends", ["remove", "another configuration"])
def test_limits_of_block_io_end_with_what_has_set_them(node: Node, ends: str) -> None:
    """The real proxy sets the weight by itself. The rate of a device, for which it needs one, is set here."""
    node.fallback(BLOCK_IO)
    node.run("install")
    pod = run_pod(node.host, RELAY, "throttled")
    identity = create_container(node.host, RELAY, "disk", pod=pod)
    place, process = block_io(node, identity), container_pid(node.host, identity)
    if place is None:
        pytest.skip("needs cgroup v1 with block I/O: blkio.bfq.weight of a container")
    if real.named("cri-resmgr"):
        within(SOON, lambda: limits(place)[0] == "80")
    else:
        (place / WEIGHT).write_text("80")
    device = block_device()
    (place / RATE).write_text(f"{device} 1048576")
    if ends == "remove":
        assert (
            f"restore {RATE} of {device} of default/throttled/disk:"
            in node.run("plan", "--mode=remove", code=3).out
        )
        node.run("remove")
    else:
        node.fallback("policy:\n  Active: none\n")
        node.run("install")
    assert limits(place) == ("100", ""), "the kernel's defaults"
    assert container_pid(node.host, identity) == process


def block_io(node: Node, identity: str) -> Path | None:
    """A container's cgroup of v1 for block I/O, if it has weights."""
    found = (node.host.root / CGROUPS / "blkio").glob(f"**/*{identity}")
    return next((place for place in found if (place / WEIGHT).exists()), None)


def block_device() -> str:
    """Any disk: nothing is read from it."""
    disks = (place / "dev" for place in Path("/sys/block").iterdir())
    return next(disk.read_text().strip() for disk in disks)


def limits(place: Path) -> tuple[str, str]:
    return (place / WEIGHT).read_text().strip(), (place / RATE).read_text().strip()
