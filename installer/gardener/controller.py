"""Gardener's controller at work: mirrors of the seed on one side, decisions and their writes on the other.

Every decision is made from what the seed has now (decide.py). The threads here only queue each Extension when
something in its namespace has changed, or when its time has come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from installer.gardener.decide import Decision, Situation, after_sweep, decide, refused
from installer.gardener.managed_resource import EXTENSION_TYPE, Renderer
from installer.gardener.mirror import Key, Mirror
from installer.gardener.nodes import Nodes
from installer.gardener.resources import (
    CLUSTERS,
    EXTENSIONS,
    MANAGED_RESOURCES,
    Extension,
    parse_cluster,
    parse_extension,
    parse_managed_resource,
)
from installer.gardener.shoots import Shoots
from installer.gardener.status import Operation
from installer.gardener.watchdog import Watchdog
from installer.gardener.work_queue import WorkQueue
from installer.gardener.write_decision import write_decision
from installer.model.names import Mode
from installer.operator.api import ApiError, KubeApi
from installer.operator.kube_objects import Object, cut_line

ORIGIN = "origin=cri-resmgr-installer"  # the label of our ManagedResources
_REFUSALS = (400, 403, 413, 422)  # a webhook, a quota, an object that is too large: not a passing error
_WORKERS = 8
_WORK_SECONDS = 900.0  # on one Extension; more only where a thread hangs


class Setup(NamedTuple):
    """`resource` is the name of the ManagedResource of every Shoot; `instance` is who acts, for the Lease
    and the Events. The threads report to `watchdog`. `pace` scales the times between two looks at an
    Extension, `lease_pace` those of the Lease: tests are in a hurry."""

    renderer: Renderer
    resource: str
    instance: str
    connect: Callable[[bytes], KubeApi]
    watchdog: Watchdog
    pace: float = 1.0
    lease_pace: float = 1.0


class Controller:
    """Calls `log` with what an operator should know, one line at a time, from any thread."""

    def __init__(self, seed: KubeApi, setup: Setup, log: Callable[[str], None]) -> None:
        self._seed, self._setup, self._log = seed, setup, log
        self._queue: WorkQueue[Key] = WorkQueue()
        told = log, setup.watchdog
        self._extensions = Mirror(seed, EXTENSIONS, _parse_ours, self._queue.add, *told)
        self._clusters = Mirror(seed, CLUSTERS, parse_cluster, lambda key: self._changed(key[1]), *told)
        self._resources = Mirror(
            seed, MANAGED_RESOURCES, parse_managed_resource, lambda key: self._changed(key[0]), *told, ORIGIN
        )
        self._shoots = Shoots(
            seed, setup.resource, setup.connect, self._changed, log, setup.watchdog, setup.pace
        )
        self._logged: dict[Key, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`, or until a thread ends by itself, which is a bug: no decision may rest on a
        mirror that no thread keeps up to date. Finishes the work that has begun, except requests without an
        answer."""
        mirrors = (self._extensions, self._clusters, self._resources)
        threads = [threading.Thread(target=each.run, args=(stop,), daemon=True) for each in mirrors]
        for thread in threads:
            thread.start()
        # An object that a mirror does not have yet must not look as if it were gone.
        while not all(each.complete.is_set() for each in mirrors) and not stop.wait(0.05):
            continue
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(_WORKERS)]
        askers = self._shoots.threads()
        for each in (*workers, *askers):
            each.start()
        while not stop.wait(1.0):
            if not all(thread.is_alive() for thread in (*threads, *workers, *askers)):
                self._log("a thread has ended unexpectedly; this is a bug")
                break
        self._queue.close()
        for worker in workers:
            worker.join(30)
        self._shoots.close()

    def _changed(self, namespace: str) -> None:
        for key in self._extensions.keys_of(namespace):
            self._queue.add(key)

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            failed, who = True, "/".join(key)
            self._setup.watchdog.expect(who, _WORK_SECONDS)
            try:
                again = self.reconcile(key)
                failed = False
                if again is not None:
                    self._queue.add(key, again * self._setup.pace)
            except ApiError as error:
                # On a conflict another writer was quicker: the watch brings what it wrote.
                self._complain(key, "" if error.conflict else f"{error}")
            except Exception as error:
                self._complain(key, f"{type(error).__name__}: {error}; this is a bug")
            finally:
                self._setup.watchdog.rest(who)
                self._queue.done(key, failed)

    def _complain(self, key: Key, what: str) -> None:
        """Log it once, until something else is wrong."""
        if what and self._logged.get(key) != what:
            self._log(f"{'/'.join(key)}: {what}; retried")
            self._logged[key] = what

    def reconcile(self, key: Key) -> float | None:
        """Decide and act. Returns the seconds until it is due again. Raises ApiError."""
        extension = self._extensions.get(*key)
        if extension is None:
            self._shoots.forget(key[0])
            self._logged.pop(key, None)
            return None
        namespace = extension.namespace
        situation = Situation(
            extension=extension,
            shoot=self._clusters.get("", namespace),
            resource=self._resources.get(namespace, self._setup.resource),
            now=time.time(),
        )
        answers: dict[tuple[Mode, str], Nodes | None] = {}
        decision = self._decide(situation, answers)
        if decision.delete or decision.remove_finalizer or situation.resource is None:
            # Each mirror may be late: nothing is given up or called gone because a mirror does not show it.
            found = self._read_again(situation)
            if found is None:
                return None
            situation, decision = found, self._decide(found, answers)
        if decision.sweep:
            decision = after_sweep(situation, decision, self._shoots.sweep(namespace), self._setup.renderer)
        if decision.uninstall:
            self._shoots.uninstall(namespace)
        try:
            write_decision(self._seed, situation, decision, self._setup.instance)
        except ApiError as error:
            if decision.write is not None and error.code in _REFUSALS:
                told = refused(situation, decision, cut_line(f"{error}"))
                write_decision(self._seed, situation, told, self._setup.instance)
            raise
        self._log_operation(key, decision.report.operation)
        return decision.again

    def _decide(self, situation: Situation, answers: dict[tuple[Mode, str], Nodes | None]) -> Decision:
        """`answers` collects the Shoot's answers: each question is asked once."""
        namespace, resource = situation.extension.namespace, situation.resource
        about = resource.version if resource is not None else ""

        def ask(mode: Mode) -> Nodes | None:
            if (mode, about) not in answers:
                answers[mode, about] = self._shoots.ask(namespace, mode, about)
            return answers[mode, about]

        return decide(situation, self._setup.renderer, ask)

    def _read_again(self, situation: Situation) -> Situation | None:
        """Read from the API server what the mirrors have; None without the Extension. Raises ApiError."""
        extension = situation.extension
        given = self._seed.find(EXTENSIONS, extension.namespace, extension.name)
        if not given:
            return None
        cluster = self._seed.find(CLUSTERS, "", extension.namespace)
        resource = self._seed.find(MANAGED_RESOURCES, extension.namespace, self._setup.resource)
        return Situation(
            extension=parse_extension(given),
            shoot=parse_cluster(cluster) if cluster else None,
            resource=parse_managed_resource(resource) if resource else None,
            now=situation.now,
        )

    def _log_operation(self, key: Key, operation: Operation | None) -> None:
        line = f"{operation.kind} {operation.state}: {operation.description}" if operation else ""
        if line and self._logged.get(key) != line:
            self._logged[key] = line
            self._log(f"{'/'.join(key)}: {line}")


def _parse_ours(given: Object) -> Extension | None:
    extension = parse_extension(given)
    return extension if extension.type == EXTENSION_TYPE else None
