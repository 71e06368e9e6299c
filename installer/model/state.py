"""The whole host as it should be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from installer.model.digest import sha256_hex
from installer.model.resource import DesiredFile

_LENGTH = 16  # characters


class Mode(StrEnum):
    INSTALL = "install"
    REMOVE = "remove"


class Strategy(StrEnum):
    """How kubelet's command line gets our endpoint."""

    ENVIRONMENT = "environment"
    EXEC_START = "exec-start"


@dataclass(frozen=True, slots=True)
class DesiredUnit:
    """A unit that should run from `generation`, with our text of `unit_digest` loaded.

    `reload_digest` is the digest of a file that the running unit re-reads on
    SIGHUP (the proxy's force.cfg), or empty.
    """

    name: str
    unit_file: str
    unit_digest: str
    generation: str
    reload_digest: str = ""


@dataclass(frozen=True, slots=True)
class DesiredKubelet:
    """Kubelet as it should be: `variable` ends its command line and brings our endpoint.

    `why` is the reason for the strategy, for people. `environment_files` are
    ours, in order, and must be the last to define the variable. `passed_on`: a script
    or a shell hands the variable on, so it does not end the command line of the unit.
    """

    unit: DesiredUnit
    strategy: Strategy
    why: str
    variable: str
    environment_files: tuple[str, ...]
    passed_on: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """What should be there. Both units None and no files: nothing of ours (removal)."""

    files: tuple[DesiredFile, ...] = ()
    proxy: DesiredUnit | None = None
    kubelet: DesiredKubelet | None = None

    @property
    def generation(self) -> str:
        """The whole generation, which is blamed, remembered or good."""
        return generation_of(self.files)


class _File(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def mode(self) -> int: ...
    @property
    def digest(self) -> str: ...


def generation_of(files: Iterable[_File]) -> str:
    """A digest of everything that a generation puts in place, also of what restarts nothing (force.cfg, the
    guard): each can be what fails. Empty for no files."""
    lines = "".join(f"{file.path} {file.mode:o} {file.digest}\n" for file in files)
    return sha256_hex(lines.encode())[:_LENGTH] if lines else ""
