"""What the guard makes of the value that kubelet's variable has, whatever that is."""

from __future__ import annotations

import resource
import stat

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as limits

from installer.inputs.systemd_syntax import split_words
from tests.contract.guard.node import FLAG, NAME, Node
from tests.faults.inputs.texts import hostile_text
from tests.lib.rules import rule

NASTY = [
    "", "plain", "--a=b --c d", "two  blanks", " blank in front", "blank behind ", "tab\there",
    "line\nfeed", "ends in line feed\n", "carriage\rreturn", "esc\x1b[31m", "bell\a and \x01 \x7f",
    "percent %n %%", "dollar $HOME ${HOME} $$ $(id)", "`id`", 'double "quotes"', "single 'quotes'",
    'both "it\'s"', "back\\\\slash", "back\\\\", "hash # semicolon ; star * ? [a-z] !",
    "ümläut ☃ 𐍈", '= =a= ~ {a,b} \\$x \\" \\`',
]  # fmt: skip


def test_compose_puts_the_flag_behind_the_value(node: Node) -> None:
    node.serve()
    done = node.guard("compose", "--v=2")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{NAME}: relay: ready, waited ")
    assert done.stdout.count("\n") == 1
    assert node.composed.read_text() == f'ARGS="--v=2 {FLAG}"\n'
    assert stat.S_IMODE(node.composed.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.run.stat().st_mode) == 0o755
    assert sorted(path.name for path in node.run.iterdir()) == ["endpoint", "kubelet.env", "relay-start"]


def test_compose_of_a_variable_that_is_not_set(node: Node) -> None:
    node.serve()
    node.guard("compose")
    assert node.composed_value() == FLAG


@pytest.mark.parametrize("value", NASTY)
def test_nasty_values_round_trip(node: Node, value: str) -> None:
    node.serve()
    done = node.guard("compose", value)
    assert done.returncode == 0, done.stdout
    assert node.composed_value() == (f"{value} {FLAG}" if value else FLAG)


@pytest.mark.parametrize(
    "value", ['--a="b', "it's", "--a=b\\", "x\\\\\\", '"it\\"', "'\"", '"\'" "', "a 'b\\' c"]
)
def test_a_value_that_would_swallow_the_flag(node: Node, value: str) -> None:
    node.serve()
    done = node.guard("compose", value)
    assert "base endpoint: the value of ARGS" in done.stdout
    assert not node.on_relay


@rule("R12")
@limits(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(value=hostile_text.map(lambda text: text.replace("\0", "").encode("utf-8", "surrogatepass")))
def test_no_value_of_the_base_breaks_out(dash: Node, value: bytes) -> None:
    """Behind it stands our flag, as the last word, or there is no file."""
    dash.serve()
    (dash.run / "containers-unknown").unlink(missing_ok=True)
    dash.guard("compose", value)
    if dash.on_relay:
        composed = dash.composed_value().encode()
        assert composed == value + (b" " if value else b"") + FLAG.encode()
        assert split_words(composed.decode())[-1] == FLAG
    else:
        assert not closed_and_utf8(value)


def closed_and_utf8(value: bytes) -> bool:
    """Whether a word that follows on it would be one."""
    try:
        return split_words(f"{value.decode()} x")[-1] == "x"
    except ValueError:
        return False


@pytest.mark.parametrize("value", ['"it\'s"', "'\"'", '"a\\"b"', "\\'", '\\"', "a\\ b", "'a\\'b'"])
def test_a_value_with_closed_quotes(node: Node, value: str) -> None:
    node.serve()
    assert "relay: ready" in node.guard("compose", value).stdout
    assert node.composed_value() == f"{value} {FLAG}"


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"a\xc3",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5",
        b"\x80",
        b"\xc3(",
    ],
)
def test_a_value_that_is_not_utf_8(node: Node, value: bytes) -> None:
    """systemd would drop the file without a word."""
    node.serve()
    done = node.guard("compose", b"--label=" + value)
    assert "is not UTF-8" in done.stdout
    assert not node.on_relay


@pytest.mark.parametrize("variable", ["guard_root", "guard_run", "value", "KUBELET_EXTRA_ARGS"])
def test_the_variable_may_have_any_name(node: Node, variable: str) -> None:
    node.serve()
    node.guard("compose", "--v=2", CRI_RESMGR_GUARD_VARIABLE=variable)
    assert node.composed_value(variable) == f"--v=2 {FLAG}"


@pytest.mark.parametrize("variable", ["", "1A", "A-B", "A;id", "A}", "$(id)", "ä"])
def test_no_variable_no_file(node: Node, variable: str) -> None:
    node.serve()
    done = node.guard("compose", "x", CRI_RESMGR_GUARD_VARIABLE=variable)
    assert done.returncode == 1
    assert "base endpoint" in done.stdout
    assert not node.on_relay


@rule("R12")
@pytest.mark.parametrize(
    "piece", ["a", "\\\\", '\\"', '"a b" ', "'\"' ", "ä", "𐍈", "$(id) ", "--a=b\n"], ids=repr
)
def test_a_long_value_takes_no_long_time(node: Node, piece: str) -> None:
    node.serve()
    value = piece * (32_768 // len(piece.encode()))
    # Of the processor, not of the clock: the machine may have other work.
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert "relay: ready" in node.guard("compose", value).stdout
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began < 3
    assert node.composed_value() == f"{value} {FLAG}"


@rule("R12")
def test_a_value_that_is_too_long_is_left_alone(node: Node) -> None:
    node.serve()
    done = node.guard("compose", "a" * 32_769)
    assert "base endpoint: the value of ARGS is longer than 32768 bytes" in done.stdout
    assert not node.on_relay
