"""Usage errors: argparse's own words for people, JSON for whoever asked; output is no reason to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from installer.cli import main

WRONG = {
    ("nonsense",): "invalid choice: 'nonsense'",
    (): "COMMAND",
    ("install", "--nonsense"): "unrecognized arguments: --nonsense",
    ("plan", "--mode", "x"): "argument --mode: invalid choice: 'x'",
    ("--config",): "argument --config: expected one argument",
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
    assert error["data"]["hint"].startswith("usage: cri-resmgr-installer")


@every_error
def test_and_text_otherwise(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("usage: cri-resmgr-installer")
    assert message in err


@pytest.mark.parametrize("words", [("--output",), ("--output", "xml"), ("--output=text", "nonsense")])
def test_what_does_not_ask_for_json_gets_text(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRI_RESMGR_INSTALLER_OUTPUT", "json" if words[-1] == "nonsense" else "")
    with pytest.raises(SystemExit):
        main([*words, "plan"] if words[-1] != "--output" else ["plan", *words])
    assert capsys.readouterr().err.startswith("usage: ")


@pytest.mark.parametrize("output", ["/dev/full", "a pipe without a reader"])
def test_output_that_nobody_takes_changes_nothing(output: str) -> None:
    """The command ends as it would have, without a word of Python's own."""
    argv = [sys.executable, "-m", "installer.cli", "--help"]
    read, write = os.pipe()
    os.close(read)
    if output == "/dev/full":
        argv = ["sh", "-c", 'exec "$@" >/dev/full', "sh", *argv]
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
