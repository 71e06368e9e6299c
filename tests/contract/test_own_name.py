"""What is installed has a name of its own: another project on PyPI is called `installer`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
COMMAND = "import sys; from cri_resmgr_installer import main; sys.argv[0] = 'x'; sys.exit(main())"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pip lays out our wheel, beside the other project."""
    place = tmp_path_factory.mktemp("packages")
    for name in WHEEL["only-include"]:
        ignored = shutil.ignore_patterns("__pycache__", "_wheel")
        shutil.copytree(
            ROOT / name, place / WHEEL["sources"].get(name, name), ignore=ignored, dirs_exist_ok=True
        )
    for source, target in WHEEL["force-include"].items():
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile
        copy(ROOT / source, place / target)
    (place / "installer").mkdir()
    (place / "installer/__init__.py").write_text('__version__ = "0.7.0"\n')
    return place


def run(packages: Path, *argv: str) -> str:
    """In a directory and an environment that have neither."""
    # The libraries are those of this environment; what leads to the checkout is not.
    theirs = tuple(str(ROOT / name) for name in ("installer", "tests"))
    others = f"[each for each in sys.path if each != {str(ROOT)!r} and not each.startswith({theirs!r})]"
    code = f"import sys; sys.path = [{str(packages)!r}, *{others}]\n"
    words = [sys.executable, "-P", "-c", code + argv[0], *argv[1:]]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_are_there(packages: Path) -> None:
    assert {each.name for each in packages.iterdir()} == {"cri_resmgr_installer", "installer"}
    assert run(packages, "import installer; print(installer.__version__)") == "0.7.0\n"
    assert run(packages, COMMAND, "--version").startswith("cri-resmgr-installer ")
    assert "kind: DaemonSet" in run(packages, COMMAND, "manifests", "--image", "example.org/image:1")
    assert run(packages, COMMAND, "explain", "held").startswith("held\n")


def test_a_child_of_the_daemon_finds_its_own_package(packages: Path) -> None:
    ours = packages / "cri_resmgr_installer"
    code = (
        f"sys.path.insert(0, {str(ours)!r}); from installer.host.command import OURSELVES; print(*OURSELVES)"
    )
    program, *words = run(packages, code).split()
    assert words == ["-P", str(ours / "installer/cli/__main__.py")]
    done = subprocess.run([program, *words, "--version"], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cri-resmgr-installer ")
