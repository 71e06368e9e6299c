"""The program on the Python of a throwaway host or a machine, as an installed wheel has it.

It is in a venv on what the distribution has, with the libraries that the image has.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from tests.lib.cache import digest_of, keep_newest, locked, partial_of, run, tree_parts
from tests.lib.tree import KEPT, PLACE

TOP = Path(__file__).parents[2]
CONSTRAINTS = TOP / "image/constraints.txt"

LIBRARIES_LOCK = "libraries.lock"

#: Where it works, and nowhere else.
KIT = "/mnt/kit"
PROGRAM = f"{KIT}/program/bin/cri-resmgr-installer"
PYTHON = f"{KIT}/program/bin/python3"

CONFIGURATION = "home = /usr/bin\ninclude-system-site-packages = true\n"
COMMAND = f"#!{PYTHON}\nfrom cri_resmgr_installer import main\n\nraise SystemExit(main())\n"
COMPILE = 'mount --bind "$2" "$1/mnt" && exec chroot "$1" /usr/bin/python3 -m compileall -qq /mnt'


def lay_program(target: Path, system: Path) -> None:
    """A venv with the program at `target`, for the Python of a tree; it works below KIT/program only."""
    run("cp", "-a", libraries(system), target)
    (packages,) = target.glob("lib/python3*/site-packages")
    own = packages / "cri_resmgr_installer"  # as in a wheel
    assets = own / "installer/_assets"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(TOP / "installer/cli/_wheel" / own.name, own, ignore=ignored)
    ignored = shutil.ignore_patterns("__pycache__", "_wheel")
    shutil.copytree(TOP / "installer", own / "installer", ignore=ignored)
    for name in ("units", "templates"):
        shutil.copytree(TOP / name, assets / name)
    # A kubelet's tree may have links that lead somewhere on its node only.
    ignored = shutil.ignore_patterns("__pycache__", "cases")
    shutil.copytree(TOP / "tests", packages / "tests", symlinks=True, ignore=ignored)
    (packages / "tests.pth").write_text(f"{own.name}\n")  # the tests import parts of the program
    for name in (own.name, "tests"):
        compile_below(packages / name, system)
    command = target / "bin/cri-resmgr-installer"
    command.write_text(COMMAND)
    command.chmod(0o755)


def libraries(system: Path) -> Path:
    """A venv of a tree's Python with what the program needs of PyPI, without the program."""
    python = (system / "usr/bin/python3").readlink().name
    needed = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    parts = [*(word.encode() for word in (system.name, *needed)), *tree_parts(Path(__file__), CONSTRAINTS)]
    place = PLACE / f"libraries-{digest_of(parts)}"
    with locked(LIBRARIES_LOCK):
        if not place.exists():
            with partial_of(place) as partial:
                make_libraries(partial, python, needed)
                compile_below(partial, system)
        os.utime(place)
        keep_newest(PLACE, "libraries-*", KEPT)
    return place


def make_libraries(venv: Path, python: str, needed: Iterable[str]) -> None:
    """What `python -m venv` and pip make, for a Python that is not this machine's."""
    packages = venv / f"lib/{python}/site-packages"
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin/python3").symlink_to("/usr/bin/python3")
    (venv / "pyvenv.cfg").write_text(CONFIGURATION)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile")
    version = ("--python-version", python.removeprefix("python"), "--only-binary", ":all:")
    run(*pip, *version, "--target", packages, "--constraint", CONSTRAINTS, *needed)


def compile_below(directory: Path, system: Path) -> None:
    """Compiles what is in a directory for the Python of a tree. It would do so at each start where it may not
    write."""
    run("unshare", "--mount", "--propagation", "private", "sh", "-ec", COMPILE, "sh", system, directory)
