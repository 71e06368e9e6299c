"""What of a node has to be the same, however it came about."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from installer.model import paths
from tests.certify.node.world import NATURE, Moment

_PENDING = re.compile(rf"{paths.PENDING}[0-9a-f]+".encode())  # each run's own
_CARRIERS = (paths.PROXY_ENVIRONMENT, paths.KUBELET_ENVIRONMENT)
_VOLATILE = ("digests", "owed", "signalled", "checked", "controls", "checksum")


def picture(moment: Moment) -> dict[str, object]:
    """All of a node that has to be the same, however it came about: no times, no numbers of processes."""
    found: dict[str, object] = {}
    for path, entry in moment.tree.items():
        if path == NATURE or (path.startswith("/run/") and path.endswith(paths.TEMPORARY)):
            continue  # of a run that was killed; a boot ends it
        if path == paths.RECORD:
            found |= _record(entry.content)
        elif path == paths.PROXY_CACHE:
            found[path] = _cache(entry.content)
        elif path.startswith(("/run/", paths.PROXY_STATE[0])):
            found[path] = entry.kind
        else:
            found[path] = replace(entry, content=_PENDING.sub(b"pending", entry.content))
    for name in (
        "relay-start",
        "proxy-start",
        "proxy-start-ours",
        "kubelet-start-ours",
        "proxy.env",
        "none.cfg",
    ):
        found.pop(f"{paths.OUR_RUNTIME}/{name}", None)
    for name, unit in moment.units.items():
        found[name] = (
            *(unit.load_state, unit.active_state, unit.sub_state, unit.unit_file_state),
            *(unit.environment, unit.drop_in_paths, unit.fragment_path),
        )
        process = moment.process(name)
        found[f"{name} runs"] = process and (process.argv, process.generation)
    for one in moment.running:
        found[f"container {one.id}"] = one.cgroup
    return found


def _record(raw: bytes) -> dict[str, object]:
    """Every field of the record by its place."""
    try:
        found: dict[str, Any] = json.loads(raw)
    except ValueError:
        return {"record": "damaged"}
    found = {key: value for key, value in found.items() if key not in _VOLATILE}
    found["failed"] = sorted(found.get("failed", {}))
    found["unproven"] = [path for path in found.get("unproven", ()) if not path.startswith("/run")]
    for path, owned in found.pop("owned", {}).items():
        # A carrier is also written with a name that each run makes anew.
        wrote = () if path in _CARRIERS else sorted(owned.get("wrote", ()))
        found[f"owned {path}"] = {**owned, "wrote": wrote}
    for file in (found.get("good") or {}).pop("files", ()):
        found[f"good {file['path']}"] = file
    return {f"record: {key}": value for key, value in found.items()}


def _cache(raw: bytes) -> object:
    try:
        found = json.loads(raw)
    except ValueError:
        return "torn"
    return found["PolicyName"], {key: one.get("LinuxReq") for key, one in found.get("Containers", {}).items()}


def undone(picture: dict[str, object]) -> dict[str, object]:
    """What an attempt that was undone leaves for certain. What it had claimed is claimed still, its proxy may
    have seen the containers, and a first installation that is not tried again deletes no object that a killed
    rollback has left."""
    picture = {key: value for key, value in picture.items() if key != paths.PROXY_CACHE}
    kept = {key: value for key, value in picture.items() if not key.startswith("record: owned")}
    claimed = kept.keys() != picture.keys()
    return {key: value for key, value in kept.items() if claimed or not key.startswith(paths.OBJECTS)}
