"""Where two programs' answers differ, and which of these differences a translation has announced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from installer.model.containers import parse_list
from tests.lib.judge.answers import Answer, Placed
from tests.lib.judge.pods import Pod

#: The probe of each list of pods: it has the CPUs that are reserved.
RESERVED = "kube-system/probe/c0"
ROOT_CLASS = "system/default"


class Difference(NamedTuple):
    """`aspect`: config; room, class (that is not there) of a container that only one refuses; sharing,
    exclusive, pinned, rdt or blockio. It ends in `-reserved` if cri-resmgr had the container on reserved
    CPUs, in `-shared` if the container asked for no whole CPUs of its own."""

    aspect: str
    what: str


def compare(pods: Sequence[Pod], old: Answer, new: Answer) -> list[Difference]:
    """What cri-resmgr (`old`) does and the plugin does not, or the other way round."""
    if old.refused or new.refused:
        same = bool(old.refused) == bool(new.refused)
        return [] if same else [Difference("config", f"{old.refused or 'taken'} / {new.refused or 'taken'}")]
    return list(_Comparison(pods, old.containers, new.containers).differences())


def unannounced(found: Iterable[Difference], announced: Iterable[str]) -> list[Difference]:
    """Those that no announced aspect covers: `sharing` covers `sharing-reserved` as well."""
    return [each for each in found if not {each.aspect, each.aspect.partition("-")[0]} & set(announced)]


class _Comparison:
    def __init__(self, pods: Sequence[Pod], old: Mapping[str, Placed], new: Mapping[str, Placed]) -> None:
        self._old, self._new = old, new
        self._whole = {
            f"{pod.namespace}/{pod.name}/{each.name}"
            for pod in pods
            for each in pod.containers
            if pod.qos == "Guaranteed" and each.limit % 1000 == 0 and not _prefers_sharing(pod)
        }

    def differences(self) -> Iterator[Difference]:
        """Of each container, and of each two of them."""
        there = [key for key in self._old if not (self._old[key].refused or self._new[key].refused)]
        for key in self._old.keys() - there:
            if bool(self._old[key].refused) != bool(self._new[key].refused):
                yield self._differ(self._old[key].refused or self._new[key].refused, key)
        for key in there:
            yield from self._of_one(key)
        pinned = [key for key in there if self._old[key].cpus and self._new[key].cpus]
        for one, other in combinations(pinned, 2):
            old, new = (bool(_cpus(each[one]) & _cpus(each[other])) for each in (self._old, self._new))
            if old != new:
                yield self._differ("sharing", one, other)
        for key in pinned:
            if len({len(_alone(key, each)) for each in (self._old, self._new)}) > 1:
                yield self._differ("exclusive", key)

    def _of_one(self, key: str) -> Iterator[Difference]:
        old, new = self._old[key], self._new[key]
        if (bool(old.cpus), bool(old.mems)) != (bool(new.cpus), bool(new.mems)):
            yield self._differ("pinned", key)
        for aspect in ("rdt", "blockio"):
            before, after = (getattr(each, aspect).replace(ROOT_CLASS, "") for each in (old, new))
            if before != after:
                yield Difference(aspect, f"{key}: {before or 'no class'} / {after or 'no class'}")

    def _differ(self, aspect: str, *keys: str) -> Difference:
        reserved = _cpus(self._old[RESERVED])
        if any(_cpus(self._old[key]) & reserved for key in keys):
            aspect += "-reserved"
        elif not self._whole.issuperset(keys):
            aspect += "-shared"
        said = [" and ".join(_show(each[key]) for key in keys) for each in (self._old, self._new)]
        return Difference(aspect, f"{' and '.join(keys)}: {' / '.join(said)}")


def _prefers_sharing(pod: Pod) -> bool:
    return any(key.startswith("prefer-shared-cpus.") for key in pod.annotations)


def _alone(key: str, placed: Mapping[str, Placed]) -> frozenset[int]:
    """The CPUs that no other container has."""
    rest = [_cpus(each) for other, each in placed.items() if other != key and not each.refused]
    return _cpus(placed[key]).difference(*rest)


def _cpus(placed: Placed) -> frozenset[int]:
    return parse_list(placed.cpus)


def _show(placed: Placed) -> str:
    return (
        f"refused ({placed.refused})"
        if placed.refused
        else f"CPUs {placed.cpus or 'any'}, memory {placed.mems or 'any'}"
    )
