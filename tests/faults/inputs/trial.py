"""One hostile input: how it is tried, and what a good end is."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from installer.errors import InstallerError
from installer.report.events import report_error

Check = Callable[[Any, Path], str]

_PATIENCE = 20.0  # seconds of one example: far more than any takes, far less than what never ends
_EXITS = {2, 4}
_NOT_FOR_A_TERMINAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


@dataclass(frozen=True, slots=True)
class Trial:
    """`check` gets an input and a directory for its files, and says what is wrong; empty: it held.
    `always` are inputs that chance would find too rarely."""

    name: str
    inputs: st.SearchStrategy[Any]
    check: Check
    always: Sequence[Any] = ()


def end_of(action: Callable[[], object]) -> str:
    """What is wrong with the way that an action ends; it is quick, and good, or refused as it should be."""
    started = time.monotonic()
    wrong = ""
    try:
        action()
    except InstallerError as error:
        wrong = wrong_error(error)
    except (Exception, RecursionError) as error:
        wrong = f"{type(error).__name__}: {error}"[:300]
    lasted = time.monotonic() - started
    return wrong or (f"it took {lasted:.0f} s" if lasted > _PATIENCE else "")


def wrong_error(error: InstallerError) -> str:
    """What is wrong with an error of ours: its exit code, or how it reads."""
    if error.exit_code not in _EXITS:
        return f"exit {error.exit_code}: {error.message}"[:300]
    for output in ("text", "json"):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, "utf-8", write_through=True)
        report_error(error, output, stream)
        said = raw.getvalue().decode()
        if _NOT_FOR_A_TERMINAL.search(said):
            return f"not for a terminal: {said[:200]!r}"
        if not error.message.strip() or len(said) > 500_000:
            return f"{len(said)} characters said"
        if output == "json":
            json.loads(said)
    return ""


def try_out(trial: Trial, amount: int, directory: Path) -> list[str]:
    """Tries what is always tried, and so many others; a line for each that did not hold."""
    return _always(trial, trial.always, directory) or _search(trial, amount, directory, derandomize=False)


def try_some(trial: Trial, amount: int, directory: Path, always: int = 1) -> list[str]:
    """The same, but the same examples each time; of what is always tried, each of number `always`."""
    found = _always(trial, trial.always[::always], directory)
    return found or _search(trial, amount, directory, derandomize=True)


def _always(trial: Trial, examples: Sequence[Any], directory: Path) -> list[str]:
    wrongs = ((example, trial.check(example, directory)) for example in examples)
    return [f"{trial.name}: {example!r:.300}: {wrong}" for example, wrong in wrongs if wrong]


def _search(trial: Trial, amount: int, directory: Path, *, derandomize: bool) -> list[str]:
    """One line at most, with the smallest example."""

    @limits(
        max_examples=amount,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(trial.inputs)
    def attempt(example: object) -> None:
        wrong = trial.check(example, directory)
        assert not wrong, f"{example!r:.500}: {wrong}"

    try:
        attempt()
    except Exception as failed:
        return [f"{trial.name}: {(str(failed) or repr(failed)).splitlines()[0]}"]
    return []
