"""How long the steps of a plan may take."""

from __future__ import annotations

from dataclasses import dataclass

ANSWER_SECONDS = 5.0
"""On a starved node, whoever works may take so long to answer: the relay through its runtime, kubelet's
healthz. A port without a listener answers at once."""
HURRIED_SECONDS = 1.0
"""The same where kubelet may be hanging, and something has to be done about it."""


def answer_seconds(left: float) -> float:
    """How long to wait for an answer where `left` seconds are left for all that is waited for."""
    return min(ANSWER_SECONDS, max(HURRIED_SECONDS, left))


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, from the settings and from what hangs on the proxy right now. `begun_start` is
    the age of a proxy at which a start that is under way has failed. `hanging`: all waiting for the proxy
    together takes no longer than one `proxy_start`. `unhurried` is what that would be if kubelet did not
    hang, `furthest` how long a start that gets on is waited for then."""

    proxy_start: float
    kubelet_start: float
    settle: float
    guard: float
    healthz_url: str
    begun_start: float = 0.0
    hanging: bool = False
    unhurried: float = 0.0
    furthest: float = 0.0

    @property
    def cuts_short(self) -> bool:
        """Whether a start gets less time than it would if kubelet did not hang on it."""
        return self.hanging and self.proxy_start < self.unhurried
