"""What a release consists of, as files that are the same bytes for the same input. hack/package runs it."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from email.utils import formatdate
from pathlib import Path

import shtab  # type: ignore[import-not-found, unused-ignore]

from hack.manual import completing, manual_page
from installer import __version__

TOP = Path(__file__).parents[1]
DEBIAN = TOP / "hack/debian"
NAME = "cri-resmgr-installer"
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
PYTHONS = ("3.11", "3.12", "3.13")  # Debian 12, Ubuntu 24.04, Debian 13
BESIDE = (
    "annotated-types",
    "grpcio",
    "pydantic",
    "pydantic-core",
    "pydbus",
    "typing-extensions",
    "typing-inspection",
)
"""Libraries that the distributions lack or have too old; image/requirements.txt has their digests."""
BINARY = ("grpc", "pydantic_core")
LIB = f"usr/lib/{NAME}"


def make_python(output: Path, source: Path) -> None:
    """Wheel and sdist, which the checkers of PyPI find nothing wrong with."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, source)
    made = sorted([*output.glob("*.whl"), *output.glob("*.tar.gz")])
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    run(
        sys.executable,
        "-m",
        "check_wheel_contents",
        "--toplevel",
        "cri_resmgr_installer",
        *output.glob("*.whl"),
    )


def make_charts(output: Path, source: Path) -> None:
    """As `helm package` makes them, without a time of today."""
    for name, where in ((NAME, f"charts/{NAME}"), ("gardener-extension-cri-resmgr", "templates/chart")):
        archive = output / f"{name}-{__version__}.tgz"
        pack(source / where, archive, name, lambda path: path.parts[:1] != ("ci",))


