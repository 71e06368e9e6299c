"""What is true of the host before we decide anything. Read once per run; see `installer.observe`.

Cheap facts are always read. `Probe` holds what costs CRI calls or disk walks
and is read only when there is something to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from installer.model.resource import ProcessState, UnitDetail, UnitState


@dataclass(frozen=True, slots=True)
class UnitText:
    """One unit file or drop-in as it lies on the host, in systemd's order of reading."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """Kubelet as it is, ours included.

    `texts` are the fragment and every drop-in except ours, in the order that
    systemd reads them. `config` is the content of its --config file, `config_dir`
    the *.conf files of --config-dir in lexical order (path, content): both
    unparsed. `environment_files` holds, for each EnvironmentFile= of the base as
    systemd names it, the files that are there: several for a pattern.
    """

    unit: UnitState
    detail: UnitDetail
    process: ProcessState | None
    texts: tuple[UnitText, ...]
    config: UnitText | None = None
    config_dir: tuple[UnitText, ...] = ()
    environment_files: Mapping[str, tuple[UnitText, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """`machine` is as uname(1) -m says it for the host (`x86_64`). `services` are the units
    that exist of those whose presence matters (gardener-node-agent and the like).
    `cache` is the text of the proxy's cache file, if any. `free_bytes` and
    `unwritable` speak of the directories we need, by host path; `unwritable` has
    the reason as the system gave it."""

    machine: str
    machine_id: str
    hostname: str
    kubelet: KubeletFacts
    services: tuple[str, ...] = ()
    cache: str = ""


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container. `through_proxy`: it has the mount /.cri-resmgr that only the proxy makes.

    `pinned`: its main process may not use all CPUs that the host's first process may.
    """

    id: str
    name: str
    pod: str
    namespace: str
    through_proxy: bool
    pinned: bool

    @property
    def title(self) -> str:
        """What people call it: `namespace/pod/name`, or less where kubelet did not make it."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.id


@dataclass(frozen=True, slots=True)
class Probe:
    """What is asked only when something is to be changed.

    `runtime_error` is empty when the runtime answered CRI v1 and is ready. `proxy_drop_ins` are
    somebody else's for the proxy's unit.
    """

    runtime_error: str
    containers: tuple[RunningContainer, ...]
    free_bytes: Mapping[str, int]
    unwritable: Mapping[str, str]
    obstacles: Mapping[str, str]
    proxy_drop_ins: tuple[UnitText, ...] = ()
