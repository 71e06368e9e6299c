"""cri-resmgr's own binary as the judge of its configuration, run where it can touch nothing.

All its sockets and its state are in a private directory that goes with it, and the runtime that
it would need is not there: with a good configuration it says that it waits for it, and is
killed then. An `HTTPEndpoint` in the configuration must not take the port of the proxy
that runs: it gets a network namespace of its own, where we may make one.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from installer.host.run import Finished, run

_SECONDS = 5.0
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


def _private_directory() -> AbstractContextManager[str]:
    import tempfile

    return tempfile.TemporaryDirectory(prefix="cri-resmgr-")


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
    if os.geteuid() == 0:
        finished = run(("unshare", "--net", "--", *argv), _SECONDS, until)
        # Not allowed, or not installed: then without.
        if finished.code != 127 and not (finished.code == 1 and finished.output.startswith("unshare:")):
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
