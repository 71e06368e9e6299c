"""Extension, Cluster and ManagedResources in, what is written, deleted and reported out: the cases are data.

A case has `extension`, `shoot` (in its Cluster; null: no Cluster), `resource` (our ManagedResource in its
namespace), `nodes` (what the Shoot says when it is asked; `asked`: nothing yet) and what is `decided`. `now`
is always the same. Secrets are named by their content: INSTALLATION and REMOVAL stand for those that would be
rendered for the Extension now, so that a case means the same after a change of the manifests.
How it goes from one to the next is tested with API servers (tests/contract/test_extension.py).
"""

from __future__ import annotations

import base64
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from installer.cli import main
from installer.errors import InvalidInputError
from installer.gardener.decide import Situation, decide
from installer.gardener.managed_resource import Renderer, Wanted
from installer.gardener.nodes import Node, Nodes
from installer.gardener.resources import (
    Extension,
    Shoot,
    parse_cluster,
    parse_extension,
    parse_managed_resource,
)
from installer.gardener.status import build_patch
from installer.manifests.text import dump
from installer.model.names import Mode
from tests.lib import yamltext

CASES = Path(__file__).parents[1] / "cases" / "extension"
NAMES = sorted(path.stem for path in (CASES / "situations").iterdir())


class Remembering(Renderer):
    """Renders once what most cases ask for: that takes most of their time."""

    made: ClassVar[dict[str, Wanted]] = {}

    def _render(self, extension: Extension, shoot: Shoot, mode: Mode) -> Wanted:
        key = repr((extension.namespace, extension.excess, extension.provider_config, shoot, mode))
        if key not in self.made:
            self.made[key] = super()._render(extension, shoot, mode)
        return self.made[key]


RENDERER = Remembering(values=CASES / "values.yaml", deployment=(CASES / "deployment.yaml",))
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


def secrets_of(case: dict[str, Any]) -> dict[str, str]:
    """Name in a case -> name of the Secret."""
    given = {**case["extension"], "spec": {"providerConfig": case["extension"]["spec"].get("providerConfig")}}
    shoot, names = parse_cluster({"spec": {"shoot": case.get("shoot") or {}}}), dict[str, str]()
    for name, mode in (("INSTALLATION", Mode.INSTALL), ("REMOVAL", Mode.REMOVE)):
        with suppress(InvalidInputError):
            names[name] = RENDERER.render(parse_extension(given), shoot, mode).secret_name
    return names


def situation_of(case: dict[str, Any]) -> Situation:
    shoot, resource = case.get("shoot"), case.get("resource")
    return Situation(
        extension=parse_extension(case["extension"]),
        shoot=parse_cluster({"spec": {"shoot": shoot}}) if shoot is not None else None,
        resource=parse_managed_resource(resource) if resource is not None else None,
        now=NOW,
    )


def nodes_of(case: dict[str, Any]) -> Nodes | None:
    """`nodes` of the case: those of a Shoot with one healthy node, but for what it says."""
    if case.get("nodes") == "asked":
        return None
    given: dict[str, Any] = dict(case.get("nodes") or {"count": 1})
    for key in ("left", "silent", "given_up"):
        given[key] = tuple(Node(name, why) for name, why in given.get(key, {}).items())
    return Nodes(**given)


def told(case: dict[str, Any]) -> dict[str, Any]:
    """What is decided, without what says nothing."""
    situation, asked = situation_of(case), list[str]()

    def ask(mode: Mode) -> Nodes | None:
        asked.append(mode.value)
        return nodes_of(case)

    decision = decide(situation, RENDERER, ask)
    write = decision.write
    found = {
        "asked": asked,
        "ensureFinalizer": decision.ensure_finalizer,
        "write": write and f"{situation.extension.namespace}/{write.name} {write.secret_name}",
        "keepObjects": decision.keep_objects,
        "delete": decision.delete,
        "uninstall": decision.uninstall,
        "sweep": decision.sweep,
        "status": build_patch(situation.extension, decision.report, NOW),
        "removeOperation": decision.remove_operation,
        "removeFinalizer": decision.remove_finalizer,
        "again": decision.again,
    }
    text = json.dumps({key: value for key, value in found.items() if value not in (False, [], {}, None)})
    for name, secret in secrets_of(case).items():
        text = text.replace(secret, name)
    plain: dict[str, Any] = json.loads(text)
    return plain


def load(name: str) -> dict[str, Any]:
    case: dict[str, Any] = yamltext.load((CASES / "situations" / f"{name}.yaml").read_text())
    for reference in (case.get("resource") or {}).get("spec", {}).get("secretRefs", []):
        reference["name"] = secrets_of(case).get(reference["name"], reference["name"])
    return case


@pytest.mark.parametrize("name", NAMES)
def test_a_case(name: str) -> None:
    """After an intended change, `python -m tests.unit.test_extension` writes them; read the difference."""
    case = load(name)
    assert told(case) == case["decided"]


SHOOT = parse_cluster({"spec": {"shoot": {"spec": {"kubernetes": {"version": "1.31.2"}}}}})


