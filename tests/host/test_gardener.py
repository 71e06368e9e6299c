"""A Shoot's life with Gardener's extension, from the registration to its end: the controller as its chart
starts it, and hosts as nodes. Every node ends as it began."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from installer.operator.node_objects import build_patches
from tests.host.command import PROGRAM
from tests.host.node import FALLBACK, PROXY, Node
from tests.host.shoot import EVENTS, LiveShoot
from tests.lib.extras import EXTENSION
from tests.lib.rules import rule
from tests.lib.throwaway.fleet import NODES
from tests.lib.throwaway.gardener import EVENTS as SEED_EVENTS
from tests.lib.throwaway.gardener import install_controller
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import wait_healthy
from tests.lib.throwaway.kubeserver import Kind, KubeServer, Name
from tests.lib.throwaway.managed import RESOURCES, SECRETS
from tests.lib.throwaway.payload import build_payload

pytestmark = pytest.mark.long

ACCOUNTS = Kind("/api/v1", "serviceaccounts")
SHOOT = "shoot--example--pinned"
NONE, DEBUG = "policy:\n  Active: none\n", "policy:\n  Active: none\nlogger:\n  Debug: policy\n"
SETTINGS = {
    "kubelet": {"settleSeconds": 1, "restartsPerHour": 100},
    "proxy": {"deadSeconds": 4},
    "rollout": {"concurrentRestarts": 10, "order": "any", "soakSeconds": 0},
}
IMAGES = ("registry.example.org/nodes:1", "extension=registry.example.org/extension:1")
SECONDS = 300.0


class Controller:
    """What gardenlet makes of the registration, on the seed: the one container of its chart, as a process."""

    def __init__(self, seed: KubeServer, scratch: Path) -> None:
        values = scratch / "values.yaml"
        values.write_text(json.dumps({"settings": SETTINGS}))
        objects = install_controller(values, IMAGES)
        (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
        mounted = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "config")
        for name, text in objects["ConfigMap"]["data"].items():
            (scratch / name).write_text(text)
        (scratch / "kubeconfig").write_text(seed.kubeconfig())
        environment = {
            "KUBECONFIG": str(scratch / "kubeconfig"),
            "POD_NAME": "controller",
            "POD_NAMESPACE": "extension-1",
            "PYTHONPATH": str(EXTENSION),
        }
        words = [each.replace(mounted, str(scratch)) for each in container["args"]]
        words[-1] = f"--alive={scratch}/alive"
        self._output = scratch / "output"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [PROGRAM, *words], env=os.environ | environment, stdout=output, stderr=output
            )

    def said(self) -> str:
        return self._output.read_text()


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveShoot]:
    (tmp_path / "account").mkdir()
    payload = build_payload(tmp_path / "payload")
    with LiveShoot(KubeServer(), KubeServer(tmp_path / "account"), payload, tmp_path / "pods") as found:
        yield found
        request.node.add_report_section("teardown", "Extension", json.dumps(found.extension(SHOOT)))
        request.node.add_report_section("teardown", "pods", found.said())


@pytest.fixture
def controller(request: pytest.FixtureRequest, world: LiveShoot, tmp_path: Path) -> Iterator[Controller]:
    place = tmp_path / "controller"
    place.mkdir()
    running = Controller(world.seed, place)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        request.node.add_report_section("teardown", "controller", running.said())


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Node]]:
    """One with Gardener's kubelet unit, and one where somebody has set a flag of it."""
    with ExitStack() as stack:
        found = []
        for flavour in ("gardener-unset", "gardener-set"):
            place = tmp_path / flavour
            place.mkdir()
            found.append(Node(stack.enter_context(ThrowawayHost()), place, flavour))
        yield found


def config(fallback: str = NONE, **more: Any) -> dict[str, Any]:
    return {"configs": {"fallback": fallback}, **more}


def serves(machine: Node, fallback: str = NONE) -> bool:
    file = machine.path(FALLBACK)
    return file.exists() and file.read_text().endswith(fallback) and machine.on_relay()


