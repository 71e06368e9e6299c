"""The command line: what is asked for, what is wrong with it, help; output is no reason to fail."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from installer import __version__
from installer.cli import main
from installer.cli.grammar import INTERNAL_VERBS, build_parser
from installer.cli.options import parse_options
from installer.errors import unforeseen
from installer.report.terminal import SteadyStream

WRONG = {
    ("nonsense",): "unknown command 'nonsense'; expected one of plan, install, remove, run",
    ("statsu",): "unknown command 'statsu'; did you mean status?",
    (): "COMMAND",
    ("install", "--nonsense"): "unknown option --nonsense",
    ("install", "--rety"): "unknown option --rety; did you mean --retry?",
    ("install", "--retr"): "unknown option --retr; did you mean --retry?",
    ("install", "--adopt"): "--adopt was renamed to --take-over",
    ("--cofnigs=/x", "plan"): "unknown option --cofnigs; did you mean --configs?",
    ("--diff", "plan"): "--diff belongs after `plan`: `cri-resmgr-installer plan --diff`",
    ("--retry", "install"): "--retry belongs after `install`",
    ("plan", "now"): "unexpected argument 'now'",
    ("plan", "--mode", "x"): "argument --mode: invalid choice: 'x'",
    ("--config",): "argument --config: expected one argument",
    ("plan", "--configs", "/x", "--default-configs"): "exclude each other",
    ("manifests", "--image=a:1", "--for=operator"): "--chart-ref: need --gardener-registration",
    ("plan", "--config="): "argument --config: must not be empty",
    ("uninstall", "--yes", "--name", ""): "argument --name: must not be empty",
}
every_error = pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=[" ".join(w) for w in WRONG])


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRI_RESMGR_INSTALLER_OUTPUT", raising=False)


@every_error
@pytest.mark.parametrize("asked", ["--output=json", "--output json", "environment"])
def test_a_usage_error_is_a_line_of_json(
    words: tuple[str, ...],
    message: str,
    asked: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if asked == "environment":
        monkeypatch.setenv("CRI_RESMGR_INSTALLER_OUTPUT", "json")
        asked = ""
    assert main([*asked.split(), *words]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)
    assert (error["kind"], error["data"]["exitCode"], err) == ("error", 2, "")
    assert message in error["message"]
    assert message in error["data"]["faults"][0]


@every_error
def test_and_text_otherwise(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert not [verb for verb in INTERNAL_VERBS if verb in err]


@pytest.mark.parametrize("words", [("--output",), ("--output", "xml"), ("--output=text", "nonsense")])
def test_what_does_not_ask_for_json_gets_text(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRI_RESMGR_INSTALLER_OUTPUT", "json" if words[-1] == "nonsense" else "")
    assert main([*words, "plan"] if words[-1] != "--output" else ["plan", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_bad_environment_is_a_line_of_json_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRI_RESMGR_INSTALLER_TAKE_OVER", "yes")
    assert main(["status", "--output=json"]) == 2
    assert "must be true or false" in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize(
    "verb", ["plan", "install", "remove", "status", "history", "run", "report", "translate"]
)
def test_each_command_offers_the_outputs_that_it_has(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"report": "html", "translate": "yaml"}
    shown = build_parser()[1][verb].format_help()
    assert [
        each for each in ("html", "yaml") if each in shown.partition("--output")[2].partition("}")[0]
    ] == ([own[verb]] if verb in own else [])
    assert main([verb, "--output", "svg"]) == 2
    assert "invalid choice: 'svg'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gi", "gi.repository", "pydbus"])
def test_a_python_without_gobject_is_no_bug(name: str) -> None:
    error = unforeseen(ModuleNotFoundError(f"No module named {name!r}", name=name))
    assert error.exit_code == 4
    assert name in error.message
    assert "apt-get install python3-gi" in error.hint
    assert "this is a bug" in unforeseen(ModuleNotFoundError("No module named 'x'", name="x")).hint


def test_the_version_is_said_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"cri-resmgr-installer {__version__}\n")


def test_help_explains_each_command_and_option_that_is_for_people() -> None:
    parser, verbs = build_parser()
    shown = parser.format_help()
    assert [verb for verb in INTERNAL_VERBS if f"\n    {verb}" in shown] == []
    for verb, its in verbs.items():
        if verb in INTERNAL_VERBS:
            continue
        assert f"\n    {verb} " in shown
        page = its.format_help()
        assert f"cri-resmgr-installer {verb}" in page
        assert "\nexample:\n" in page
        options = [action for action in its._actions if action.help != argparse.SUPPRESS]
        assert [action.option_strings for action in options if not action.help] == []


@pytest.mark.parametrize(
    ("words", "environment", "configs", "default"),
    [
        ((), {}, None, False),
        (("--configs", "/x"), {}, "/x", False),
        ((), {"CONFIGS": "/x"}, "/x", False),
        (("--default-configs",), {"CONFIGS": "/x"}, None, True),
        ((), {"DEFAULT_CONFIGS": "true"}, None, True),
        (("--configs", "/x"), {"DEFAULT_CONFIGS": "true"}, "/x", False),
        ((), {"DEFAULT_CONFIGS": "false"}, None, False),
    ],
)
def test_a_flag_for_the_configs_beats_the_environment(
    words: tuple[str, ...],
    environment: dict[str, str],
    configs: str | None,
    default: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"CRI_RESMGR_INSTALLER_{name}", value)
    options = parse_options(["plan", *words])[1]
    assert (options.configs, options.default_configs) == (configs and Path(configs), default)


@pytest.mark.parametrize("output", ["/dev/full", "a pipe without a reader", "closed"])
def test_output_that_nobody_takes_changes_nothing(output: str) -> None:
    """The command ends as it would have, without a word of Python's own."""
    argv = [sys.executable, "-m", "installer.cli", "--help"]
    read, write = os.pipe()
    os.close(read)
    if output != "a pipe without a reader":
        argv = ["sh", "-c", f'exec "$@" >{"&-" if output == "closed" else output}', "sh", *argv]
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_error_that_nobody_takes_has_its_exit_code() -> None:
    argv = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-m", "installer.cli", "nonsense"]
    assert subprocess.run(argv, timeout=60, check=False).returncode == 2


def test_a_character_that_the_locale_has_not_is_escaped() -> None:
    raw = io.BytesIO()
    stream = SteadyStream(io.TextIOWrapper(raw, "latin-1"))
    stream.write("für 中文\n")
    stream.flush()
    assert raw.getvalue() == b"f\xfcr \\u4e2d\\u6587\n"
