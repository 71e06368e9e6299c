"""What the documentation says is true of the code: settings, values, metrics, phases, exits, codes, links."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml

from installer.cli import main
from installer.cli.grammar import INTERNAL_VERBS, build_parser
from installer.daemon.pages import render_page
from installer.errors import InstallerError
from installer.inputs.settings import Settings, parse_settings
from installer.manifests.values import Values
from installer.model.daemon import DaemonState, Phase
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.names import LAST_FAILURE, NOT_READY_TAINT, READY_LABEL, STATUS, Mode
from tests.lib.documents import (
    ARCHITECTURE,
    MONITORING,
    PAGES,
    ROOT,
    RUNBOOKS,
    anchors,
    first_cells,
    section,
    yaml_block,
)

SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "installer").rglob("*.py")))
GUARD = ROOT / "units/cri-resmgr-kubelet-guard"
NO_QUOTE = re.compile(
    r"(cri|cri-resmgr-installer|docker|fuser|hack/\w+|history|journalctl|kill|kubectl|manifests|plan|ps|restorecon"
    r"|sh|ss|status|systemctl|systemd-analyze) |.*[{|]"
)
QUOTED_OF_OTHERS = (
    "CreateContainerError ... not enough ... sharable CPU",
    "failed to unmarshal snapshot data",
    "hostPath type check failed",
    'no matches for kind "ValidatingAdmissionPolicy"',
)


def test_every_command_is_explained() -> None:
    _, verbs = build_parser()
    explained = re.findall(r"(?m)^\| `([a-z]+)", section("Commands"))
    assert set(explained) == set(verbs) - set(INTERNAL_VERBS)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_command_that_is_shown_is_one_that_the_program_takes(page: Path) -> None:
    parser, _ = build_parser()
    text = page.read_text().replace("\\\n", " ").replace("<version>", "1")
    shown = re.findall(r"(?m)^ {4,}(?:cri|cri-resmgr-installer) ((?!\[)[^#|>\n]+)", text)
    for words in map(shlex.split, shown):
        assert parser.parse_args(words).command


def test_the_settings_shown_are_all_settings_with_their_defaults() -> None:
    block = yaml_block(section("Settings"))
    assert parse_settings(block.encode()) == Settings()
    shown = [line.split(":")[0].strip() for line in block.splitlines()]
    wanted = []
    for name, default in Settings():
        key = Settings.model_fields[name].alias
        wanted.append(key)
        if not isinstance(default, (str, bool)):
            wanted += [field.alias for field in type(default).model_fields.values()]
    assert shown == wanted


def test_each_setting_is_explained() -> None:
    names = []
    for key, default in Settings().model_dump(by_alias=True).items():
        names += [f"{key}.{name}" for name in default] if isinstance(default, dict) else [key]
    assert first_cells(section("Settings")) == names


def test_the_values_shown_are_all_values_and_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = yaml_block(section("Values of the manifests"))
    (tmp_path / "values.yaml").write_text(block)
    assert main(["manifests", "--values", str(tmp_path / "values.yaml")]) == 0
    assert "kind: DaemonSet" in capsys.readouterr().out
    shown = re.findall(r"(?m)^(\w+):", block)
    assert shown == [field.alias or name for name, field in Values.model_fields.items()]


def test_what_is_to_be_deleted_after_a_removal_is_all_that_is_ever_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the values, in both modes: all kinds, by labels that all objects have."""
    deletes = re.findall(r"kubectl delete (-A )?-l (\S+)=(\S+) (?:\\\n +)?(\S+)", section("Uninstalling"))
    deleted = {
        (kind, bool(everywhere), label, value)
        for everywhere, label, value, kinds in deletes
        for kind in kinds.split(",")
    }
    values = yaml.safe_load(yaml_block(section("Values of the manifests"))) | {"gardener": True}
    values["settings"]["status"]["listen"] = ":9464"  # where Prometheus reaches it
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    made = []
    for mode in ("install", "remove"):
        argv = ["manifests", "--values", str(tmp_path / "values.yaml"), "--agent", "--mode", mode]
        assert main([*argv, "--monitoring"]) == 0
        made += list(yaml.safe_load_all(capsys.readouterr().out))
    for thing in made:
        metadata = thing["metadata"]
        found = {
            (thing["kind"].lower(), "namespace" in metadata, label, value)
            for label, value in metadata["labels"].items()
        }
        assert found & deleted, thing
    marks = (STATUS, PAUSE_ANNOTATION, LAST_FAILURE, READY_LABEL, NOT_READY_TAINT)
    assert {str(mark) for mark in marks} <= set(re.findall(r"(\S+/\S+)-(?=\s)", section("Uninstalling")))


