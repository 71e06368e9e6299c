"""Runs one replica of the controller: it waits until it leads, acts, and ends on request or when it no longer
leads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from installer.gardener.controller import Controller, Setup
from installer.gardener.leases import Leadership, beat
from installer.gardener.managed_resource import EXTENSION_TYPE
from installer.gardener.watchdog import Watchdog
from installer.operator.api import ApiError, KubeApi

_CHECK_SECONDS = 0.2
_BEAT_SECONDS = 7.5  # a quarter of the length of the Lease
_REPORT_SECONDS = 120.0  # longer than two requests for a Lease may last


def serve(
    seed: KubeApi,
    leases: KubeApi,
    setup: Setup,
    namespace: str,
    stop: threading.Event,
    log: Callable[[str], None],
) -> bool:
    """Run until `stop`; return False where it ended because another replica leads, or may lead. The Leases
    are in `namespace`. Requests by `leases` end in far less than the length of a Lease."""
    leadership = Leadership(leases, namespace, setup.instance, log, setup.lease_pace)
    log(f"{setup.instance} is waiting to become the leader")
    if not leadership.acquire(stop, lambda: setup.watchdog.check(log)):
        return True
    log(f"{setup.instance} leads")
    ended, quiet = threading.Event(), threading.Event()

    def say(line: str) -> None:
        if not quiet.is_set():  # a thread that is cut off must not block the output when the process ends
            log(line)

    held = leadership.held

    def connect(kubeconfig: bytes) -> KubeApi:
        client = setup.connect(kubeconfig)
        client.fence(held)
        return client

    seed.fence(held)
    acting = Controller(seed, setup._replace(connect=connect), say)
    controller = threading.Thread(target=acting.run, args=(ended,), daemon=True)
    heart = threading.Thread(target=_beat, args=(leases, namespace, ended, say, setup.watchdog), daemon=True)
    controller.start()
    heart.start()
    # The Lease is given up only after the last write.
    keeper_stop = threading.Event()
    keeper = threading.Thread(target=leadership.keep, args=(keeper_stop,), daemon=True)
    keeper.start()
    # Not while the keeper lives: it may be waiting for an answer while the Lease runs out.
    while held() and controller.is_alive() and not stop.wait(_CHECK_SECONDS * setup.lease_pace):
        setup.watchdog.check(log)
    ended.set()
    lost = not held() or not controller.is_alive()
    if lost:
        quiet.set()
    controller.join(1 if lost else 60)
    quiet.set()
    keeper_stop.set()
    keeper.join(10)
    return not lost


def _beat(
    leases: KubeApi,
    namespace: str,
    ended: threading.Event,
    log: Callable[[str], None],
    watchdog: Watchdog,
) -> None:
    while not ended.is_set():
        watchdog.expect("the heartbeat", _REPORT_SECONDS)
        try:
            beat(leases, namespace, EXTENSION_TYPE)
        except ApiError as error:
            log(f"the heartbeat cannot be written: {error}")
        ended.wait(_BEAT_SECONDS)
