"""Kubelets as cases: tests/cases/kubelets/<name>/expected.yaml, on a tree of unit files.

`flavour` names a bootable tree of tests/throwaway/kubelets; the case's own tree/
lies over it, `without` takes files away. Expected is either a strategy with its
variable or the code of a refusal, and the base endpoint.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.desired.kubelet import kubelet_resources
from installer.host.files import RootedFiles
from installer.host.globbing import matching
from installer.inputs.settings import KubeletSettings, Settings
from installer.kubelet import Choice, Refusal, base_endpoint, choose_strategy, kubelet_policies
from installer.kubelet.command import base_argv, base_unit
from installer.model import paths
from installer.model.facts import KubeletFacts, UnitText
from installer.model.resource import ProcessState, UnitDetail, UnitState, last_flag
from installer.systemd_syntax.environment_file import quote

CASES = Path(__file__).parent.parent / "cases" / "kubelets"
FLAVOURS = Path(__file__).parent.parent / "throwaway" / "kubelets"
UNIT = "kubelet.service"
UNIT_DIRECTORIES = ("etc/systemd/system", "usr/lib/systemd/system")
OUR_FLAG = f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}"


@pytest.fixture(params=sorted(path.name for path in CASES.iterdir()))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    directory = CASES / request.param
    expected = yaml.safe_load((directory / "expected.yaml").read_text())
    if "flavour" in expected:
        shutil.copytree(FLAVOURS / expected["flavour"], tmp_path, dirs_exist_ok=True)
    if (directory / "tree").is_dir():
        shutil.copytree(directory / "tree", tmp_path, dirs_exist_ok=True)
    for name in expected.get("without", ()):
        (tmp_path / name).unlink()
    return expected, tmp_path


def load_facts(root: Path) -> KubeletFacts:
    """What `observe_facts` would read below `root`, kubelet not running."""
    fragment = next(root / d / UNIT for d in UNIT_DIRECTORIES if (root / d / UNIT).exists())
    drop_ins = [path for d in UNIT_DIRECTORIES for path in (root / d / f"{UNIT}.d").glob("*.conf")]
    texts = [text_of(root, path) for path in (fragment, *sorted(drop_ins, key=lambda path: path.name))]
    named = {path for text in texts for path in re.findall(r"^EnvironmentFile=-?(\S+)", text.text, re.M)}
    facts = KubeletFacts(
        UnitState(UNIT, load_state="loaded", fragment_path=texts[0].path),
        UnitDetail(),
        None,
        tuple(texts),
        environment_files={
            pattern: tuple(text_of(root, root / path[1:]) for path in matching(RootedFiles(root), pattern))
            for pattern in named
        },
    )
    argv = base_argv(facts)
    config, directory = last_flag(argv, "--config"), last_flag(argv, "--config-dir")
    found = root / config[1:] if config else None
    return KubeletFacts(
        facts.unit,
        facts.detail,
        None,
        facts.texts,
        text_of(root, found) if found and found.exists() else None,
        tuple(text_of(root, path) for path in sorted((root / directory[1:]).glob("*.conf")))
        if directory
        else (),
        facts.environment_files,
    )


def text_of(root: Path, path: Path) -> UnitText:
    return UnitText(f"/{path.relative_to(root)}", path.read_text())


def on_relay(facts: KubeletFacts) -> KubeletFacts:
    """The same kubelet, running and moved by our guard."""
    process = ProcessState(7, (*base_argv(facts), OUR_FLAG), {"CRI_RESMGR_GUARD_FLAG": OUR_FLAG})
    return KubeletFacts(
        facts.unit,
        facts.detail,
        process,
        facts.texts,
        facts.config,
        facts.config_dir,
        facts.environment_files,
    )


def test_strategy(case: tuple[dict[str, Any], Path]) -> None:
    expected, root = case
    facts = load_facts(root)
    settings = Settings(kubelet=KubeletSettings(strategy=expected.get("settings", "auto")))
    choice = choose_strategy(facts, settings)
    if "refusal" in expected:
        assert isinstance(choice, Refusal), choice
        assert choice.code == expected["refusal"]
        assert expected.get("message", "") in choice.message
        return
    assert isinstance(choice, Choice), choice
    assert (choice.strategy, choice.variable) == (expected["strategy"], expected["variable"])
    assert expected.get("why", "") in choice.why
    if "exec_start" in expected:
        assert " ".join(choice.exec_start.split()) == " ".join(expected["exec_start"].split())
    if "last_words" in expected:
        words = tuple(expected["last_words"])
        assert base_argv(facts)[-len(words) :] == words


def test_base_endpoint(case: tuple[dict[str, Any], Path]) -> None:
    expected, root = case
    facts = load_facts(root)
    for kubelet in (facts, on_relay(facts)):
        endpoint = base_endpoint(kubelet)
        if "endpoint_refusal" in expected:
            assert isinstance(endpoint, Refusal), endpoint
            assert endpoint.code == expected["endpoint_refusal"]
            assert expected.get("message", "") in endpoint.message
        elif "endpoint" in expected:
            assert endpoint == expected["endpoint"]
        if "policies" in expected:
            assert kubelet_policies(kubelet) == tuple(expected["policies"])


def test_drop_in_makes_the_base_line_and_our_flag(case: tuple[dict[str, Any], Path]) -> None:
    """With our drop-in at its place, the merged unit is the base's command line and then our flag."""
    expected, root = case
    facts = load_facts(root)
    settings = Settings(kubelet=KubeletSettings(strategy=expected.get("settings", "auto")))
    choice = choose_strategy(facts, settings)
    if not isinstance(choice, Choice):
        return
    files, _kubelet = kubelet_resources(settings, facts.detail, choice)
    drop_in = next(file for file in files if file.path.endswith(paths.DROP_IN_NAME))
    assert isinstance(drop_in.content, bytes)
    place = root / drop_in.path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(drop_in.content)
    before = base_argv(facts)
    composed = root / paths.KUBELET_COMPOSED[1:]
    composed.parent.mkdir(parents=True)
    value = base_unit(facts).environment(facts.environment_files or {}).get(choice.variable, "")
    composed.write_text(f"{choice.variable}={quote(f'{value} {OUR_FLAG}')}\n")
    assert base_argv(load_facts(root)) == (*before, OUR_FLAG)


def test_running_on_the_relay_by_somebody_else_is_refused() -> None:
    """The flag without our mark in the environment is not ours to take away."""
    process = ProcessState(7, ("/usr/bin/kubelet", OUR_FLAG), {})
    facts = KubeletFacts(UnitState(UNIT), UnitDetail(), process, ())
    assert isinstance(base_endpoint(facts), Refusal)


def test_the_running_process_counts_before_the_files() -> None:
    text = UnitText(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/usr/bin/kubelet\n")
    argv = ("/usr/bin/kubelet", "--container-runtime-endpoint=unix:///run/now.sock")
    facts = KubeletFacts(UnitState(UNIT), UnitDetail(), ProcessState(7, argv, {}), (text,))
    assert base_endpoint(facts) == "unix:///run/now.sock"
