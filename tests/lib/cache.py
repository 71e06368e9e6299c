"""What takes long to make is kept between runs below `CACHE`, each thing named by what it was made from.

Deleting the directory is always safe: what is missing is made again.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cri-resmgr-installer"
BUILD_SECONDS = 900.0
SAID_LIMIT = 20_000  # characters


class BuildError(Exception):
    """Something could not be made; the message has the end of what the builder said."""


def run(*argv: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Runs a builder's command and returns its output. Raises BuildError with the end of what it said."""
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
        said = (done.stdout + done.stderr)[-SAID_LIMIT:]
        raise BuildError(f"{argv[0]}: exit code {done.returncode}\n{said}")
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
def locked(name: str = "lock") -> Iterator[None]:
    """One builder of a kind at a time: another run may share the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def partial_of(place: Path) -> Iterator[Path]:
    """A name for what becomes `place` when the block ends well."""
    partial = place.with_name(f"{place.name}.partial")
    run("rm", "-rf", partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    yield partial
    partial.rename(place)


def keep_newest(directory: Path, pattern: str, amount: int) -> None:
    """Removes all but the `amount` files or directories of a pattern that were made or used last."""
    found = sorted(directory.glob(pattern), key=lambda path: -path.stat().st_mtime)
    for old in found[amount:]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
