"""The two Leases of the controller: which of its replicas leads, and the heartbeat that gardenlet checks
(docs/extensions/heartbeat.md of gardener/gardener).

The client library also has a leader election. It ends at the first request without an answer, and writes
times in the local time zone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from installer.model.instant import micro_time
from installer.operator.api import LEASES, ApiError, KubeApi
from installer.operator.kube_objects import Object, mapping_at, number_at, text_at

HEARTBEAT = "gardener-extension-heartbeat"
LEADER = "cri-resmgr-extension-leader-election"
_HEARTBEAT_SECONDS = 30
_LEASE_SECONDS, _RENEW_SECONDS, _RETRY_SECONDS = 15, 10.0, 2.0
"""As in client-go. A leader that could not renew for _RENEW_SECONDS stops before another one may begin."""


class Leadership:
    """`held()` says whether `me` leads now. `clock` (seconds, only moves on) decides when the Lease of
    another replica is over: counted since it last changed here, whatever the clocks of others say. `pace`
    scales all times: tests are in a hurry."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        me: str,
        log: Callable[[str], None] = lambda _: None,
        pace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._namespace, self._me = api, namespace, me
        self._length = max(1, round(_LEASE_SECONDS * pace))
        self._renew, self._retry = _RENEW_SECONDS * pace, _RETRY_SECONDS * pace
        self._log, self._clock = log, clock
        self._renewed: float | None = None
        self._written = ""  # the resource version of our last renewal
        self._seen: tuple[str, float] = ("", 0.0)  # resource version of another's Lease, and since when

    def held(self) -> bool:
        renewed = self._renewed
        return renewed is not None and self._clock() - renewed < self._renew

    def acquire(self, stop: threading.Event, alive: Callable[[], object] = lambda: None) -> bool:
        """Wait until it is held; return False when stopped. Calls `alive` before each attempt."""
        while not stop.is_set():
            alive()
            self.attempt()
            if self.held():
                return True
            stop.wait(self._retry)
        return False

    def keep(self, stop: threading.Event) -> None:
        """Renew it until it is lost, or until `stop`; then release it, so that the next leader need not
        wait."""
        while self.held() and not stop.wait(self._retry):
            self.attempt()
        if self.held():
            # Of what it has itself written last: a request that arrives late must not empty another's Lease.
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
            patch = {"metadata": {"resourceVersion": self._written}, "spec": spec}
            with contextlib.suppress(ApiError):  # then the next leader waits until it is over
                self._api.merge(LEASES, self._namespace, LEADER, patch)
        self._renewed = None

    def attempt(self) -> None:
        """Take or renew it, if that is possible."""
        begun, now = self._clock(), micro_time(time.time())
        spec: dict[str, Any] = {
            "holderIdentity": self._me,
            "leaseDurationSeconds": self._length,
            "renewTime": now,
        }
        try:
            lease = self._api.find(LEASES, self._namespace, LEADER)
            holder = text_at(lease, "spec", "holderIdentity")
            version = text_at(lease, "metadata", "resourceVersion")
            if holder not in ("", self._me) and not self._is_over(lease, version):
                self._renewed = None
                return
            if holder != self._me:
                transitions = number_at(lease, "spec", "leaseTransitions")
                spec |= {"acquireTime": now, "leaseTransitions": transitions + bool(lease)}
            if lease:
                patch = {"metadata": {"resourceVersion": version}, "spec": spec}
                written = self._api.merge(LEASES, self._namespace, LEADER, patch)
            else:
                written = self._api.create(LEASES, self._namespace, _lease(LEADER, self._namespace, spec))
            self._written = text_at(written, "metadata", "resourceVersion")
            self._renewed = begun
        except ApiError as error:
            self._log(f"the Lease {LEADER} is not renewed: {error}")

    def _is_over(self, lease: Object, version: str) -> bool:
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        length = mapping_at(lease, "spec").get("leaseDurationSeconds")
        return self._clock() - self._seen[1] > (length if isinstance(length, int) else _LEASE_SECONDS)


def beat(api: KubeApi, namespace: str, name: str) -> None:
    """Renew the heartbeat of the extension `name`. Raises ApiError."""
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": _HEARTBEAT_SECONDS,
        "renewTime": micro_time(time.time()),
    }
    if not api.merge_present(LEASES, namespace, HEARTBEAT, {"spec": spec}):
        api.create(LEASES, namespace, _lease(HEARTBEAT, namespace, spec))


def _lease(name: str, namespace: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": dict(spec),
    }
