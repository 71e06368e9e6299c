"""A Shoot whose API server is hostile or very sick costs the others nothing."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from installer.gardener.watchdog import Watchdog
from installer.operator.api import DAEMON_SETS, ApiError, Limits
from installer.operator.kube import connect_with
from tests.contract.extension.replica import SHOOT, Replica, Start
from tests.lib.throwaway.gardener import EVENTS, Landscape
from tests.lib.throwaway.hostile import (
    WAYS,
    HostileServer,
    bomb,
    deep,
    drip_content,
    drip_headers,
    endless_list,
    flood,
    huge_chunk,
    no_date,
    no_list,
    redirect,
    surrogate,
)
from tests.lib.throwaway.kubeserver import Name
from tests.lib.throwaway.managed import SECRETS
from tests.lib.throwaway.seen_requests import SeenRequests

SMALL = Limits(seconds=0.3, size=256 << 10, pages=5, list_seconds=1.0)
SAID = {
    drip_content: "did not end in time",
    drip_headers: "did not end in time",
    flood: "exceeds the size limit",
    bomb: "not the API's",
    endless_list: "does not end after 5 pages",
    deep: "not the API's",
    redirect: "302",
    no_list: "not a list",
    huge_chunk: "not the API's",
    surrogate: "not the API's",
}
MORE_THAN_WORKERS = 12


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_without_end_is_an_error(way: Callable[[], Iterator[bytes]]) -> None:
    with HostileServer(way) as server:
        client = connect_with(server.kubeconfig().encode(), SMALL)
        with pytest.raises(ApiError, match=SAID[way]):
            list(client.list_pages(DAEMON_SETS))
        # A page that is too large is asked for in smaller ones, of 50, 6 and 1.
        assert server.requests == {endless_list: SMALL.pages, flood: 3}.get(way, 1)


def test_a_time_that_no_clock_has_is_ignored() -> None:
    with HostileServer(no_date) as server:
        client = connect_with(server.kubeconfig().encode(), SMALL)
        assert not list(client.list_objects(DAEMON_SETS))
        assert abs(client.now() - time.time()) < 60


def test_many_questions_have_one_end() -> None:
    """Each page would be in time, and all of them for ever."""
    with HostileServer(endless_list) as server:
        client = connect_with(server.kubeconfig().encode(), Limits(pages=1_000_000, list_seconds=0.5))
        with pytest.raises(ApiError, match="in time"):
            list(client.list_pages(DAEMON_SETS))
        patient = connect_with(server.kubeconfig().encode(), Limits(pages=1_000_000))
        with pytest.raises(ApiError, match="in time"), patient.within(0.5):
            list(patient.list_pages(DAEMON_SETS))


@pytest.mark.parametrize("way", [drip_headers, flood, endless_list])
def test_hostile_shoots_take_nothing_from_the_others(
    world: Landscape, way: Callable[[], Iterator[bytes]]
) -> None:
    """More of them than there are threads; the pod is not restarted for it, either."""
    watchdog = Watchdog()
    with ExitStack() as stack:
        server = stack.enter_context(HostileServer(way))
        data = packed(server.kubeconfig())
        hostile = [f"shoot--hostile--s{number}" for number in range(MORE_THAN_WORKERS)]
        for namespace in hostile:
            world.add_shoot(namespace)
            world.seed.patch(Name(SECRETS, namespace, "gardener-internal"), {"data": data})
            world.enable(namespace)
        replica = Replica(world, watchdog=watchdog, shoot=SMALL)
        stack.callback(replica.stop)
        world.seed.wait(lambda: server.requests > MORE_THAN_WORKERS)
        world.serve(SHOOT)
        world.disable(SHOOT)
        world.gone(SHOOT)
        assert not watchdog.check()
        world.disable(hostile[0])
        world.says(hostile[0], "Progressing", "does not list its nodes")
        assert world.resource(hostile[0])


@pytest.mark.parametrize("way", [huge_chunk, surrogate])
def test_a_deletion_waits_for_what_no_client_expects(
    world: Landscape, start: Start, way: Callable[[], Iterator[bytes]]
) -> None:
    """It says why, asks again, and goes on when the server comes to its senses."""
    world.add_shoot(SHOOT)
    key = Name(SECRETS, SHOOT, "gardener-internal")
    sane = world.seed.get(key)["data"]
    with HostileServer(way) as server:
        world.seed.patch(key, {"data": packed(server.kubeconfig())})
        world.enable(SHOOT)
        start()
        world.seed.wait(lambda: world.operation(SHOOT) == "Create Succeeded")
        world.disable(SHOOT)
        world.says(SHOOT, "Progressing", "does not list its nodes: an answer that is not the API's")
        asked = server.requests
        world.seed.wait(lambda: server.requests > asked)
    world.seed.patch(key, {"data": sane})
    world.gone(SHOOT)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("marked-0123456789\nmarked-0123456789", "characters that no request can carry"),
        ("marked-0123456789\u20ac", "characters that no request can carry"),
        ("marked-0123456789\n", "I do not know Bearer (hidden)"),
    ],
)
def test_no_condition_has_a_credential(world: Landscape, start: Start, token: str, said: str) -> None:
    world.add_shoot(SHOOT)
    with SeenRequests() as server:
        server.answer = 401, b'{"kind": "Status", "message": "I do not know TOKEN"}'
        kubeconfig = json.dumps(server.kubeconfig({"token": token}))
        world.seed.patch(Name(SECRETS, SHOOT, "gardener-internal"), {"data": packed(kubeconfig)})
        world.enable(SHOOT)
        replica = start()
        world.seed.wait(lambda: world.operation(SHOOT) == "Create Succeeded")
        world.disable(SHOOT)
        world.says(SHOOT, "Progressing", said)
    found = json.dumps(world.extension(SHOOT)), *replica.lines, json.dumps(world.seed.find(EVENTS, SHOOT))
    assert not any("marked" in each for each in found)


def packed(kubeconfig: str) -> dict[str, str]:
    return {"kubeconfig": b64encode(kubeconfig.encode()).decode()}


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("users", {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/touch"}}),
        ("users", {"auth-provider": {"name": "gcp", "config": {"cmd-path": "/bin/touch"}}}),
        ("users", {"tokenFile": "/etc/hostname"}),
        ("clusters", {"certificate-authority": "/etc/hostname"}),
    ],
)
def test_no_program_is_run_and_no_file_read_for_a_kubeconfig(part: str, content: dict[str, object]) -> None:
    with HostileServer(redirect) as server:
        given = json.loads(server.kubeconfig())
        given[part][0][part.removesuffix("s")] |= content
        with pytest.raises(ApiError, match="everything must be inline"):
            connect_with(json.dumps(given).encode())
        assert not server.requests
