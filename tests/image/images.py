"""Images as a cluster would run them, built without a registry: from a bootstrapped Debian or Ubuntu.

What takes time is kept between runs below `CACHE`, each thing named by what it was made from; deleting
the directory is always safe. Needs root, mmdebstrap, buildah, and the distribution's and PyPI's servers.
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.throwaway import payload as payload_source
from tests.throwaway.payload import build_payload
from tests.throwaway.standins import faults

TOP = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cri-resmgr-installer"
NEEDED = ("buildah", "mmdebstrap")
NAME = "localhost/cri-resmgr-installer"

#: What of apt's configuration the way to the distribution's servers depends on.
APT_SETTINGS = re.compile(r"Acquire::(http|https|Check|Retries|Languages)\b.*")

#: Without what Debian's slim images do not have either: documentation, and usrmerge, which brings all of
#: Perl. With what only the stand-in for cri-resmgr needs, when it is asked to check a configuration.
BOOTSTRAP = (
    "--variant=minbase",
    "--include=usr-is-merged,python3,python3-yaml",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    """--customize-hook=chroot "$1" apt-get --yes --quiet purge usrmerge perl 'perl-modules-*' 'libperl5*'""",
)
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
STORE_LIMIT = 3 << 30  # bytes; beyond it the builder's store begins anew
KEPT_IMAGES = 4
BUILD_SECONDS = 900.0


class BuildError(Exception):
    """An image could not be built; the message has all that the builder said."""


def missing_builders() -> list[str]:
    """What keeps this machine from building images; empty if nothing."""
    return [f"{name} is not installed" for name in NEEDED if shutil.which(name) is None]


def run(*argv: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Runs a builder's command. Raises BuildError with all that it said."""
    done = subprocess.run(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
        env=os.environ | dict(environment or {}),
    )
    if done.returncode != 0:
        raise BuildError(f"{argv[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def digest_of(parts: Iterable[bytes]) -> str:
    """A short name for some content."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def tree_parts(*places: Path) -> Iterator[bytes]:
    """The names, modes and content of all files below some directories, or of these files."""
    for place in places:
        for path in sorted([place, *place.rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(place.parent)).encode()
                yield bytes(str(path.stat().st_mode & 0o111), "ascii") + path.read_bytes()


@contextmanager
def locked() -> Iterator[None]:
    """One builder at a time: another run may share the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment() -> dict[str, str]:
    """For buildah: a store of our own, no need of namespaces, and a time that no commit changes."""
    overlay = run("stat", "--file-system", "--format=%T", CACHE).strip() != "overlayfs"
    configuration = CACHE / "storage.conf"
    configuration.write_text(
        "[storage]\n"
        f'driver = "{"overlay" if overlay else "vfs"}"\n'
        f'graphroot = "{CACHE}/store"\n'
        f'runroot = "{CACHE}/store.run"\n'
    )
    return {
        "CONTAINERS_STORAGE_CONF": str(configuration),
        "BUILDAH_ISOLATION": "chroot",
        "SOURCE_DATE_EPOCH": "1700000000",
    }


def apt_sources() -> tuple[str, list[Path]]:
    """This machine's release, and the files that say where its distribution is."""
    release = Path("/etc/os-release").read_text()
    match = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
    if match is None:
        raise BuildError("/etc/os-release has no VERSION_CODENAME: neither a Debian nor an Ubuntu")
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    suite = re.compile(rf"^[^#]*\b{match[1]}\b", re.MULTILINE)
    chosen = [
        file
        for file in files
        if file.suffix in (".list", ".sources") and file.exists()
        if suite.search(file.read_text()) and re.search(r"\bmain\b", file.read_text())
    ]
    return match[1], chosen


def base_image() -> str:
    """The name of a minimal image of this machine's distribution; bootstrapped if there is none yet."""
    codename, sources = apt_sources()
    settings = [
        line.rstrip(";")
        for line in run("apt-config", "dump").splitlines()
        if APT_SETTINGS.fullmatch(line) and not line.endswith('"";')
    ]
    options = [*BOOTSTRAP, *(f"--aptopt={line}" for line in settings)]
    parts = [codename.encode(), *(word.encode() for word in options), *(s.read_bytes() for s in sources)]
    name = f"{NAME}-base:{digest_of(parts)}"
    builder = environment()
    if name in run("buildah", "images", "--format", "{{.Name}}:{{.Tag}}", environment=builder).split():
        return name
    archive = CACHE / "base.tar"
    run("mmdebstrap", *options, codename, archive, *sources)
    container = run("buildah", "from", "scratch", environment=builder).strip()
    try:
        run("buildah", "add", "--quiet", container, archive, "/", environment=builder)
        run("buildah", "config", "--cmd", "/bin/sh", container, environment=builder)
        run("buildah", "commit", "--quiet", container, name, environment=builder)
    finally:
        run("buildah", "rm", container, environment=builder)
        archive.unlink()
    return name


@functools.cache
def payload(version: str, **faults_of_it: object) -> Path:
    """An unpacked release, the same bytes as long as the stand-in is the same. Not to be changed."""
    source = Path(str(payload_source.__file__))
    parts = tree_parts(source, Path(str(faults.__file__)).parent)
    place = CACHE / "payloads" / f"{version}-{digest_of([*parts, json.dumps(faults_of_it).encode()])}"
    with locked():
        if not place.exists():
            partial = place.with_name(f"{place.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            build_payload(partial, version=version, fault=faults_of_it)
            (partial / "VERSION").write_text(f"{version}\n")
            partial.rename(place)
    return place


def pack(directory: Path, archive: Path) -> Path:
    """A payload as it is released: the same bytes for the same content."""
    run(
        *("tar", "--create", "--file", archive, "--directory", directory, "--sort=name", "--mtime=@0"),
        *("--owner=0", "--group=0", "--numeric-owner", "--use-compress-program=gzip -n", "."),
    )
    return archive


@functools.cache
def image(version: str) -> Path:
    """The image with a release of that version, as an archive that a runtime imports."""
    release = payload(version)
    context = [TOP / name for name in ("LICENSE", "README.md", "pyproject.toml")]
    context += [TOP / name for name in ("hack/image", "image", "installer", "templates", "units")]
    with locked():
        builder = environment()
        drop_large_store(builder)
        base = base_image()
        key = digest_of([base.encode(), *tree_parts(*context, release)])
        archive = CACHE / "images" / f"{version}-{key}.tar"
        if not archive.exists():
            archive.parent.mkdir(exist_ok=True)
            build(version, base, pack(release, CACHE / "payload.tar.gz"), archive, builder)
        os.utime(archive)
        for old in sorted(archive.parent.iterdir(), key=lambda path: -path.stat().st_mtime)[KEPT_IMAGES:]:
            old.unlink()
    return archive


def build(version: str, base: str, release: Path, archive: Path, builder: Mapping[str, str]) -> str:
    """Runs hack/image as a person would, and returns what it printed."""
    options = ["--engine", "buildah", "--base", base, "--tag", f"{NAME}:{version}"]
    options += ["--ca", str(AUTHORITIES)] if AUTHORITIES.exists() else []
    options += ["--payload", str(release), "--output", str(archive)]
    return run(TOP / "hack/image", *options, environment=builder)


def drop_large_store(builder: Mapping[str, str]) -> None:
    """Layers are kept for the next build, but not for ever."""
    used = run("du", "--summarize", "--block-size=1", CACHE).split()[0]
    if int(used) > STORE_LIMIT:
        run("buildah", "rmi", "--all", "--force", environment=builder)
