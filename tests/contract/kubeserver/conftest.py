"""One suite, two API servers: the stand-in, and a real one with etcd and controllers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.kubeserver.objects import LEASES, NODES, Object, new_lease, number
from tests.lib.api_servers import ApiServer, serve
from tests.lib.throwaway.controlplane import Caller


@pytest.fixture(scope="package", params=["stand-in", "real"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve(str(request.param), request.config, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def admin(server: ApiServer) -> Caller:
    return server.admin


@pytest.fixture
def lease(admin: Caller) -> Object:
    """One that is there."""
    answer = admin.call("POST", LEASES, new_lease())
    assert answer.code == 201
    return answer.body


@pytest.fixture
def node(admin: Caller) -> Object:
    name = f"node-{number()}"
    answer = admin.call("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    assert answer.code == 201
    return answer.body
