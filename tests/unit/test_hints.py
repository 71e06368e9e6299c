"""Each command that a message names exists, with its options, and is what the reader has to type."""

from __future__ import annotations

import ast
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.cli.grammar import build_parser
from installer.cli.options import parse_options
from installer.report.terminal import SteadyStream, retyped

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`cri-resmgr-installer ([^`]*)`")
_BARE = re.compile(r"`((?:plan|install|remove|status|history|report|rollout|uninstall|translate) -[^`]*)`")
_HOST = ("plan", "install", "remove", "status")


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
    return sorted({each.partition(" | ")[0] for each in found if each[0] not in "-X"})


@pytest.mark.parametrize("command", commands())
def test_a_command_in_a_message_can_be_typed(command: str) -> None:
    arguments, _options = parse_options(shlex.split(command))
    assert arguments.command in build_parser()[1]


def test_there_are_commands_in_messages() -> None:
    assert {"install", "remove", "install --retry", "remove --without-record"} <= set(commands())


TYPED = ["--payload", "/root/my payload", "--configs=/root/configs", "--host-root", "/", "--config", "s.yaml"]


@pytest.mark.parametrize("command", [each for each in commands() if each.split()[0] in _HOST])
def test_it_has_the_options_that_the_person_had_typed(command: str) -> None:
    options = parse_options([*TYPED, "install"])[1]
    stream = io.StringIO()
    steady = SteadyStream(stream)
    steady.typed = options.typed
    steady.write(f"hint: then `cri-resmgr-installer {command}`, or wait\n")
    match = re.fullmatch("hint: then `(.*)`, or wait\n", stream.getvalue())
    assert match
    program, *words = shlex.split(match[1])
    again, its = parse_options(words)
    assert program == "cri-resmgr-installer"
    assert (its.payload, its.configs, its.config) == (options.payload, options.configs, options.config)
    assert again.command == command.split()[0]


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ("`install --retry`", "--payload /p", "`cri-resmgr-installer --payload /p install --retry`"),
        ("`cri-resmgr-installer plan`", "--payload /p", "`cri-resmgr-installer --payload /p plan`"),
        ("`cri-resmgr-installer plan`", "", "`cri-resmgr-installer plan`"),
        ("`install` and `remove` change nothing", "--payload /p", "`install` and `remove` change nothing"),
        ("`cri-resmgr-installer history`", "--payload /p", "`cri-resmgr-installer history`"),
        ("`cri-resmgr-installer rollout retry`", "--payload /p", "`cri-resmgr-installer rollout retry`"),
        ("`systemctl status kubelet`", "--payload /p", "`systemctl status kubelet`"),
    ],
)
def test_other_commands_stay_as_they_are(text: str, options: str, wanted: str) -> None:
    assert retyped(text, options) == wanted
