"""The whole host as it should be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from installer.model.resource import DesiredFile


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
        """The whole generation, which is blamed or good: both units' together."""
        units = (self.proxy, self.kubelet.unit if self.kubelet else None)
        return "+".join(unit.generation for unit in units if unit)
