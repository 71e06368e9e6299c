"""A release: what says its version, and what is made of it. hack/release runs it, with Python alone."""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

TOP = Path(__file__).parents[1]
PROGRAM = Path("installer/__init__.py")
CHARTS = (Path("charts/cri-resmgr-installer/Chart.yaml"), Path("templates/chart/Chart.yaml"))
CHANGES = Path("CHANGELOG.md")
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?")
NODES, CONTROLLER = "cri-resmgr-installer", "gardener-extension-cri-resmgr"


def prepare(top: Path, version: str, date: str) -> None:
    """Writes version and date. Raises ValueError where there is nothing to release."""
    changes = (top / CHANGES).read_text()
    _, heading, rest = changes.partition("## [Unreleased]\n")
    said, _, _ = rest.partition("\n## [")
    if not said.strip():
        raise ValueError(f"{CHANGES}: nothing stands below [Unreleased]")
    (top / CHANGES).write_text(changes.replace(heading, f"{heading}\n## [{version}] - {date}\n", 1))
    _set(top / PROGRAM, r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"')
    for chart in CHARTS:
        for key in ("version", "appVersion"):
            _set(top / chart, rf"(?m)^{key}: .*$", f"{key}: {version}")


def _set(path: Path, pattern: str, line: str) -> None:
    text, count = re.subn(pattern, line, path.read_text())
    assert count == 1, path
    path.write_text(text)


def faults(top: Path, version: str) -> list[str]:
    """Why the checkout is not that version."""
    wanted = {PROGRAM: f'__version__ = "{version}"\n'}
    wanted |= dict.fromkeys(CHARTS, f"version: {version}\nappVersion: {version}\n")
    found = [
        f"{path}: is not of version {version}"
        for path, text in wanted.items()
        if text not in (top / path).read_text()
    ]
    if not re.search(rf"(?m)^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (top / CHANGES).read_text()):
        found.append(f"{CHANGES}: has no section [{version}] with a date")
    return found


def dirty(top: Path) -> bool:
    said = subprocess.run(
        ["git", "status", "--porcelain"], cwd=top, check=True, capture_output=True, text=True
    )
    return bool(said.stdout.strip())


def make(output: Path, version: str, payload: list[str], common: list[str]) -> None:
    """Images first: what is made of them has its digest with the rest. `payload` and `common` are options of
    hack/image; without a payload there are no images."""
    output.mkdir(parents=True, exist_ok=True)
    if left := sorted(each.name for each in output.iterdir()):
        raise ValueError(f"{output}: is not empty: {', '.join(left[:3])}")
    archives = []
    for name, what in ((NODES, payload), (CONTROLLER, ["--extension"])) if payload else ():
        archive = output / f"{name}-{version}.oci.tar"
        saved = ("--output", str(archive), "--sbom", str(output / f"{name}-{version}.spdx.json"))
        tag = f"localhost/{name}:{version}"
        subprocess.run([str(TOP / "hack/image"), *what, *common, "--tag", tag, *saved], check=True)
        archives += ["--image", str(archive)]
    subprocess.run([str(TOP / "hack/package"), "--output", str(output), *archives], check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=output, check=True)


_OF_PAYLOAD, _OF_IMAGES = ("payload", "sha256"), ("snapshot", "base", "engine", "ca")


def _given(asked: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    given = {name: getattr(asked, name) for name in names}
    return [word for name, value in given.items() if value for word in (f"--{name}", value)]


def main() -> None:
    parser = argparse.ArgumentParser("hack/release")
    parser.add_argument("version")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--output", type=Path, default=TOP / "dist")
    for option in (*_OF_PAYLOAD, *_OF_IMAGES):
        parser.add_argument(f"--{option}")
    asked = parser.parse_args()
    if not VERSION.fullmatch(asked.version):
        sys.exit(f"hack/release: not a version: {asked.version} (1.2.3)")
    if dirty(TOP):
        sys.exit("hack/release: the checkout has changes that are not committed")
    try:
        if asked.prepare:
            prepare(TOP, asked.version, datetime.now(UTC).strftime("%Y-%m-%d"))
            print("hack/release: read `git diff`, commit it, and run hack/release without --prepare")
            return
        if wrong := faults(TOP, asked.version):
            raise ValueError("\n".join([*wrong, f"`hack/release --prepare {asked.version}` writes them"]))
        payload, common = (_given(asked, names) for names in (_OF_PAYLOAD, _OF_IMAGES))
        if not asked.payload:
            print("hack/release: no --payload: the images are left out", file=sys.stderr)
        make(asked.output.resolve(), asked.version, payload if asked.payload else [], common)
    except ValueError as error:
        sys.exit(f"hack/release: {error}")
    sums = hashlib.sha256((asked.output / "SHA256SUMS").read_bytes()).hexdigest()
    print(f"hack/release: the digest of SHA256SUMS is {sums}; docs/releasing.md says how to sign it")


if __name__ == "__main__":
    main()
