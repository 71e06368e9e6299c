"""Where no throwaway host can boot, everybody who needs one says so in a line, and tests are skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DROPPED = ("setpriv", "--bounding-set=-sys_admin", "--")
NO_NETWORK = ("setpriv", "--bounding-set=-net_admin", "--")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
REASONS = {
    DROPPED: "root may not mount here, CAP_SYS_ADMIN is needed",
    NO_NETWORK: "root may not start a network here, CAP_NET_ADMIN is needed",
    NOBODY: "not root",
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives up rights that it does not have")


@pytest.fixture(params=REASONS, ids=["a container", "without a network", "a person"])
def prefix(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    if subprocess.run([*found, sys.executable, "-c", "import tests"], cwd=ROOT, check=False).returncode:
        pytest.skip("nobody else may read this checkout")
    return found


def run(prefix: tuple[str, ...], *argv: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-B", "-m", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("hack/demo", ["hack.walkthrough"]),
        ("hack/bench", ["hack.measure", "1"]),
        ("hack/faults", ["tests.faults", "unitfiles", "--amount", "1"]),
    ],
)
def test_what_needs_a_host_ends_with_the_reason(prefix: tuple[str, ...], name: str, argv: list[str]) -> None:
    ended = run(prefix, *argv)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{name}: no throwaway host: {REASONS[prefix]}")
    assert ended.stderr.count("\n") == 1


def test_the_host_level_skips_with_the_reason(prefix: tuple[str, ...]) -> None:
    ended = run(prefix, "pytest", "-p", "no:cacheprovider", "-q", "tests/host/test_cli.py")
    assert ended.returncode == 0, ended.stdout
    assert f"no throwaway host: {REASONS[prefix]}" in ended.stdout
