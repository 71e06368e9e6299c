"""How long the steps of a plan may take, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

ANSWER_SECONDS = 5.0
"""How long a working relay or kubelet's healthz may take to answer on a starved node. A port without a
listener refuses at once."""
HURRIED_SECONDS = 1.0
"""The same while kubelet may be hanging and needs help soon."""
JOB_SLACK = 30.0
"""How long a systemd job may take beyond the limits of its unit."""
RELOAD = 180.0
"""How long a daemon-reload may take, ours or anybody's: as long as systemctl waits (DAEMON_RELOAD_TIMEOUT_SEC
in systemd), twice what a generator may take. Giving up sooner gains nothing: until it is done, systemd does
nothing else, neither another reload nor the restarts of a rollback."""
PROXY_SETTLE = 2.0
"""How long a started proxy has to stay up. One that crashes does so early."""
CALLS_ANSWERED = 35.0
"""How long a move of kubelet waits for its calls in flight. One that stops a container takes its grace
period, 30 s by default. If it fails, and the next call on the other endpoint does not, kubelet kills the pod
at once."""
TAKEN_UP = 5.0
"""How long kubelet may take to connect anew: it backs off for up to 3 s."""


def answer_seconds(left: float) -> float:
    """How long to wait for an answer if `left` seconds remain for the whole wait."""
    return min(ANSWER_SECONDS, max(HURRIED_SECONDS, left))


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, from the settings and from what hangs on the proxy at present."""

    proxy_start: float
    kubelet_start: float
    settle: float
    guard: float
    healthz_url: str
    begun_start: float = 0.0  # the age of a proxy at which a start in progress has failed
    # Kubelet hangs on the relay: all waits for the proxy together take at most one `proxy_start`.
    hanging: bool = False
    unhurried: float = 0.0  # what `proxy_start` would be if kubelet did not hang
    furthest: float = 0.0  # how long a start that makes progress may take in that case

    @property
    def cuts_short(self) -> bool:
        """Whether a start gets less time because kubelet hangs on it."""
        return self.hanging and self.proxy_start < self.unhurried
