"""Hostile input, by the thousand: whatever an operator or a node hands us, a run ends as the contract says.

Everything goes in where the command line puts it in. A trial holds when the input is taken, or refused
with an error of ours that people and machines can read; and, where it says so, when what was made of it
holds exactly what was put in.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from installer.configs import load_configs
from installer.errors import InstallerError
from installer.report import report_error
from installer.settings import load_settings
from tests.faults.texts import every_value, spoilt

Report = Callable[[str, int, Sequence[str]], None]
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


_SETTINGS = (
    """apiVersion: cri-resmgr-installer/v1
mode: install
proxy:
  runtimeEndpoint: unix:///run/containerd/containerd.sock
  agent: enabled
  startTimeoutSeconds: 20
configs: {resetCached: false}
kubelet:
  unit: kubelet.service
  strategy: auto
  dropInDirectory: /etc/systemd/system
  healthzUrl: http://127.0.0.1:10248/healthz
  settleSeconds: 10
removal:
  onTermination: keep
rollout:
  spreadSeconds: 0
status:
  listen: 127.0.0.1:8080
""",
    "kubelet: {guardSeconds: 15, acceptStaticManagers: true}\n",
    "mode: remove\n",
)


def _check_settings(content: bytes, directory: Path) -> str:
    file = directory / "settings.yaml"
    file.write_bytes(content)
    return end_of(lambda: load_settings(file))


_CONFIG = (
    """policy:
  Active: topology-aware
  ReservedResources:
    CPU: 750m
  AvailableResources:
    CPU: cpuset:0-3
logger:
  Debug: cache
dump:
  Config: "off:.*,short:(Create|Start)"
instrumentation:
  HTTPEndpoint: ":8891"
""",
    "policy.Active: none\nlogger.Debug: x\n",
)
_OPTIONS = (
    'EXTRA_OPTIONS="--metrics-interval 30s --disable-ui"\n',
    "# a comment\n\nEXTRA_OPTIONS=--disable-ui\n",
)


def _check_configs(contents: tuple[bytes | None, ...], directory: Path) -> str:
    for name, content in zip(("fallback.cfg", "force.cfg", "EXTRA_OPTIONS.cfg"), contents, strict=True):
        (directory / name).unlink(missing_ok=True)
        if content is not None:
            (directory / name).write_bytes(content)
    return end_of(lambda: load_configs(directory))


TRIALS = (
    Trial("settings", spoilt(_SETTINGS), _check_settings, every_value(_SETTINGS)),
    Trial(
        "configs directories",
        st.tuples(
            *(st.none() | spoilt(_CONFIG) for _ in ("fallback", "force")), st.none() | spoilt(_OPTIONS)
        ),
        _check_configs,
        [(content, None, None) for content in every_value(_CONFIG)],
    ),
)


def try_out(trial: Trial, amount: int, directory: Path, *, derandomize: bool = False) -> list[str]:
    """Tries so many examples, other ones each time unless `derandomize`; one line for what did not hold,
    with the smallest example of it."""

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

    found = [
        f"{example!r:.300}: {wrong}" for example in trial.always if (wrong := trial.check(example, directory))
    ]
    if found:
        return [f"{trial.name}: {line}" for line in found]
    try:
        attempt()
    except AssertionError as failed:
        return [f"{trial.name}: {str(failed).splitlines()[0]}"]
    return []


def run(report: Report, amount: int) -> None:
    """Tries so many examples of each trial, chosen at random."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        for trial in TRIALS:
            report(trial.name, len(trial.always) + amount, try_out(trial, amount, Path(directory)))
