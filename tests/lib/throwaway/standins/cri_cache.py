"""The state that cri-resmgr keeps over restarts: the agent's last configuration, the policy, containers."""

import json
import os
from typing import Any

from tests.lib.throwaway.standins.words import fatal, panic

#: Go's structs: the type of each field, of each value of a map ("*"), or of each element of a list.
TEXTS = {"*": str}
POD = {
    "ID": str,
    "Name": str,
    "Namespace": str,
    "State": int,
    "CgroupParent": str,
    "Labels": TEXTS,
    "Annotations": TEXTS,
    "Resources": {},
}
CONTAINER = {
    "ID": str,
    "PodID": str,
    "CacheID": str,
    "Name": str,
    "Namespace": str,
    "State": int,
    "Command": [str],
    "Labels": TEXTS,
    "Annotations": TEXTS,
    "Resources": {"requests": {}, "limits": {}},
    "LinuxReq": {"cpu_shares": int, "cpuset_cpus": str, "cpuset_mems": str},
}
SNAPSHOT = {
    "Version": str,
    "Pods": {"*": POD},
    "Containers": {"*": CONTAINER},
    "NextID": int,
    "Cfg": {"NodeName": str, "Data": TEXTS},
    "PolicyName": str,
    "PolicyJSON": TEXTS,
}


def check(found: Any, kind: Any, name: str) -> None:
    """Raises ValueError where Go cannot put what was found into a value of this kind. Null it can."""
    if found is None:
        return
    given = type(found)
    if given != (kind if isinstance(kind, type) else type(kind)):
        raise ValueError(f"json: cannot unmarshal into Go struct field {name}")
    if isinstance(kind, dict):
        for key, value in found.items():
            if key in kind or "*" in kind:
                check(value, kind.get(key, kind.get("*")), f"{name}.{key}")
    elif isinstance(kind, list):
        for value in found:
            check(value, kind[0], name)


def as_yaml(sections: dict[str, str]) -> str:
    """A ConfigMap's data, one key per section, as one configuration."""
    return "".join(
        f"{name}:\n" + "".join(f"  {line}\n" for line in text.splitlines()) for name, text in sections.items()
    )


class Cache:
    """The state kept over restarts: the agent's last configuration and the policy."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = directory + "/cache"
        self.data: dict[str, Any] = {"Version": "1", "Cfg": None, "PolicyName": "", "PolicyJSON": {}}
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            if text:
                self.restore(json.loads(text))
        except FileNotFoundError:
            pass
        except ValueError as error:
            fatal(
                f"failed to create cache: cache: failed to load cache from {self.path}: "
                f"cache: failed to unmarshal snapshot data: {error}"
            )

    def restore(self, found: Any) -> None:
        """As Go reads the snapshot: another type of a field, or another version, ends the start."""
        check(found, SNAPSHOT, "snapshot")
        if (version := (found or {}).get("Version") or "") != "1":
            running = f"version '{version}' != running version 1"
            fatal(f"failed to create cache: cache: can't restore snapshot, {running}")
        if any(None in (found.get(name) or {}).values() for name in ("Pods", "Containers")):
            panic("runtime error: invalid memory address or nil pointer dereference")
        self.data.update({name: value for name, value in found.items() if value is not None})

    def agent_config(self) -> str | None:
        """The last configuration accepted from the agent, as YAML."""
        if not self.data["Cfg"]:
            return None
        return as_yaml(self.data["Cfg"].get("Data", {}))

    def save(self, *, starts: bool = False) -> None:
        """An error, as of a full disk, ends a start. Later it is ignored; what is in memory counts."""
        aside = self.path + ".saving"
        try:
            os.makedirs(self.directory, mode=0o710, exist_ok=True)
            with open(aside, "w", encoding="utf-8") as file:
                json.dump(self.data, file, separators=(",", ":"))
            os.rename(aside, self.path)
        except OSError as error:
            if starts:
                why = f'cache: failed to write cache to file "{aside}": write {aside}: {error.strerror}'
                fatal(f"failed to start resource manager: {why}")
