"""Each command that a message names exists, with its options, and is what the reader has to type."""

from __future__ import annotations

import ast
import io
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from installer.cli.grammar import build_parser
from installer.cli.options import parse_options
from installer.report.terminal import OF_CLUSTER, OF_HOST, SteadyStream, retyped

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`cri-resmgr-installer ([^`]*)`")
_BARE = re.compile(r"`((?:plan|install|remove|status|history|report|rollout|uninstall|translate) -[^`]*)`")
_HOST = ("plan", "install", "remove", "status")
_CLUSTER = ("report", "rollout", "uninstall")
LAST = {"config": "/s.yaml", "payload": "/root/my payload", "configs": "/root/configs"}


def texts() -> Iterator[str]:
    """Every string of the program that a person may read, with X where a value comes."""
    for path in sorted((ROOT / "installer").rglob("*.py")):
        tree = ast.parse(path.read_text())
        told = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
                yield "".join(map(str, parts)).replace("`X ", "`cri-resmgr-installer ")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                yield node.value


def commands() -> list[str]:
    found = {match for text in texts() for pattern in (_NAMED, _BARE) for match in pattern.findall(text)}
    # One with a pipe goes on in another program; an option of several has only been chosen when it is typed.
    return sorted({each.partition(" | ")[0] for each in found if each[0] not in "-X("})


@pytest.mark.parametrize("command", commands())
def test_a_command_in_a_message_can_be_typed(command: str) -> None:
    arguments, _options = parse_options(shlex.split(command))
    assert arguments.command in build_parser()[1]


def test_there_are_commands_in_messages() -> None:
    assert {"install", "remove", "install --retry", "remove --without-record"} <= set(commands())


TYPED = ["--payload", "/root/my payload", "--configs=/root/configs", "--host-root", "/", "--config", "s.yaml"]


def on_host(text: str, words: str, last: Mapping[str, str] | None = None) -> str:
    options = parse_options(shlex.split(words))[1]
    return retyped(text, OF_HOST, partial(options.retype, last=lambda: last or {}))


def in_cluster(text: str, words: str) -> str:
    return retyped(text, OF_CLUSTER, parse_options(shlex.split(words))[1].retype_for_cluster)


@pytest.mark.parametrize("command", [each for each in commands() if each.split()[0] in _HOST])
def test_it_has_the_options_that_the_person_had_typed(command: str) -> None:
    options = parse_options([*TYPED, "install"])[1]
    stream = io.StringIO()
    steady = SteadyStream(stream)
    steady.retype = partial(on_host, words=shlex.join([*TYPED, "install"]), last=LAST)
    steady.write(f"hint: then `cri-resmgr-installer {command}`, or wait\n")
    match = re.fullmatch("hint: then `(.*)`, or wait\n", stream.getvalue())
    assert match
    program, *words = shlex.split(match[1])
    again, its = parse_options(words)
    assert program == "cri-resmgr-installer"
    assert (its.payload, its.configs, its.config) == (options.payload, options.configs, options.config)
    assert again.command == command.split()[0]


@pytest.mark.parametrize("command", [each for each in commands() if each.split()[0] in _CLUSTER])
def test_a_command_for_the_cluster_has_the_options_that_were_typed(command: str) -> None:
    typed = "report --context prod -n kube-system --name mine"
    text = in_cluster(f"then `cri-resmgr-installer {command}`", typed)
    match = re.fullmatch("then `cri-resmgr-installer (.*)`", text)
    assert match
    again, _ = parse_options(shlex.split(match[1]))
    assert again.context == "prod"
    assert again.namespace == ("X" if "--namespace" in command else "kube-system")
    assert again.name == ("X" if "--name " in command else "mine")


@pytest.mark.parametrize(
    ("text", "words", "wanted"),
    [
        ("`install --retry`", "--payload /p install", "`cri-resmgr-installer --payload /p install --retry`"),
        ("`cri-resmgr-installer plan`", "plan --payload /p", "`cri-resmgr-installer --payload /p plan`"),
        ("`cri-resmgr-installer plan`", "plan", "`cri-resmgr-installer plan`"),
        (
            "`install` and `remove` do nothing",
            "plan --payload /p",
            "`install` and `remove` do nothing",
        ),
        (
            "`cri-resmgr-installer history`",
            "--payload /p --host-root /h status",
            "`cri-resmgr-installer --host-root /h history`",
        ),
        ("`cri-resmgr-installer rollout retry`", "plan --payload /p", "`cri-resmgr-installer rollout retry`"),
        ("`systemctl status kubelet`", "plan --payload /p", "`systemctl status kubelet`"),
    ],
)
def test_other_commands_stay_as_they_are(text: str, words: str, wanted: str) -> None:
    assert on_host(text, words) == wanted


@pytest.mark.parametrize(
    ("command", "words", "wanted"),
    [
        (
            "install",
            "status",
            "--config /s.yaml --payload '/root/my payload' --configs /root/configs install",
        ),
        ("remove", "status", "--config /s.yaml remove"),
        ("history", "status", "history"),
        ("install", "--default-configs status", "--default-configs install"),
        ("install", "--payload /p plan", "--payload /p install"),
    ],
)
def test_where_nothing_is_given_it_has_what_the_last_run_had(command: str, words: str, wanted: str) -> None:
    """Its inputs, which belong together, and none of a run for which others are given now."""
    text = on_host(f"`cri-resmgr-installer {command}`", words, LAST)
    assert text == f"`cri-resmgr-installer {wanted}`"


def test_what_the_environment_gives_needs_not_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRI_RESMGR_INSTALLER_PAYLOAD", "/payload")
    assert on_host("`cri-resmgr-installer install`", "status", LAST) == "`cri-resmgr-installer install`"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("`kubectl get pods`", "`kubectl --context prod get pods`"),
        ("with kubectl", "with kubectl"),
        ("`rollout retry`", "`cri-resmgr-installer rollout retry --context prod --name mine`"),
        ("`cri-resmgr-installer status` on the node", "`cri-resmgr-installer status` on the node"),
        ("`cri-resmgr-installer report`", "`cri-resmgr-installer report --context prod --name mine`"),
    ],
)
def test_kubectl_asks_the_same_cluster(text: str, wanted: str) -> None:
    assert in_cluster(text, "--payload /p report --context prod --name mine") == wanted
