"""An installation of cri-resmgr that this program has not made. No effects, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Earlier(NamedTuple):
    """What another installer, or a person, has put on this node.

    `on_relay`: kubelet's own files name the relay, `sources` are those. `endpoint` is the runtime's, empty if
    it is not known. `repairs` are kubelet's files as they have to be without that installation. `files` are
    its own, which go, `trees` directories of its documentation. `lost` is what it has deleted from kubelet's
    unit, `returned` what of that is put back. `obstacles` say why it cannot be taken over, `ties` what would
    stop kubelet with the proxy's unit."""

    unit_file: str
    on_relay: bool
    sources: tuple[str, ...] = ()
    endpoint: str = ""
    repairs: Mapping[str, bytes] = {}
    files: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
