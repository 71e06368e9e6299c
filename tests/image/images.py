"""Images as a cluster would run them, built without a registry: from a bootstrapped Debian or Ubuntu.

What takes time is kept between runs. Needs root, mmdebstrap, buildah, and the distribution's and PyPI's
servers.
"""

import functools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.lib.bootstrap import Bootstrap
from tests.lib.cache import CACHE, digest_of, keep_newest, locked, run, tree_parts
from tests.lib.throwaway import payload as payload_source
from tests.lib.throwaway import real
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.standins import faults

TOP = Path(__file__).parents[2]
NEEDED = ("buildah", "mmdebstrap")
NAME = "localhost/cri-resmgr-installer"

#: Without usrmerge, which brings all of Perl; with what only the stand-in for cri-resmgr needs, when it is
#: asked to check a configuration.
PACKAGES = ("usr-is-merged", "python3", "python3-yaml")
PURGE = """chroot "$1" apt-get --yes --quiet purge usrmerge perl 'perl-modules-*' 'libperl5*'"""
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
STORE_LIMIT = 3 << 30  # bytes; beyond it the builder's store is emptied
KEPT_IMAGES = 6


def missing_builders() -> list[str]:
    """What keeps this machine from building images; empty if nothing."""
    return [f"{name} is not installed" for name in NEEDED if shutil.which(name) is None]


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


def base_image() -> str:
    """The name of a minimal image of this machine's distribution; bootstrapped if there is none yet."""
    system = Bootstrap(PACKAGES, [PURGE])
    name = f"{NAME}-base:{system.digest}"
    builder = environment()
    if name in run("buildah", "images", "--format", "{{.Name}}:{{.Tag}}", environment=builder).split():
        return name
    archive = CACHE / "base.tar"
    system.make(archive)
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
    parts = [*tree_parts(source, Path(str(faults.__file__)).parent)]
    parts += [json.dumps(faults_of_it).encode(), real.identity()]
    place = CACHE / "payloads" / f"{version}-{digest_of(parts)}"
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
def image(version: str, **faults_of_it: object) -> Path:
    """The image with a release of that version, as an archive that a runtime imports."""
    release = payload(version, **faults_of_it)

    def make(base: str, archive: Path, builder: Mapping[str, str]) -> None:
        build(version, base, pack(release, CACHE / "payload.tar.gz"), archive, builder)

    return kept(version, release, make)


@functools.cache
def extension_image() -> Path:
    """The image of Gardener's controller, as an archive that a runtime imports."""

    def make(base: str, archive: Path, builder: Mapping[str, str]) -> None:
        hack_image("extension", base, archive, builder, "--extension")

    return kept("extension", TOP / "image", make)


def kept(name: str, content: Path, make: Callable[[str, Path, Mapping[str, str]], None]) -> Path:
    """The archive of an image; made if there is none of this checkout and this content."""
    context = [TOP / name for name in ("LICENSE", "README.md", "pyproject.toml")]
    context += [TOP / name for name in ("hack/image", "image", "installer", "templates", "units")]
    with locked():
        builder = environment()
        drop_large_store(builder)
        base = base_image()
        key = digest_of([base.encode(), *tree_parts(*context, content)])
        archive = CACHE / "images" / f"{name}-{key}.tar"
        if not archive.exists():
            archive.parent.mkdir(exist_ok=True)
            make(base, archive, builder)
        os.utime(archive)
        keep_newest(archive.parent, "*", KEPT_IMAGES)
    return archive


def build(
    version: str, base: str, release: Path, archive: Path, builder: Mapping[str, str], *more: str | Path
) -> str:
    """Runs hack/image as a person would, and returns what it printed."""
    return hack_image(version, base, archive, builder, "--payload", str(release), *map(str, more))


def hack_image(tag: str, base: str, archive: Path, builder: Mapping[str, str], *what: str) -> str:
    options = ["--engine", "buildah", "--base", base, "--tag", f"{NAME}:{tag}", *what]
    options += ["--ca", str(AUTHORITIES)] if AUTHORITIES.exists() else []
    return run(TOP / "hack/image", *options, "--output", str(archive), environment=builder)


def drop_large_store(builder: Mapping[str, str]) -> None:
    """Layers are kept for the next build, but not for ever."""
    if not (CACHE / "store").exists():
        return
    used = run("du", "--summarize", "--block-size=1", CACHE / "store").split()[0]
    if int(used) > STORE_LIMIT:
        run("buildah", "rm", "--all", environment=builder)  # of a build that was killed: rmi would fail
        run("buildah", "rmi", "--all", "--force", environment=builder)
