"""Our manifests at a real API server (`--kubernetes DIR`, with kubectl there or on the path): applied a
second time they change nothing, so that whoever applies them all the time sees what has really changed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.cli import main
from installer.model.names import Mode
from tests.lib.throwaway.controlplane import ControlPlane, find_programs

VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all": {"annotateNode": True, "agent": {"enabled": True}, "settings": {"status": {"listen": ":9464"}}},
    "restricted": {"profile": "restricted"},
    "gardener": {"gardener": True, "agent": {"enabled": True}},
}
Apply = Callable[[Path], list[str]]


@pytest.fixture(scope="module")
def apply(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apply]:
    """Says what became of each object."""
    programs = request.config.getoption("--kubernetes")
    if programs is None:
        pytest.skip("needs a real API server: --kubernetes DIR")
    kubectl = shutil.which("kubectl", path=str(programs)) or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl, beside the API server or on the path")
    with ControlPlane(find_programs(programs), tmp_path_factory.mktemp("plane")) as plane:

        def run(manifests: Path) -> list[str]:
            argv = [kubectl, f"--kubeconfig={plane.kubeconfig('admin')}", "apply", "-f", str(manifests)]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        yield run


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", VALUES)
def test_what_is_applied_again_is_unchanged(
    apply: Apply, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, mode: Mode
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"images": {"installer": "image:1"}} | VALUES[name]))
    assert main(["manifests", "--values", str(values), "--mode", mode.value]) == 0
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(capsys.readouterr().out)
    assert len(apply(manifests)) > 3
    assert [line for line in apply(manifests) if not line.endswith(" unchanged")] == []
