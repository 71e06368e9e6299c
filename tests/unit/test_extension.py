"""Extension, Cluster and ManagedResources in, what is written, deleted and reported out: the cases are data.

A case has `extension`, `shoot` (in its Cluster; null: no Cluster), `resources` (ManagedResources of its
namespace) and what is `decided`. `now` is always the same.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.extension.decide import FINALIZER, Decision, Situation, decide
from installer.extension.desired import EXTENSION_TYPE, Renderer
from installer.extension.objects import parse_cluster, parse_extension, parse_managed_resource
from installer.extension.status import build_patch
from installer.manifests.text import dump

CASES = Path(__file__).parents[1] / "cases" / "extension"
NAMES = sorted(path.stem for path in (CASES / "situations").iterdir())
RENDERER = Renderer(values=CASES / "values.yaml", deployment=CASES / "deployment.yaml")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def situation_of(case: dict[str, Any]) -> Situation:
    resources = [parse_managed_resource(each) for each in case.get("resources") or ()]
    shoot = case.get("shoot")
    return Situation(
        extension=parse_extension(case["extension"]),
        shoot=parse_cluster({"spec": {"shoot": shoot}}) if shoot is not None else None,
        installation=next((each for each in resources if not each.name.endswith("-removal")), None),
        removal=next((each for each in resources if each.name.endswith("-removal")), None),
        now=NOW,
        nodes_left=tuple(case.get("nodesLeft", ())),
    )


def told(case: dict[str, Any]) -> dict[str, Any]:
    """What is decided, without what says nothing."""
    situation = situation_of(case)
    decision = decide(situation, RENDERER)
    found = {
        "ensureFinalizer": decision.ensure_finalizer,
        "write": [
            f"{each.resource['metadata']['namespace']}/{each.resource['metadata']['name']} {each.secret_name}"
            for each in decision.write
        ],
        "keepObjects": list(decision.keep_objects),
        "delete": list(decision.delete),
        "status": build_patch(situation.extension, decision.report, NOW),
        "removeOperation": decision.remove_operation,
        "removeFinalizer": decision.remove_finalizer,
        "again": decision.again,
    }
    return {key: value for key, value in found.items() if value not in (False, [], {}, None)}


def load(name: str) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load((CASES / "situations" / f"{name}.yaml").read_text())
    return case


@pytest.mark.parametrize("name", NAMES)
def test_a_case(name: str) -> None:
    """After an intended change, `python -m tests.unit.test_extension` writes them; read the difference."""
    case = load(name)
    assert told(case) == case["decided"]


class World:
    """A seed with one Extension, and a gardener-resource-manager that does at once what it is told."""

    def __init__(self) -> None:
        self.extension: dict[str, Any] = {
            "metadata": {
                "name": "cri-resmgr-extension",
                "namespace": "shoot--example--pinned",
                "generation": 1,
                "annotations": {"gardener.cloud/operation": "reconcile"},
                "finalizers": [],
            },
            "spec": {"type": EXTENSION_TYPE},
            "status": {},
        }
        self.shoot: dict[str, Any] = {"spec": {"kubernetes": {"version": "1.31.2"}}}
        self.resources: dict[str, dict[str, Any]] = {}
        self.kept: set[str] = set()
        self.log: list[str] = []

    def settle(self) -> None:
        """Until nothing is left to do."""
        for _ in range(10):
            situation = situation_of(
                {
                    "extension": self.extension,
                    "shoot": self.shoot,
                    "resources": list(self.resources.values()),
                }
            )
            before = yaml.safe_dump([self.extension, self.resources])
            self._do(decide(situation, RENDERER), situation)
            if yaml.safe_dump([self.extension, self.resources]) == before:
                return
        raise AssertionError("it does not come to rest")

    def _do(self, decision: Decision, situation: Situation) -> None:
        metadata = self.extension["metadata"]
        if decision.ensure_finalizer and FINALIZER not in metadata["finalizers"]:
            metadata["finalizers"].append(FINALIZER)
        for wanted in decision.write:
            self._apply(wanted.resource)
        for name in decision.keep_objects:
            self.resources[name]["spec"]["keepObjects"] = True
        for name in decision.delete:
            kept = self.resources.pop(name)["spec"]["keepObjects"]
            self.log.append(f"{name} deleted, its objects {'kept' if kept else 'too'}")
        merge(self.extension["status"], build_patch(situation.extension, decision.report, NOW))
        if decision.remove_operation:
            metadata["annotations"].pop("gardener.cloud/operation", None)
        if decision.remove_finalizer:
            metadata["finalizers"] = []

    def _apply(self, resource: Any) -> None:
        name = resource["metadata"]["name"]
        spec = dict(resource["spec"])
        if name in self.resources and self.resources[name]["spec"] == spec:
            return
        self.log.append(f"{name} written")
        conditions = [
            {"type": f"Resources{kind}", "status": status, "message": ""}
            for kind, status in (("Applied", "True"), ("Healthy", "True"), ("Progressing", "False"))
        ]
        self.resources[name] = {
            "metadata": {"name": name, "generation": 1, "creationTimestamp": NOW.isoformat()},
            "spec": spec,
            "status": {"observedGeneration": 1, "conditions": conditions},
        }

    @property
    def health(self) -> str:
        found: str = self.extension["status"]["conditions"][0]["status"]
        return found

    @property
    def operation(self) -> tuple[str, str]:
        last = self.extension["status"]["lastOperation"]
        return last["type"], last["state"]


def merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


@pytest.fixture
def world() -> World:
    seed = World()
    seed.settle()
    assert seed.log == ["cri-resmgr-installer written"]
    assert (seed.operation, seed.health) == (("Create", "Succeeded"), "True")
    assert FINALIZER in seed.extension["metadata"]["finalizers"]
    assert not seed.extension["metadata"]["annotations"]
    seed.log.clear()
    return seed


def test_a_changed_configuration_waits_for_gardenlet(world: World) -> None:
    world.extension["spec"]["providerConfig"] = {"configs": {"fallback": "logger: {}"}}
    world.settle()
    assert not world.log
    world.extension["metadata"]["annotations"]["gardener.cloud/operation"] = "reconcile"
    world.settle()
    assert world.log == ["cri-resmgr-installer written"]
    assert world.operation == ("Reconcile", "Succeeded")


def test_a_new_generation_is_a_reason_by_itself(world: World) -> None:
    world.extension["spec"]["providerConfig"] = {"configs": {"fallback": "logger: {}"}}
    world.extension["metadata"]["generation"] = 2
    world.settle()
    assert world.log == ["cri-resmgr-installer written"]
    assert world.extension["status"]["observedGeneration"] == 2


def test_a_broken_configuration_leaves_the_nodes_what_they_have(world: World) -> None:
    world.extension["spec"]["providerConfig"] = {"configs": {"fallback": "polcy: {}"}}
    world.extension["metadata"]["generation"] = 2
    world.settle()
    assert not world.log
    assert world.operation == ("Reconcile", "Error")
    error = world.extension["status"]["lastError"]
    assert error["codes"] == ["ERR_CONFIGURATION_PROBLEM"]
    assert "polcy: unknown key" in error["description"]
    world.extension["spec"]["providerConfig"] = {}
    world.extension["metadata"]["generation"] = 3
    world.settle()
    assert world.operation == ("Reconcile", "Succeeded")
    assert "lastError" not in world.extension["status"]


def test_a_deletion_cleans_the_nodes_before_anything_goes(world: World) -> None:
    """Also where the configuration has been broken since."""
    world.extension["spec"]["providerConfig"] = {"configs": {"fallback": "polcy: {}"}}
    world.extension["metadata"]["deletionTimestamp"] = NOW.isoformat()
    world.settle()
    assert world.log == [
        "cri-resmgr-installer-removal written",
        "cri-resmgr-installer deleted, its objects too",
        "cri-resmgr-installer-removal deleted, its objects too",
    ]
    assert not world.extension["metadata"]["finalizers"]
    assert world.operation == ("Delete", "Succeeded")


def test_a_shoot_that_moves_to_another_seed_and_its_nodes_do_not_notice(world: World) -> None:
    written = {name: resource["spec"]["secretRefs"] for name, resource in world.resources.items()}
    world.extension["metadata"]["annotations"]["gardener.cloud/operation"] = "migrate"
    world.settle()
    assert world.log == ["cri-resmgr-installer deleted, its objects kept"]
    assert world.operation == ("Migrate", "Succeeded")
    assert not world.extension["metadata"]["finalizers"]
    world.settle()  # the seed that it has left does not take it back
    assert not world.resources
    world.extension["metadata"]["annotations"]["gardener.cloud/operation"] = "restore"
    world.settle()
    assert world.operation == ("Restore", "Succeeded")
    # The same objects to the byte: nothing is rolled out.
    assert {name: each["spec"]["secretRefs"] for name, each in world.resources.items()} == written


def test_a_deletion_by_force_waits_for_nobody(world: World) -> None:
    world.extension["metadata"]["deletionTimestamp"] = NOW.isoformat()
    world.shoot["metadata"] = {"annotations": {"confirmation.gardener.cloud/force-deletion": "true"}}
    world.settle()
    assert not world.extension["metadata"]["finalizers"]
    assert "cri-resmgr-installer-removal written" not in world.log


def test_a_hibernated_shoot_is_not_waited_for(world: World) -> None:
    world.shoot["spec"]["hibernation"] = {"enabled": True}
    world.shoot["status"] = {"hibernated": True}
    world.resources["cri-resmgr-installer"]["status"]["conditions"][1]["status"] = "False"
    world.settle()
    assert world.health == "True"
    world.extension["metadata"]["deletionTimestamp"] = NOW.isoformat()
    world.settle()
    assert world.log == ["cri-resmgr-installer deleted, its objects too"]
    assert not world.extension["metadata"]["finalizers"]


def test_an_unhealthy_node_is_told_and_told_once(world: World) -> None:
    conditions = world.resources["cri-resmgr-installer"]["status"]["conditions"]
    conditions[1].update(status="False", message="too many unavailable pods found (1/3)")
    world.settle()
    (condition,) = world.extension["status"]["conditions"]
    assert (condition["status"], condition["message"]) == ("False", "too many unavailable pods found (1/3)")
    situation = situation_of(
        {"extension": world.extension, "shoot": world.shoot, "resources": list(world.resources.values())}
    )
    assert not build_patch(situation.extension, decide(situation, RENDERER).report, NOW + timedelta(hours=1))


if __name__ == "__main__":
    for each in NAMES:
        text = (CASES / "situations" / f"{each}.yaml").read_text()
        begin = text.partition("decided:")[0]
        block = dump({"decided": told(load(each))})
        (CASES / "situations" / f"{each}.yaml").write_text(begin + block)
