"""A node that has cri-resmgr from another installer, or by hand, and what the record says of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from installer.model import paths
from installer.model.host import DesiredFile, FileState, HostSnapshot, Part
from installer.model.plan import Desired, DesiredKubelet, DesiredUnit, Strategy
from installer.node.record import Goes, Owned, Record, base_claims, is_earlier


class Earlier(NamedTuple):
    """What another installer, or a person, has put on this node.

    `on_relay`: kubelet's own files name the relay, `sources` are those. `endpoint` is the runtime's, empty if
    it is not known. `repairs` are kubelet's files as they have to be without that installation. `files` are
    its own, which go, `trees` directories of its documentation. `lost` is what it has deleted from kubelet's
    unit. `obstacles` say why it cannot be taken over, `ties` what would stop kubelet with the proxy's
    unit."""

    unit_file: str
    on_relay: bool
    sources: tuple[str, ...] = ()
    endpoint: str = ""
    repairs: Mapping[str, bytes] = {}
    files: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()


# How the record describes another installer's work, so that it can be taken over. Pure.
#
# In a takeover that kubelet hangs on, the good generation is that installation, whole: a rollback brings it
# back. Its files are claimed with nothing before them, kubelet's own with the repaired text before them: so a
# removal at any instant leaves neither it nor us, and kubelet on the runtime.

# Made by upstream's archive; they go only if nothing is in them.
DIRECTORIES = (
    "/etc/cri-resmgr",
    "/opt/intel",
    "/opt/intel/bin",
    "/opt/intel/licenses",
    "/opt/intel/share",
    "/opt/intel/share/doc",
)
_WHY = "as the earlier installation had it"


def take_over(record: Record, earlier: Earlier, states: Mapping[str, FileState], kubelet_unit: str) -> Record:
    """The record with the `earlier` installation in it; `states` are its files, kubelet's, and where it may
    have more, as they are. One that kubelet is not on is good without units: a rollback starts nothing."""
    base = {path: _repair(states[path], content) for path, content in earlier.repairs.items()}
    record = replace(record, owned={**record.owned, **base})
    if not earlier.unit_file:
        return record  # ours is installed, or the relay is named where nothing serves it
    theirs = {path: Owned(wrote=(states[path].digest,)) for path in earlier.files}
    theirs[paths.PROXY_WANTED] = Owned(before=states[paths.PROXY_WANTED])
    theirs |= {path: Owned(goes=Goes.EMPTY, before=states[path]) for path in DIRECTORIES}
    for path in (*paths.PROXY_STATE, *earlier.trees):
        theirs[path] = Owned(goes=Goes.WHOLE, before=FileState(states[path].kind))
    files = (
        *(_good_file(path, states[path], Part.PROXY) for path in earlier.files),
        *(_good_file(path, states[path], Part.KUBELET) for path in base),
    )
    good = Desired(files)
    if earlier.on_relay:
        proxy = DesiredUnit(paths.PROXY_UNIT, earlier.unit_file, "", "")
        unit = DesiredUnit(kubelet_unit, next(iter(base), ""), "", "")
        good = replace(good, proxy=proxy, kubelet=DesiredKubelet(unit, Strategy.ENVIRONMENT, _WHY, "", ()))
    return replace(record, owned={**record.owned, **theirs}, good=good)


def _repair(state: FileState, content: bytes) -> Owned:
    digest = sha256(content).hexdigest()
    before = replace(state, digest=digest, size=len(content), content=content, identity=None)
    return Owned(Part.KUBELET, before=before, wrote=(state.digest,))


def _good_file(path: str, state: FileState, part: Part) -> DesiredFile:
    return DesiredFile(path, state.mode, part, state.digest, state.size)


# Nodes that have cri-resmgr from another installer, or by hand: recognised, and taken over if that is asked.
#
# Taking over means to describe that installation in the record as if it were ours: its files are claimed with
# nothing before them, kubelet's files with a repaired text before them. The rest is the usual way: the
# difference, the plan, the rollback and the removal follow from the record.


def may_be_earlier(snapshot: HostSnapshot, record: Record) -> bool:
    """Whether a closer look is worth its time: on most nodes there is nothing."""
    if base_claims(record) or is_earlier(record):
        return True
    if paths.PROXY_UNIT_FILE not in record.claims and snapshot.proxy.unit.fragment_path:
        return True
    return any(paths.RELAY_NAME in text.text for text in snapshot.base.configured())