def errors_of(renderer: Renderer, config: object, deleted: str = "") -> dict[str, Any]:
    """The lastError for this providerConfig."""
    metadata = {"namespace": "shoot--a--b", "generation": 1} | (
        {"deletionTimestamp": deleted} if deleted else {}
    )
    given = {"metadata": metadata, "spec": {"type": "cri-resmgr-extension", "providerConfig": config}}
    extension = parse_extension(given)
    decision = decide(Situation(extension, SHOOT, None, NOW), renderer, lambda _: None)
    found: dict[str, Any] = build_patch(extension, decision.report, NOW)["lastError"] or {}
    return found


def test_only_what_its_owner_can_correct_makes_a_shoot_fail(tmp_path: Path) -> None:
    """Gardener does not try again after that code: no Shoot would come back from the operator's fault."""
    wrong = tmp_path / "deployment.yaml"
    wrong.write_text("configs: {fallback: 'policy.Active: baloons'}\n")
    broken = Renderer(CASES / "values.yaml", (wrong,))
    mine = {"configs": {"force": "policy.Active: baloons\n"}}
    assert errors_of(RENDERER, mine)["codes"] == ["ERR_CONFIGURATION_PROBLEM"]
    of_operator = errors_of(broken, None)
    assert of_operator["codes"] == []
    assert of_operator["description"].startswith("The extension's ControllerDeployment is invalid")
    assert errors_of(broken, mine)["codes"] == ["ERR_CONFIGURATION_PROBLEM"]
    assert errors_of(broken, {"configs": {"fallback": "policy: {Active: none}"}}) == {}  # stronger than it


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 12))
LONG = {"name": "cri-resmgr-agent", "ref": "a:1", "targetVersion": "1" * 90_000}


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"configs": {"fallback": "#" * (256 << 10)}}, "providerConfig: is larger than 256 KiB"),
        ({"configs": {f"node.n{n}": "" for n in range(6000)}}, "providerConfig: has more than 10000 values"),
        ({"configs": {"default": BOMB}}, "configs.default: has more than 50000 values"),
        ({"configs": {"group.a": BOMB}}, "configs.group.a: has more than 50000 values"),
        (
            {
                "imageVectorOverwrite": [
                    {"name": "cri-resmgr-agent", "ref": "a:1", "targetVersion": "1" * 90_000}
                ]
            },
            "providerConfig.imageVectorOverwrite.0.targetVersion: is not supported",
        ),
    ],
)
def test_one_shoots_configuration_costs_the_others_nothing(config: object, fault: str) -> None:
    """Each of them is refused before anything is built of it."""
    error = errors_of(RENDERER, config)
    assert fault in error["description"]
    assert error["codes"] == ["ERR_CONFIGURATION_PROBLEM"]


def test_many_small_aliases_are_counted_together() -> None:
    ten = f"logger: {{Debug: &a [{', '.join(['x'] * 90)}]}}\ndump: &b [{'*a, ' * 19}]\n"
    text = f"policy: {{Active: none}}\n{ten}"
    many = {f"node.n{n}": f"{text}cpu: [{'*b, ' * 20}*b]\n" for n in range(100)}
    assert "have more than 1 MiB together" in errors_of(RENDERER, {"configs": many})["description"]


def test_a_thousand_faults_are_told_in_a_few_words() -> None:
    """The message must fit into the Extension."""
    error = errors_of(RENDERER, {f"key{n}": "x" for n in range(4000)})
    assert len(error["description"]) <= 4000


@pytest.fixture(scope="module")
def library() -> None:
    """The client of Kubernetes, which tries a socket when it is first imported, and takes long."""
    import installer.operator.kube  # noqa: F401


@pytest.mark.usefixtures("library")
def test_the_verb_needs_its_library_and_its_pod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("POD_NAME", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    asked = ["extension", "--values", str(CASES / "values.yaml")]
    assert main(asked) == 2
    assert "POD_NAMESPACE and POD_NAME: must both be set" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert main(asked) == 2
    assert "cri-resmgr-installer[extension]" in capsys.readouterr().err


@pytest.mark.usefixtures("library")
def test_the_verb_refuses_values_that_no_shoot_could_correct(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "values.yaml"
    wrong.write_text("imagess: {}\n")
    assert main(["extension", "--values", str(wrong)]) == 2
    assert "did you mean images" in capsys.readouterr().err


if __name__ == "__main__":
    for each in NAMES:
        text = (CASES / "situations" / f"{each}.yaml").read_text()
        begin = text.partition("decided:")[0]
        block = dump({"decided": told(load(each))})
        (CASES / "situations" / f"{each}.yaml").write_text(begin + block)


def test_the_maintenance_window_of_the_shoot_is_that_of_its_rollouts() -> None:
    window = {"begin": "220000+0100", "end": "230000+0100"}
    spec = {"kubernetes": {"version": "1.31.2"}, "maintenance": {"timeWindow": window}}
    shoot = parse_cluster({"spec": {"shoot": {"spec": spec}}})
    for mode, has in ((Mode.INSTALL, True), (Mode.REMOVE, False)):
        rendered = RENDERER.render(parse_extension({}), shoot, mode)
        text = base64.b64decode(rendered.secret["data"]["objects.yaml"]).decode()
        assert ("from: " in text and "+01:00" in text) is has
