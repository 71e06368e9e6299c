"""Gardener's extension at work: mirrors of the seed on one side, decisions carried out on the other.

Every decision is made from what the seed has now (decide.py). The threads here only queue each Extension
when something in its namespace has changed, or when it is time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from installer.gardener.decide import Decision, Render, Situation, after_sweep, decide
from installer.gardener.desired import EXTENSION_TYPE
from installer.gardener.mirror import Key, Mirror
from installer.gardener.nodes import Nodes
from installer.gardener.pulses import Pulses
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
from installer.gardener.work_queue import WorkQueue
from installer.gardener.write import carry_out
from installer.model.names import Mode
from installer.operator.api import ApiError, KubeApi
from installer.operator.kube_objects import Object

ORIGIN = "origin=cri-resmgr-installer"  # the label of our ManagedResources
_WORKERS = 8
_LOOK_SECONDS = 900.0  # one look at an Extension takes that long only where it hangs


class Setup(NamedTuple):
    """`resource` is the name of the ManagedResource of every Shoot; `instance` who acts, for the Lease and
    the events. The threads tell `pulses` that they are alive. `pace` stretches the times between two looks,
    `lease_pace` those of the Lease: tests are in a hurry."""

    renderer: Render
    resource: str
    instance: str
    connect: Callable[[bytes], KubeApi]
    pulses: Pulses
    pace: float = 1.0
    lease_pace: float = 1.0


class Controller:
    """`log` is called with what an operator should know, one line at a time, from any thread."""

    def __init__(self, seed: KubeApi, setup: Setup, log: Callable[[str], None]) -> None:
        self._seed, self._setup, self._log = seed, setup, log
        self._queue: WorkQueue[Key] = WorkQueue()
        self._extensions = Mirror(seed, EXTENSIONS, _parse_ours, self._queue.add, "", log, setup.pulses)
        self._clusters = Mirror(seed, CLUSTERS, parse_cluster, self._cluster_changed, "", log, setup.pulses)
        self._resources = Mirror(
            seed, MANAGED_RESOURCES, parse_managed_resource, self._resource_changed, ORIGIN, log, setup.pulses
        )
        self._shoots = Shoots(
            seed, setup.resource, setup.connect, self._namespace_changed, log, setup.pulses, setup.pace
        )
        self._told: dict[Key, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Until `stop`, or until a thread has ended of itself, which is a bug: a mirror that nobody keeps up
        to date must not be decided from. What has been begun is finished, but for requests without an answer.
        """
        mirrors = (self._extensions, self._clusters, self._resources)
        threads = [threading.Thread(target=each.run, args=(stop,), daemon=True) for each in mirrors]
        for thread in threads:
            thread.start()
        # What the mirrors do not have yet must not look as if it were gone.
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

    def _cluster_changed(self, key: Key) -> None:
        self._namespace_changed(key[1])

    def _resource_changed(self, key: Key) -> None:
        self._namespace_changed(key[0])

    def _namespace_changed(self, namespace: str) -> None:
        for key in self._extensions.keys_of(namespace):
            self._queue.add(key)

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            failed, who = True, "/".join(key)
            self._setup.pulses.expect(who, _LOOK_SECONDS)
            try:
                again = self.look_at(key)
                failed = False
                if again is not None:
                    self._queue.add(key, again * self._setup.pace)
            except ApiError as error:
                # Another one was quicker: what it wrote comes by the watch.
                self._complain(key, "" if error.conflict else f"{error}")
            except Exception as error:
                self._complain(key, f"{type(error).__name__}: {error}; this is a bug")
            finally:
                self._setup.pulses.rest(who)
                self._queue.done(key, failed)

    def _complain(self, key: Key, what: str) -> None:
        """Once, until it is another one."""
        if what and self._told.get(key) != what:
            self._log(f"{'/'.join(key)}: {what}; tried again")
            self._told[key] = what

    def look_at(self, key: Key) -> float | None:
        """Decides and acts; the seconds until it is time again. Raises ApiError."""
        extension = self._extensions.get(*key)
        if extension is None:
            self._shoots.forget(key[0])
            self._told.pop(key, None)
            return None
        namespace = extension.namespace
        situation = Situation(
            extension=extension,
            shoot=self._clusters.get("", namespace),
            resource=self._resources.get(namespace, self._setup.resource),
            now=datetime.now(UTC),
        )
        answers: dict[tuple[Mode, str], Nodes | None] = {}
        decision = self._decide(situation, answers)
        if decision.delete or decision.remove_finalizer:
            # A mirror may be late, each by itself: nothing is given up for what it does not show yet.
            found = self._read_again(situation)
            if found is None:
                return None
            situation, decision = found, self._decide(found, answers)
        if decision.sweep:
            decision = after_sweep(situation, decision, self._shoots.sweep(namespace))
        if decision.uninstall:
            self._shoots.uninstall(namespace)
        carry_out(self._seed, situation, decision, self._setup.instance)
        self._say(key, decision.report.operation)
        return decision.again

    def _decide(self, situation: Situation, answers: dict[tuple[Mode, str], Nodes | None]) -> Decision:
        """`answers` are those of this look: each question is asked once."""
        namespace, resource = situation.extension.namespace, situation.resource
        about = resource.version if resource is not None else ""

        def ask(mode: Mode) -> Nodes | None:
            if (mode, about) not in answers:
                answers[mode, about] = self._shoots.ask(namespace, mode, about)
            return answers[mode, about]

        return decide(situation, self._setup.renderer, ask)

    def _read_again(self, situation: Situation) -> Situation | None:
        """What the API server has, instead of the mirrors; None without the Extension. Raises ApiError."""
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

    def _say(self, key: Key, operation: Operation | None) -> None:
        said = f"{operation.kind} {operation.state}: {operation.description}" if operation else ""
        if said and self._told.get(key) != said:
            self._told[key] = said
            self._log(f"{'/'.join(key)}: {said}")


def _parse_ours(given: Object) -> Extension | None:
    extension = parse_extension(given)
    return extension if extension.type == EXTENSION_TYPE else None
