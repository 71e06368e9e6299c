"""Fixtures of the tests that boot a host. They need root and hack/setup's packages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.hosts.bench import Bench
from tests.host.node import Node
from tests.host.product import lent
from tests.lib.throwaway import real
from tests.lib.throwaway.host import ThrowawayHost, missing_needs
from tests.lib.throwaway.payload import build_payload

OF_STAND_INS = ("test_pods_of_kubelet", "test_restarted_kubelet", "test_throwaway")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips, with the reason, what this machine cannot run, and tests of the stand-ins where they are not."""
    missing, real_ones = missing_needs(), [program for program in real.FOR_STAND_INS if real.named(program)]
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if real_ones and item.path.stem in OF_STAND_INS:
            reason = f"it tests a stand-in, and the real {' and '.join(real_ones)} was named"
            item.add_marker(pytest.mark.skip(reason=reason))
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"no throwaway host: {', '.join(missing)}"))


@pytest.fixture
def host() -> Iterator[ThrowawayHost]:
    """A booted host with containerd, all its own."""
    with ThrowawayHost() as booted:
        yield booted


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    """A release of cri-resource-manager, unpacked; the test may spoil it."""
    return build_payload(tmp_path / "payload")


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for the tests of a module, one after the other."""
    with ThrowawayHost() as host:
        yield Node(host, tmp_path_factory.mktemp("node"))


@pytest.fixture
def node(booted: Node) -> Iterator[Node]:
    """The module's node, with short deadlines, without anything of ours; afterwards it has to be so again."""
    with lent(booted):
        booted.command.set(kubelet={"startTimeoutSeconds": 4, "guardSeconds": 6})
        yield booted


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("bench")) as found:
        yield found
