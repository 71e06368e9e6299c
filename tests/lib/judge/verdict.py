"""Where two programs' answers differ, and which of these differences a translation has announced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from installer.model.containers import parse_list
from tests.lib.judge.answers import Answer, Placed
from tests.lib.judge.pods import Pod, prefers_sharing

#: The probe of each list of pods: it has the CPUs that are reserved.
RESERVED = "kube-system/probe/c0"
ROOT_CLASS = "system/default"


class Difference(NamedTuple):
    """`aspect`: config; room, class (that is not there) of a container that only one refuses; sharing, count
    (of its CPUs), exclusive, pinned, rdt or blockio. `conditions`: reserved, if cri-resmgr had the
    container on reserved CPUs; shared, if it asked for no whole CPUs of its own; refusal, if only one
    refuses a container, whose request then counts for only one; and those of the case."""

    aspect: str
    conditions: frozenset[str]
    what: str

    def is_announced(self, announced: Iterable[str]) -> bool:
        """`sharing` announces it in any case, `sharing-short` where CPUs are short."""
        return not {self.aspect, *(f"{self.aspect}-{each}" for each in self.conditions)}.isdisjoint(announced)


def compare(pods: Sequence[Pod], given: frozenset[str], old: Answer, new: Answer) -> list[Difference]:
    """What cri-resmgr (`old`) does and the plugin does not, or the other way round. `given` always holds."""
    if old.refused or new.refused:
        said = f"{old.refused or 'taken'} / {new.refused or 'taken'}"
        return [] if old.refused and new.refused else [Difference("config", frozenset(), said)]
    return list(_Comparison(pods, given, old.containers, new.containers).differences())


class _Comparison:
    def __init__(
        self,
        pods: Sequence[Pod],
        given: frozenset[str],
        old: Mapping[str, Placed],
        new: Mapping[str, Placed],
    ) -> None:
        self._old, self._new = old, new
        self._both = {key for key in old if not (old[key].refused or new[key].refused)}
        others = any(bool(old[key].refused) != bool(new[key].refused) for key in old)
        self._given = given | ({"refusal"} if others else set())
        self._whole = {
            f"{pod.namespace}/{pod.name}/{each.name}"
            for pod in pods
            for each in pod.containers
            if pod.qos == "Guaranteed" and each.limit % 1000 == 0 and not prefers_sharing(pod, each)
        }

    def differences(self) -> Iterator[Difference]:
        """Of each container, and of each two of them."""
        there = [key for key in self._old if key in self._both]
        for key in self._old.keys() - self._both:
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
            for aspect, cpus in {"count": _cpus_of, "exclusive": self._alone}.items():
                if len(cpus(key, self._old)) != len(cpus(key, self._new)):
                    yield self._differ(aspect, key)

    def _of_one(self, key: str) -> Iterator[Difference]:
        old, new = self._old[key], self._new[key]
        if (bool(old.cpus), bool(old.mems)) != (bool(new.cpus), bool(new.mems)):
            yield self._differ("pinned", key)
        for aspect in ("rdt", "blockio"):
            before, after = (getattr(each, aspect).replace(ROOT_CLASS, "") for each in (old, new))
            if before != after:
                said = f"{before or 'no class'} / {after or 'no class'}"
                yield Difference(aspect, frozenset(), f"{key}: {said}")

    def _differ(self, aspect: str, *keys: str) -> Difference:
        reserved, conditions = _cpus(self._old[RESERVED]), set(self._given)
        if any(_cpus(self._old[key]) & reserved for key in keys):
            conditions.add("reserved")
        elif not self._whole.issuperset(keys):
            conditions.add("shared")
        said = [" and ".join(_show(each[key]) for key in keys) for each in (self._old, self._new)]
        return Difference(aspect, frozenset(conditions), f"{' and '.join(keys)}: {' / '.join(said)}")

    def _alone(self, key: str, placed: Mapping[str, Placed]) -> frozenset[int]:
        """The CPUs that no other container has, of those that neither program refuses."""
        return _cpus(placed[key]).difference(*(_cpus(placed[other]) for other in self._both - {key}))


def _cpus_of(key: str, placed: Mapping[str, Placed]) -> frozenset[int]:
    return _cpus(placed[key])


def _cpus(placed: Placed) -> frozenset[int]:
    return parse_list(placed.cpus)


def _show(placed: Placed) -> str:
    return (
        f"refused ({placed.refused})"
        if placed.refused
        else f"CPUs {placed.cpus or 'any'}, memory {placed.mems or 'any'}"
    )