def make_deb(output: Path, source: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        lay_program(root / LIB, source, Path(scratch, "wheel"))
        lay_documents(root, source)
        size = sum(
            each.stat().st_size for each in root.rglob("*") if each.is_file() and not each.is_symlink()
        )
        control = root / "DEBIAN"
        control.mkdir()
        text = (DEBIAN / "control").read_text()
        (control / "control").write_text(text.format(version=__version__, size=size // 1024))
        for script in ("postinst", "prerm"):
            write(control / script, (DEBIAN / script).read_text(), 0o755)
        files = sorted(each for each in (root / "usr").rglob("*") if each.is_file() and not each.is_symlink())
        sums = "".join(f"{digest(each, 'md5')}  {each.relative_to(root)}\n" for each in files)
        (control / "md5sums").write_text(sums)
        for each in [root, *root.rglob("*")]:
            if each.is_dir():
                each.chmod(0o755)
            elif not each.is_symlink() and not os.access(each, os.X_OK):
                each.chmod(0o644)
            os.utime(each, (EPOCH, EPOCH), follow_symlinks=False)
        package = output / f"{NAME}_{__version__}_amd64.deb"
        how = ("--root-owner-group", "-Zxz", "--threads-max=1", "--build")
        run("dpkg-deb", *how, root, package)


def lay_program(lib: Path, source: Path, wheel: Path) -> None:
    """A venv on the distribution's Python, whichever of PYTHONS that is: nothing in it is seen by others."""
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", wheel, source)
    (made,) = wheel.glob("*.whl")
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-compile",
        "--no-deps",
    )
    common = lib / "common"
    run(*pip, "--no-index", "--target", common, made)
    shutil.rmtree(common / "bin")
    for each in common.glob(f"{NAME.replace('-', '_')}-*.dist-info/direct_url.json"):
        record = each.with_name("RECORD")
        record.write_text(re.sub(r"(?m)^.*direct_url\.json.*\n", "", record.read_text()))
        each.unlink()
    requirements = wheel / "requirements.txt"
    requirements.write_text(chosen((TOP / "image/requirements.txt").read_text()))
    for version in PYTHONS:
        packages = lib / f"lib/python{version}/site-packages"
        tags = [f"--platform=manylinux{tag}_x86_64" for tag in ("2014", "_2_17", "_2_28")]
        which = (f"--python-version={version}", "--implementation=cp", *tags, "--only-binary=:all:")
        run(*pip, *which, "--require-hashes", "--requirement", requirements, "--target", packages)
        for each in list(packages.iterdir()):
            binary = each.name.startswith(BINARY) and not each.name.startswith("pydantic_core-")
            if not binary and (common / each.name).exists():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            elif not binary:
                each.rename(common / each.name)
        (packages / f"{NAME}.pth").write_text(f"/{LIB}/common\n")
    for each in [*lib.rglob("__pycache__"), *lib.glob("lib/*/site-packages/bin"), *common.glob("bin")]:
        shutil.rmtree(each, ignore_errors=True)
    (lib / "bin").mkdir()
    (lib / "bin/python3").symlink_to("../../../bin/python3")
    (lib / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    command = f"#!/{LIB}/bin/python3 -P\nfrom cri_resmgr_installer import main\n\nraise SystemExit(main())\n"
    write(lib / "bin" / NAME, command, 0o755)


def chosen(requirements: str) -> str:
    blocks = re.split(r"(?m)^(?=[a-z])", requirements)
    return "".join(each for each in blocks if each.partition("==")[0] in BESIDE)


def lay_documents(root: Path, source: Path) -> None:
    """Manual page and completion are made from the parser."""
    share = root / "usr/share"
    parser = completing({"FILE": shtab.FILE, "DIR": shtab.DIRECTORY})
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin" / NAME).symlink_to(f"../lib/{NAME}/bin/{NAME}")
    write(share / "bash-completion/completions" / NAME, shtab.complete(parser, "bash"))
    write(share / f"zsh/vendor-completions/_{NAME}", shtab.complete(parser, "zsh"))
    compress(share / f"man/man8/{NAME}.8.gz", manual_page(formatdate(EPOCH)[5:16].lstrip("0")).encode())
    doc = share / "doc" / NAME
    write(doc / "copyright", (DEBIAN / "copyright").read_text())
    compress(doc / "CHANGELOG.md.gz", (source / "CHANGELOG.md").read_bytes())
    compress(doc / "changelog.gz", debian_changelog().encode())
    for page in [source / "README.md", source / "SECURITY.md", *sorted((source / "docs").glob("*.md"))]:
        compress(doc / f"{page.relative_to(source)}.gz", page.read_bytes())
    for picture in sorted((source / "docs").glob("*.svg")):
        write(doc / "docs" / picture.name, picture.read_text())
    write(share / "lintian/overrides" / NAME, (DEBIAN / "lintian-overrides").read_text())


def debian_changelog() -> str:
    maintainer = re.search(r"(?m)^Maintainer: (.*)$", (DEBIAN / "control").read_text())
    assert maintainer
    date = formatdate(EPOCH, usegmt=False)
    said = f"  * What has changed is in /usr/share/doc/{NAME}/CHANGELOG.md.gz."
    return f"{NAME} ({__version__}) unstable; urgency=medium\n\n{said}\n\n -- {maintainer[1]}  {date}\n"


def make_image(output: Path, archive: Path) -> None:
    """One that hack/image has saved as an OCI archive: its members in order, without a time."""
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(archive) as given:
            given.extractall(scratch, filter="data")
        if not Path(scratch, "oci-layout").exists():
            raise SystemExit(
                f"hack/package: {archive}: no OCI archive: `hack/image --output NAME.oci.tar` makes one"
            )
        pack(Path(scratch), output / archive.name, "", compressed=False)


def pack(
    source: Path,
    archive: Path,
    prefix: str,
    wanted: Callable[[Path], bool] = lambda _: True,
    compressed: bool = True,
) -> None:
    """The files below `source` as a tar archive, in the order of their names."""
    with tempfile.TemporaryFile() as content:
        with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as made:
            for path in sorted(each for each in source.rglob("*") if each.is_file()):
                name = path.relative_to(source)
                if wanted(name):
                    member = tarfile.TarInfo(str(Path(prefix, name)))
                    member.size, member.mtime = path.stat().st_size, EPOCH
                    with path.open("rb") as stream:
                        made.addfile(member, stream)
        content.seek(0)
        with archive.open("wb") as target:
            if not compressed:
                shutil.copyfileobj(content, target)
                return
            with gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=EPOCH) as stream:
                shutil.copyfileobj(content, stream)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def compress(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def digest(path: Path, kind: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def export(target: Path) -> None:
    """The checkout without what git does not know, with the same modes and times everywhere."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, check=True, capture_output=True).stdout
    for name in names.decode().split("\0"):
        if name and (TOP / name).is_file():
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TOP / name, place)
            place.chmod(0o755 if os.access(TOP / name, os.X_OK) else 0o644)
            os.utime(place, (EPOCH, EPOCH))


def say(stage: str) -> None:
    print(f"hack/package: {stage}", file=sys.stderr, flush=True)


def run(*argv: str | Path) -> None:
    """Says nothing unless it fails."""
    done = subprocess.run([str(each) for each in argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"hack/package: {argv[0]} {argv[2]} failed:\n{done.stdout}{done.stderr}")


STAGES = {
    "python": "wheel and sdist, half a minute",
    "deb": "the Debian package with its libraries for each Python, some minutes",
    "charts": "both charts",
}
MAKERS = {"python": make_python, "deb": make_deb, "charts": make_charts}


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser("hack/package")
    parser.add_argument("--output", type=Path, default=TOP / "dist")
    parser.add_argument("--only", choices=MAKERS, action="append")
    parser.add_argument("--image", type=Path, action="append", default=[])
    asked = parser.parse_args(None if argv is None else list(argv))
    output = asked.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "source")
        export(source)
        for name in asked.only or MAKERS:
            say(f"making {name}: {STAGES[name]}")
            MAKERS[name](output, source)
    for archive in asked.image:
        say(f"packing {archive.name}")
        make_image(output, archive)
    files = sorted(each for each in output.iterdir() if each.is_file() and each.name != "SHA256SUMS")
    (output / "SHA256SUMS").write_text("".join(f"{digest(each, 'sha256')}  {each.name}\n" for each in files))
    for each in files:
        print(f"{each.stat().st_size:>12,}  {each.name}")


if __name__ == "__main__":
    main()
