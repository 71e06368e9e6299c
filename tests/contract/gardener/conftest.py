"""One suite, two of gardener-resource-manager: the stand-in on stand-ins of API servers, and the real program
on a real control plane (`--kubernetes DIR --gardener DIR`)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.throwaway.controlplane import Caller, ControlPlane, find_programs
from tests.lib.throwaway.kubeserver import KubeServer
from tests.lib.throwaway.managed import Manager
from tests.lib.throwaway.resource_manager import ResourceManager, find_manager


class Clusters(NamedTuple):
    """Whoever may do everything: at the seed, and at the Shoot."""

    seed: Caller
    shoot: Caller


@pytest.fixture(scope="package", params=["stand-in", "real"])
def clusters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    directory: Path = tmp_path_factory.mktemp("manager")
    if request.param == "stand-in":
        with Manager(KubeServer(), KubeServer()) as manager:
            plain = ssl.create_default_context()
            yield Clusters(*(Caller(each.url, plain) for each in (manager.seed, manager.shoot)))
        return
    programs, gardener = (request.config.getoption(name) for name in ("--kubernetes", "--gardener"))
    if programs is None or gardener is None:
        pytest.skip("needs real programs: --kubernetes DIR --gardener DIR")
    with (
        ControlPlane(find_programs(programs), directory) as plane,
        ResourceManager(find_manager(gardener), plane, directory),
    ):
        yield Clusters(plane.admin, plane.admin)


@pytest.fixture
def seed(clusters: Clusters) -> Caller:
    return clusters.seed


@pytest.fixture
def shoot(clusters: Clusters) -> Caller:
    return clusters.shoot
