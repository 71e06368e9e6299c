"""A minimal system of this machine's distribution, or of another release, bootstrapped with mmdebstrap."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lib.cache import BuildError, digest_of, run

#: What of apt's configuration the way to the distribution's servers depends on.
APT_SETTINGS = re.compile(r"Acquire::(http|https|Check|Retries|Languages)\b.*")

#: Without what Debian's slim images do not have either: documentation.
COMMON = (
    "--variant=minbase",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
)


#: Named in the environment, so that every process of a run knows it.
RELEASE = "TESTS_RELEASE"


def named_release() -> str:
    """The release of Debian or Ubuntu that hosts and machines are made from; empty: this machine's."""
    return os.environ.get(RELEASE, "")


def add_option(add: Callable[..., Any]) -> None:
    """`--release NAME`; `add` is a parser's."""
    add("--release", metavar="NAME", help="what hosts and machines have: trixie, noble")


def take_option(given: Mapping[str, Any]) -> None:
    """Names the release that a parser has found."""
    if release := given.get("release"):
        os.environ[RELEASE] = release


class Bootstrap:
    """A system with some packages besides; `hooks` are shell commands in which $1 is its root. Another
    `release` than this machine's comes from its distribution's own servers, as mmdebstrap knows them."""

    def __init__(self, packages: Sequence[str], hooks: Sequence[str] = (), release: str = "") -> None:
        self._codename, self._sources = apt_sources()
        if release not in ("", self._codename):
            self._codename, self._sources = release, []
        self._options = [
            *COMMON,
            f"--include={','.join(packages)}",
            *(f"--customize-hook={hook}" for hook in hooks),
            *(f"--aptopt={line}" for line in apt_settings()),
        ]

    @property
    def digest(self) -> str:
        """Names what would be made, as long as the distribution's packages are the same."""
        options = (word.encode() for word in self._options)
        return digest_of([self._codename.encode(), *options, *(s.read_bytes() for s in self._sources)])

    def make(self, target: Path) -> None:
        """Makes it: a directory, or an archive if `target` ends like one. Raises BuildError."""
        run("mmdebstrap", *self._options, self._codename, target, *self._sources)


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


def apt_settings() -> Iterator[str]:
    """Lines of apt's configuration, as `--aptopt` takes them."""
    for line in run("apt-config", "dump").splitlines():
        if APT_SETTINGS.fullmatch(line) and not line.endswith('"";'):
            yield line.rstrip(";")
