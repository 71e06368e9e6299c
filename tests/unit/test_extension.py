"""Extension, Cluster and ManagedResources in, what is written, deleted and reported out: the cases are data.

A case has `extension`, `shoot` (in its Cluster; null: no Cluster), `resource` (our ManagedResource in its
namespace), `nodes` (what the Shoot says when it is asked) and what is `decided`. `now` is always the same.
How it goes from one to the next is tested with API servers (tests/contract/test_extension.py).
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.cli import main
from installer.extension.decide import Situation, decide
from installer.extension.desired import Renderer
from installer.extension.nodes import Node, Nodes
from installer.extension.objects import parse_cluster, parse_extension, parse_managed_resource
from installer.extension.status import build_patch
from installer.manifests.text import dump
from installer.model.state import Mode

CASES = Path(__file__).parents[1] / "cases" / "extension"
NAMES = sorted(path.stem for path in (CASES / "situations").iterdir())
RENDERER = Renderer(values=CASES / "values.yaml", deployment=(CASES / "deployment.yaml",))
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def situation_of(case: dict[str, Any]) -> Situation:
    shoot, resource = case.get("shoot"), case.get("resource")
    return Situation(
        extension=parse_extension(case["extension"]),
        shoot=parse_cluster({"spec": {"shoot": shoot}}) if shoot is not None else None,
        resource=parse_managed_resource(resource) if resource is not None else None,
        now=NOW,
    )


def nodes_of(case: dict[str, Any]) -> Nodes:
    """`nodes` of the case: those of a Shoot with one healthy node, but for what it says."""
    given: dict[str, Any] = dict(case.get("nodes") or {"count": 1})
    for key in ("left", "silent", "given_up"):
        given[key] = tuple(Node(name, why) for name, why in given.get(key, {}).items())
    return Nodes(**given)


def told(case: dict[str, Any]) -> dict[str, Any]:
    """What is decided, without what says nothing."""
    situation, asked = situation_of(case), list[str]()

    def ask(mode: Mode) -> Nodes:
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
        "sweep": decision.sweep,
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


@pytest.fixture(scope="module")
def library() -> None:
    """The client of Kubernetes, which tries a socket when it is first imported, and takes long."""
    import installer.kube.client  # noqa: F401


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
