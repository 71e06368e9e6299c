"""A policy of cri-resmgr, and whose configuration asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PolicySource(StrEnum):
    FORCE = "force.cfg"
    AGENT = "cri-resmgr-agent"
    FALLBACK = "fallback.cfg"
    BUILT_IN = "built-in defaults"
    GUARD = "the guard, which spares containers that the proxy does not know"


class Repinning(StrEnum):
    """What a start with a policy takes from running containers that the proxy does not know (seen with the
    real v0.9.2)."""

    NOTHING = "nothing"
    CPUS = "cpus"
    CPUS_AND_WEIGHT = "cpus and weight"


_TAKE_NOTHING = ("none", "static")
_TAKE_WEIGHT = ("topology-aware", "memtier", "static-plus")
_MAY_LEAVE_CPUS = ("topology-aware", "balloons")  # with PinCPU: false


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """`name` as in policy.Active; `source` is whose configuration says so. `pending` is the policy that the
    next start would activate where that is another one, else empty. `pins`: PinCPU is not false."""

    name: str
    source: PolicySource
    pending: str = ""
    pins: bool = True

    @property
    def repins(self) -> Repinning:
        """What a start with it takes from strangers."""
        if self.name in _TAKE_NOTHING or (self.name in _MAY_LEAVE_CPUS and not self.pins):
            return Repinning.NOTHING
        return Repinning.CPUS_AND_WEIGHT if self.name in _TAKE_WEIGHT else Repinning.CPUS

    @property
    def describe(self) -> str:
        """For people: `balloons, from fallback.cfg`."""
        pending = f" (the next start activates {self.pending})" if self.pending else ""
        return f"{self.name}, from {self.source}{pending}"
