"""Check a configuration with cri-resmgr's own binary, run where it can touch nothing.

All its sockets and its state are in a private directory below ours in the host's /run, which is removed
afterwards. The runtime's socket does not exist there: with a good configuration the binary logs that it waits
for the runtime, and is killed then. It gets its own network namespace if possible, so that an `HTTPEndpoint`
does not take the running proxy's port. It dies with this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from installer.errors import RolledBackError, StepFailedError, UnservableHostError, failed_on_disk, remedy_for
from installer.host.command import Finished, run
from installer.host.files import RootedFiles
from installer.model.event import truncate
from installer.model.paths import OUR_RUNTIME
from installer.model.proxy import DEFAULT_FALLBACK, fatal_lines

_SECONDS = 30.0  # it normally answers within 30 ms, but a starved machine has needed more than 5 s
_PRIVATE = f"{OUR_RUNTIME}/check"
# With a good configuration it waits for ever, so it must die with this process. setpriv(1) arranges that, and
# the shell checks whether this process died even earlier.
_DYING_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
_OWN_NETWORK = ("unshare", "--net", "--")
_WRAPPER_FAILED = ("setpriv:", "unshare:")  # how they complain when they are not allowed to
_ACCEPTED = "waiting for image services"
_COMPLAINT_BYTES = 4096
_SERVES = "up and running"  # logged once its cache is written
# Makes its lines begin as they do in the journal. The value does not matter.
_AS_IN_THE_JOURNAL = {"JOURNAL_STREAM": "0:0"}


class BinaryValidator:
    """The Validator port. Its runs share one directory of the host and need the host's lock. Without `files`
    each run has a temporary directory of this process's own file system, for callers that neither have the
    lock nor may write to the host."""

    def __init__(self, files: RootedFiles | None = None, seconds: float = _SECONDS) -> None:
        self._private_directory = _temporary_directory if files is None else partial(_host_directory, files)
        self._seconds = seconds

    def validate(self, binary: Path, config: bytes) -> str:
        with self._private_directory() as private:
            nobody = f"{private}/none.sock"
            argv = _argv(binary, private, f"{private}/state", nobody, "fallback", config)
            finished = self._answered(self._run_apart(argv, _ACCEPTED, self._seconds))
            return "" if finished.seen else _complaint(finished, private)

    def see_containers(self, binary: Path, state_directory: Path, runtime: Path, seconds: float) -> str:
        with self._private_directory() as private:
            argv = _argv(binary, private, str(state_directory), str(runtime), "force", DEFAULT_FALLBACK)
            finished = self._run_apart(argv, _SERVES, seconds)
            if finished.code is None and not finished.seen:
                message = f"cri-resmgr has not read the running containers within {seconds:g} s"
                hint = "check the load of this machine (`uptime`), and run the same command again"
                raise StepFailedError(message, hint, interfered=True)
            return "" if finished.seen else _complaint(finished, private)

    def _run_apart(self, argv: tuple[str, ...], until: str, seconds: float) -> Finished:
        dying_with_us = (*_DYING_WITH_US, str(os.getpid()))
        ways = (dying_with_us + _OWN_NETWORK, _OWN_NETWORK) if os.geteuid() == 0 else ()
        for way in (*ways, dying_with_us):
            finished = self._run(way + argv, until, seconds)
            if not _is_wrappers_failure(finished):
                return finished
        return self._run(argv, until, seconds)

    def _run(self, argv: tuple[str, ...], until: str, seconds: float) -> Finished:
        """Raises UnservableHostError if the host has run out of processes, memory or descriptors."""
        finished = run(argv, seconds, until, _AS_IN_THE_JOURNAL)
        if finished.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            error = OSError(finished.errno, finished.output)
            raise UnservableHostError(
                f"cannot start cri-resmgr by itself: {error.strerror}",
                f"{remedy_for(error)}; nothing was touched",
            )
        return finished

    def _answered(self, finished: Finished) -> Finished:
        """Raises RolledBackError if the deadline has passed. Neither the binary nor the configuration is to
        blame."""
        if finished.code is None and not finished.seen:
            raise RolledBackError(
                "the configuration could not be checked now: cri-resmgr neither accepted nor refused it "
                f"within {self._seconds:g} s",
                "nothing was touched, and nothing is blamed; check the load of this machine (`uptime`), "
                "then run the same command again",
            )
        return finished


@contextmanager
def _host_directory(files: RootedFiles) -> Iterator[str]:
    """Exists during the block, with the parents that had to be created. If this process is killed, the next
    check, a removal or a boot removes it. Raises UnservableHostError."""
    made: tuple[str, ...] = ()
    try:
        made = files.make_directory(OUR_RUNTIME)
        files.remove_tree(_PRIVATE)
        files.make_directory(_PRIVATE, 0o700)
        with files.opened(_PRIVATE) as place:
            yield str(place)
    except OSError as error:
        failure = failed_on_disk(f"cannot check the configuration in {_PRIVATE}", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error
    finally:
        with contextlib.suppress(OSError):
            files.remove_tree(_PRIVATE)
            for directory in reversed(made):
                files.remove_empty_directory(directory)


@contextmanager
def _temporary_directory() -> Iterator[str]:
    from tempfile import TemporaryDirectory

    try:
        with TemporaryDirectory(prefix="cri-resmgr-check.") as private:
            yield private
    except OSError as error:
        failure = failed_on_disk("cannot check the configuration in a temporary directory", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error


def _argv(binary: Path, private: str, state: str, runtime: str, kind: str, config: bytes) -> tuple[str, ...]:
    """The binary's command line. Writes the configuration, of this `kind`, for it."""
    config_file = Path(private, f"{kind}.cfg")
    config_file.write_bytes(config)
    return (
        str(binary),
        f"--relay-dir={state}",
        f"--relay-socket={private}/relay.sock",
        f"--config-socket={private}/config.sock",
        "--agent-socket=disabled",
        f"--pid-file={private}/pid",
        f"--runtime-socket={runtime}",
        f"--image-socket={runtime}",
        f"--{kind}-config={config_file}",
    )


def _is_wrappers_failure(finished: Finished) -> bool:
    return finished.code == 127 or (finished.code == 1 and finished.output.startswith(_WRAPPER_FAILED))


def _complaint(finished: Finished, private: str) -> str:
    """Its fatal lines, else its last line, without the private directory."""
    said = [line.strip() for line in finished.lines if line.strip()]
    lines = fatal_lines(said) or said[-1:] or [finished.failure]
    return truncate("\n".join(lines).replace(f"{private}/", ""), _COMPLAINT_BYTES)