def test_every_metric_is_explained_and_no_other() -> None:
    page = render_page("/metrics", DaemonState(Mode.INSTALL, Phase.STARTING, False), "1")
    assert page is not None
    served = set(re.findall(r"(?m)^# TYPE cri_resmgr_installer_(\w+)", page.text))
    assert {cell.partition("{")[0] for cell in first_cells(section("Metrics", MONITORING))} == served


def test_every_phase_is_explained() -> None:
    assert first_cells(section("Phases", MONITORING)) == [phase.value for phase in Phase]


def test_every_exit_code_is_explained() -> None:
    classes = {InstallerError}
    for known in (each for _ in range(3) for each in tuple(classes)):
        classes.update(known.__subclasses__())
    codes = {each.exit_code for each in classes}
    explained = re.findall(r"(?m)^\| (\d+)", section("Exit codes"))
    assert codes <= {int(code) for code in explained}


def test_the_codes_of_refusals_exist() -> None:
    codes = first_cells(section("Refused (exit 4)", RUNBOOKS))
    assert len(codes) > 20
    assert [code for code in codes if f'"{code}"' not in SOURCES] == []


def test_every_kind_of_event_is_listed() -> None:
    kinds = set(re.findall(r'(?<![\w.])Event\(\s*"([^"]*)"', SOURCES))
    assert len(kinds) > 5
    assert kinds <= set(first_cells(section("Logs", MONITORING)))


def test_every_package_is_described_and_no_other() -> None:
    program = ROOT / "installer"
    found = (entry for entry in program.glob("[a-z]*") if entry.is_file() or (entry / "__init__.py").exists())
    packages = {entry.name + "/" * entry.is_dir() for entry in found}
    modules = (program / package for package in ("node", "daemon", "cluster"))
    inside = {entry.name for package in modules for entry in package.glob("[a-z]*.py")}
    beside = {"charts/", "units/", "templates/", "tests/"}
    assert set(first_cells(section("The packages", ARCHITECTURE))) == packages | inside | beside


@cache
def said() -> str:
    """Every text of the program and of the guard, a line each, without docstrings and what is filled in."""
    found = re.findall(r"[\"']([^\"'\n]*)[\"']", re.sub(r"\$\{?\w+\}?", "\0", GUARD.read_text()))
    for path in (ROOT / "installer").rglob("*.py"):
        tree = ast.parse(path.read_text())
        passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts]
            found += ["".join(texts)] if id(node) not in passed and texts != ["\0"] else []
    return "\n".join(" ".join(text.split()) for text in found)


def quotes(page: str) -> list[str]:
    """What stands in backquotes and is neither a command nor an excerpt of a file: at least three words."""
    spans = re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```|^    .*?$", "", page))
    texts = [" ".join(span.replace("\\|", "|").split()) for span in spans]
    return [text for text in texts if text.count(" ") > 1 and not NO_QUOTE.match(text)]


def made_up(quote: str) -> list[str]:
    """The parts of a quote that the program never says, between what it fills in: names, numbers, paths."""
    filled = r"\.\.\.|[:;,()]|\S*(?:[A-Z]{2}|\d|\w[./=]\w)\S*"
    parts = [part.strip() for part in re.split(filled, quote) if part.strip()]
    return [part for part in parts if not re.search(rf"(?<![\w-]){re.escape(part)}(?![\w-])", said())]


@pytest.mark.parametrize(
    "name",
    ["README.md"]
    + [
        f"docs/{page}.md"
        for page in (
            "operations",
            "permissions",
            "policies",
            "monitoring",
            "runbooks",
            "fleet",
            "gardener",
        )
    ],
)
def test_every_message_that_is_quoted_is_one_of_ours(name: str) -> None:
    found = [each for each in quotes((ROOT / name).read_text()) if each not in QUOTED_OF_OTHERS]
    assert len(found) > 15 or name != "docs/runbooks.md"
    assert {each: parts for each in found if (parts := made_up(each))} == {}


def test_a_quote_that_was_made_up_is_found() -> None:
    (quote,) = quotes("| `unwell: the relay\nhas gone fishing for 12 s` | `kubectl get pods -A` |")
    assert made_up(quote) == ["the relay has gone fishing for"]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{page.name}: {target}"
