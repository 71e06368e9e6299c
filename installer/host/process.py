"""Running processes of the host, read from its own /proc. The only importer of psutil.

Read-only: command line, environment, executable, times. For one thread of a process: psutil's root is a
global.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from installer.errors import UnservableHostError
from installer.host.chase import opened
from installer.host.unit_processes import others_of_unit
from installer.model.host import ProcessState

_KUBELET = "kubelet"


class ProcProcesses:
    """The Processes port on `<root>/proc`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, pid: int) -> ProcessState | None:
        """See the port. A zombie has ended. Raises OSError, and UnservableHostError if the process may not be
        read."""
        import psutil

        try:
            with opened(self._root, "/proc", follow=True) as (place, _status):
                # A global of psutil: set each time, because one process may read two hosts.
                psutil.PROCFS_PATH = place
                process = psutil.Process(pid)
                argv, environ = process.cmdline(), process.environ()
                # Empty for a kernel thread and for a process that is exiting.
                if not argv:
                    return None
                return ProcessState(pid, tuple(argv), environ, process.exe(), *_times(Path(place), pid))
        except (psutil.NoSuchProcess, ValueError):  # ValueError: no such pid ever
            return None
        except psutil.AccessDenied as error:
            raise UnservableHostError(
                f"not allowed to read process {pid} in {self._root}/proc",
                "reading another process's environment needs CAP_SYS_PTRACE: run as root, privileged",
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH):
                raise
            return None  # it ended between two reads
        finally:
            psutil.PROCFS_PATH = "/proc"  # what we had opened is closed

    def kubelet(self, pid: int) -> ProcessState | None:
        """See the port."""
        main = self.get(pid)
        if main is None or main.is_shell:
            return main
        with opened(self._root, "/proc", follow=True) as (place, _status):
            proc = Path(place)
            if _comm(proc, pid) == _KUBELET:
                return main
            inner = [other for other in others_of_unit(proc, pid) if _comm(proc, other) == _KUBELET]
        return (self.get(inner[0]) if inner else None) or main


def _comm(proc: Path, pid: int) -> str:
    with suppress(OSError):
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _times(proc: Path, pid: int) -> tuple[float, float]:
    """Seconds since the process started, on a clock that nobody can set, and of CPU time that it has used
    (proc(5): starttime, uptime; utime, stime)."""
    stat = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    uptime, ticks = float((proc / "uptime").read_bytes().split()[0]), os.sysconf("SC_CLK_TCK")
    return max(0.0, uptime - int(stat[19]) / ticks), (int(stat[11]) + int(stat[12])) / ticks
