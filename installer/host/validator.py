"""cri-resmgr's own binary as the judge of its configuration, run where it can touch nothing.

All its sockets and its state are in a private directory that goes with it, and the runtime that
it would need is not there: with a good configuration it says that it waits for it, and is
killed then. An `HTTPEndpoint` in the configuration must not take the port of the proxy
that runs: it gets a network namespace of its own, where we may make one. It dies with us; what it leaves
on the disk then the next one clears away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installer.host.run import Finished, run

_SECONDS = 5.0
_PRIVATE = "cri-resmgr-check-"
# With a good configuration it waits for ever: who waits for it may be killed meanwhile, and nobody else
# would end it. That may be before the first word is carried out: so the second asks whether we still live.
_DYING_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
_OWN_NETWORK = ("unshare", "--net", "--")
_OF_A_WAY = ("setpriv:", "unshare:")  # how they begin if they cannot: not installed, not allowed
_ACCEPTED = "waiting for image services"
# How its last words begin: its own logger, the Go runtime, Go's flag package.
_FATAL = ("F: ", "panic: ", "fatal error: ", "flag provided")


class BinaryValidator:
    """The Validator port."""

    def validate(self, binary: Path, config: bytes) -> str:
        with _private_directory() as private:
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
        with _private_directory() as private:
            # Without a file there it says, falsely, that an instance is active.
            Path(private, "relay.sock").touch()
            finished = run((*_flags(binary, private, str(state_directory)), "--reset-config"), _SECONDS)
            return "" if finished.code == 0 else _complaint(finished, private)


@contextmanager
def _private_directory() -> Iterator[str]:
    """Goes with the block; what a run that was killed has left goes first."""
    import shutil
    import tempfile

    for name in os.listdir(tempfile.gettempdir()):
        pid = name.removeprefix(_PRIVATE).partition("-")[0]
        ours = name.startswith(_PRIVATE) and pid.isdecimal()
        if ours and (int(pid) == os.getpid() or not os.path.exists(f"/proc/{pid}")):
            shutil.rmtree(os.path.join(tempfile.gettempdir(), name), ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_PRIVATE}{os.getpid()}-") as directory:
        yield directory


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