def expect_served(machine: Node, fallback: str = NONE) -> None:
    wait_healthy(machine.host)
    assert serves(machine, fallback)
    assert machine.host.systemctl("is-active", PROXY) == "active"


@rule("R6", "R13")
def test_the_life_of_a_shoot(world: LiveShoot, controller: Controller, machines: list[Node]) -> None:
    first, second = machines
    world.join("n1", first)
    world.serve(SHOOT, config())
    expect_served(first)

    world.join("n2", second)
    world.says(SHOOT, "Progressing", "n2")
    world.rest(SHOOT, "Create Succeeded")
    expect_served(second)

    kubelets = [each.invocations()[0] for each in machines]
    world.ask(SHOOT, config=config(DEBUG))
    world.seed.wait(lambda: world.operation(SHOOT) == "Reconcile Succeeded")
    world.says(SHOOT, "Progressing")
    world.rest(SHOOT, "Reconcile Succeeded")
    for machine in machines:
        expect_served(machine, DEBUG)

    world.ask(SHOOT, config=config("policy.Active: baloons\n"))
    world.says(
        SHOOT, "False", "configs.fallback: policy.Active: unknown policy 'baloons'; did you mean balloons?"
    )
    for machine in machines:
        expect_served(machine, DEBUG)
    assert [each.invocations()[0] for each in machines] == kubelets
    world.ask(SHOOT, config=config(DEBUG))
    world.rest(SHOOT, "Reconcile Succeeded")

    world.container("n2").settle()  # in the middle of a pass it would be blamed on that
    second.fault("cri-resmgr", '{"startup": "exit"}')
    second.host.systemctl("kill", "--signal=KILL", PROXY)
    world.says(SHOOT, "Progressing", "n2")
    world.shoot.wait(lambda: world.state("n2") == "unwell" and not second.on_relay())
    world.grow_old("n2")
    world.says(SHOOT, "False", f"1 of 2 nodes is not well: n2 (unwell: {PROXY} is not active")
    second.fault("cri-resmgr", "")
    world.rest(SHOOT, "Reconcile Succeeded")
    expect_served(second, DEBUG)

    world.disable(SHOOT)
    world.gone(SHOOT)
    for machine in machines:
        machine.expect_untraced()

    controller.process.terminate()
    assert controller.process.wait(SECONDS) == 128 + signal.SIGTERM
    world.collect_garbage()
    assert not world.seed.find(RESOURCES)
    assert [each["metadata"]["name"] for each in world.seed.find(SECRETS)] == ["gardener-internal"]
    assert {name.kind for name in world.shoot.objects} == {NODES, EVENTS}
    assert not [node for node in world.shoot.find(NODES) if any(build_patches(node))]


@rule("R6")
def test_nodes_that_leave(world: LiveShoot, controller: Controller, machines: list[Node]) -> None:
    """One is no longer selected, and is cleaned. The other one is switched off when it should be."""
    first, second = machines
    world.join("n1", first, pool="pinned")
    world.join("n2", second, pool="other")
    world.serve(SHOOT, config())
    for machine in machines:
        expect_served(machine)

    world.ask(SHOOT, config=config(nodeSelector={"pool": "pinned"}))
    world.shoot.wait(lambda: not world.pods_of("n2"))
    second.expect_untraced()
    world.rest(SHOOT, "Reconcile Succeeded")
    expect_served(first)

    world.lose("n1")
    world.disable(SHOOT)
    world.says(SHOOT, "Progressing", "Not yet clean: n1 (silent since")
    world.late = True
    world.gone(SHOOT)
    assert any("Left as they are: n1" in each["note"] for each in world.seed.find(SEED_EVENTS, SHOOT))
    world.shoot.wait(lambda: not world.pods_of("n2"))
    second.expect_untraced()
    # Its pod will ask whether it has to clean up.
    pod = world.pods_of("n1")[0]
    assert Name(ACCOUNTS, "kube-system", pod["spec"]["serviceAccountName"]) in world.shoot.objects
