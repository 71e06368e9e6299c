"""In which unit directory our drop-in of kubelet's unit lies. Pure.

gardener-node-agent deletes all of /etc/systemd/system/kubelet.service.d when it changes kubelet's unit or a
file that the unit names, and restarts kubelet at once (pkg/nodeagent/controller/operatingsystemconfig of
gardener/gardener). It never touches /etc/systemd/system.control, which systemd reads before all others, keeps
over a boot, and writes itself for `systemctl set-property` (systemd.unit(5)).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from installer.model import paths
from installer.model.snapshot import Machine

if TYPE_CHECKING:
    from installer.inputs.settings import KubeletSettings, Settings

_NODE_AGENT = "gardener-node-agent.service"


def place_drop_in(settings: Settings, machine: Machine) -> Settings:
    """The settings with the directory that `auto` means on this machine.

    Files of the same name hide each other, the first directory wins (systemd.unit(5)): while the drop-in
    moves from one directory to another, it is in effect once.
    """
    if settings.kubelet.drop_in_directory != paths.AUTO:
        return settings
    wiped = _NODE_AGENT in machine.services
    return in_directory(settings, paths.CONTROL_UNITS if wiped else paths.USUAL_UNITS)


def in_directory(settings: Settings, directory: str) -> Settings:
    placed = settings.kubelet.model_copy(update={"drop_in_directory": directory})
    return settings.model_copy(update={"kubelet": placed})


def possible_drop_ins(kubelet: KubeletSettings) -> tuple[str, ...]:
    """Where it may lie from an earlier run of the same settings, or of the default ones."""
    usual = paths.drop_in_directories(paths.AUTO)
    directories = dict.fromkeys((*paths.drop_in_directories(kubelet.drop_in_directory), *usual))
    return tuple(paths.drop_in(directory, kubelet.unit) for directory in directories)
