"""A cluster for each story, of the programs that `--kubernetes DIR` names; without them each is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.watch import Watch
from tests.cluster.world import Cluster, system
from tests.image.images import missing_builders
from tests.lib.throwaway import real
from tests.lib.throwaway.controlplane import CLUSTER_PROGRAMS, find_programs
from tests.lib.throwaway.host import missing_needs


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`VALUES` of the module are the installation's."""
    directory = request.config.getoption("--kubernetes")
    if directory is None:
        pytest.skip(f"no cluster: --kubernetes DIR names a directory with {', '.join(CLUSTER_PROGRAMS)}")
    if missing := [*missing_needs(), *missing_builders()]:
        pytest.skip(f"no cluster: {', '.join(missing)}: run hack/setup --image")
    programs = find_programs(directory, (*CLUSTER_PROGRAMS, "etcd"), str(system() / "usr/bin/etcd"))
    if real.named("kubelet") is None:
        real.name("kubelet", programs["kubelet"])
    place: Path = tmp_path_factory.mktemp("cluster")
    values = dict(request.module.VALUES)
    with Cluster(programs, place, request.config.getoption("--nodes"), values) as made:
        yield made


@pytest.fixture(autouse=True)
def watch(cluster: Cluster) -> Iterator[Watch]:
    """Whatever is done: of no node is anything said for long that it is not."""
    with Watch(cluster) as watch:
        yield watch
    assert not watch.lies()
