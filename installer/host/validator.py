"""cri-resmgr's own binary as the judge of its configuration, run where it can touch nothing.

All its sockets and its state are in a private directory that goes with it, below our own in the host's
/run, and the runtime that it would need is not there: with a good configuration it says that it waits for
it, and is killed then. An `HTTPEndpoint` in the configuration must not take the port of the proxy
that runs: it gets a network namespace of its own, where we may make one. It dies with us.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installer.errors import UnservableHostError, failed_on_disk
from installer.host.files import RootedFiles
from installer.host.run import Finished, run
from installer.model.paths import OUR_RUNTIME

_SECONDS = 5.0
_PRIVATE = f"{OUR_RUNTIME}/check"
# With a good configuration it waits for ever: who waits for it may be killed meanwhile, and nobody else
# would end it. That may be before the first word is carried out: so the second asks whether we still live.
_DYING_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
_OWN_NETWORK = ("unshare", "--net", "--")
_OF_A_WAY = ("setpriv:", "unshare:")  # how they begin if they cannot: not installed, not allowed
_ACCEPTED = "waiting for image services"
# How its last words begin: its own logger, the Go runtime, Go's flag package.
_FATAL = ("F: ", "panic: ", "fatal error: ", "flag provided")


class BinaryValidator:
    """The Validator port. Its runs share one directory: they are made under the host's lock."""

    def __init__(self, files: RootedFiles) -> None:
        self._files = files

    def validate(self, binary: Path, config: bytes) -> str:
        with self._private_directory() as private:
            config_file = Path(private, "fallback.cfg")
            config_file.write_bytes(config)
            argv = (
                *_flags(binary, private, f"{private}/state"),
                f"--runtime-socket={private}/none.sock",
                f"--image-socket={private}/none.sock",
                f"--fallback-config={config_file}",
            )
            finished = _run_apart(argv, _ACCEPTED)
            return "" if finished.seen else _complaint(finished, private)

    def reset_config(self, binary: Path, state_directory: Path) -> str:
        with self._private_directory() as private:
            # Without a file there it says, falsely, that an instance is active.
            Path(private, "relay.sock").touch()
            finished = run((*_flags(binary, private, str(state_directory)), "--reset-config"), _SECONDS)
            return "" if finished.code == 0 else _complaint(finished, private)

    @contextmanager
    def _private_directory(self) -> Iterator[str]:
        """Goes with the block, with the directories that were made for it. Where we are killed it stays, to
        go with the next check, with a removal, or at the next boot. Raises UnservableHostError."""
        files = self._files
        try:
            made = files.make_directory(OUR_RUNTIME)
            files.remove_tree(_PRIVATE)
            files.make_directory(_PRIVATE, 0o700)
        except OSError as error:
            failure = failed_on_disk("there is no place to try the configuration out", error)
            raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error
        try:
            with files.opened(_PRIVATE) as place:
                yield str(place)
        finally:
            with contextlib.suppress(OSError):
                files.remove_tree(_PRIVATE)
                for directory in reversed(made):
                    files.remove_empty_directory(directory)


def _flags(binary: Path, private: str, state: str) -> tuple[str, ...]:
    return (
        str(binary),
        f"--relay-dir={state}",
        f"--relay-socket={private}/relay.sock",
        f"--config-socket={private}/config.sock",
        "--agent-socket=disabled",
        f"--pid-file={private}/pid",
    )


def _run_apart(argv: tuple[str, ...], until: str) -> Finished:
    dying_with_us = (*_DYING_WITH_US, str(os.getpid()))
    ways = (dying_with_us + _OWN_NETWORK, _OWN_NETWORK) if os.geteuid() == 0 else ()
    for way in (*ways, dying_with_us):
        finished = run(way + argv, _SECONDS, until)
        if finished.code != 127 and not (finished.code == 1 and finished.output.startswith(_OF_A_WAY)):
            return finished
    return run(argv, _SECONDS, until)


def _complaint(finished: Finished, private: str) -> str:
    """What it said is wrong: its fatal lines, else its last three; our private paths are left out."""
    said = [line.strip() for line in finished.lines if line.strip()]
    fatal = [line for line in said if line.startswith(_FATAL)]
    if finished.code is None:
        fatal = [f"neither accepted nor refused within {_SECONDS:g} s", *said[-3:]]
    lines = fatal or said[-3:] or [finished.failure]
    return "\n".join(lines).replace(f"{private}/", "")
