"""The simulated nodes at a real API server, on a clock that nobody turns: each question of a node is asked by
the program's own client, with the token of a pod on that node, while others ask theirs.

The host below, kubelet and the DaemonSet controller stay simulated: what a pod does to become Ready, and what
the DaemonSet's status says of that.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from installer.cluster.kubeapi import Answer, KubeApi
from installer.cluster.leases import read_permits
from installer.cluster.sync_child import Sync, parse_request
from installer.host.command import Finished
from installer.manifests import ManifestOptions, render_objects
from installer.model.daemon import Job
from installer.model.jsontext import to_json
from tests.faults.fleets.sim import Clock
from tests.faults.fleets.sim_loop import Child, SimLoop
from tests.lib.fleet_bench import DAEMONSET, LEASES
from tests.lib.throwaway.controlplane import Caller, ControlPlane
from tests.lib.throwaway.fleet import kind_of

_AT_ONCE = 16  # children: as many as two cores bear
_NAMESPACE, _ACCOUNT = "kube-system", "cri-resmgr-installer"
_CHILD_SECONDS = 12.0


class RealClock(Clock):
    """Calls come in their time; those of other threads as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()

    def from_thread(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def run(self, until: float, done: Callable[[], bool] = lambda: False, each: int = 64) -> None:
        looked = 0.0
        while (now := time.monotonic() - self._begun) < until:
            super().run(now)
            if now - looked >= 1.0:
                looked = now
                if done():
                    return
            try:
                call = self._calls.get(timeout=max(0.001, min(0.1, self.next_due() - now)))
            except queue.Empty:
                continue
            self.now = max(self.now, time.monotonic() - self._begun)
            call()


class RealStore:
    """See Store: the part of it that a fleet asks. `most_held` permits at any resourceVersion so far, and
    `seconds` of each request."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane, self._directory = plane, directory
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._names: list[tuple[str, bool]] = []
        self._leases: dict[str, dict[str, Any]] = {}
        self._size: tuple[int, int] | None = None
        self._lock, self._stop = threading.Lock(), threading.Event()
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self.most_held = self.versions = 0

    @property
    def now(self) -> float:
        return time.time()

    # -- what is there before -----------------------------------------------------------------------

    def node(self, name: str, *, canary: bool = False) -> None:
        assert not canary
        self._names.append((name, canary))

    def __enter__(self) -> Self:
        """Our manifests, the nodes with a pod each, and whoever watches their Leases."""
        self._directory.mkdir(parents=True, exist_ok=True)
        values = self._directory / "values.yaml"
        values.write_text("images: {installer: 'image:1'}\nannotateNode: true\n")
        for body in render_objects(ManifestOptions(values=values), lambda _: None):
            kind, namespace = kind_of(body), body["metadata"].get("namespace", "")
            place = f"/namespaces/{namespace}" if namespace else ""
            _made(self._plane.admin, f"{kind.prefix}{place}/{kind.plural}", body)
        list(self._pool.map(self._add_node, [name for name, _ in self._names]))
        version = self._plane.admin.call("GET", LEASES).body["metadata"]["resourceVersion"]
        threading.Thread(target=self._watch, args=(version,), daemon=True).start()
        threading.Thread(target=self._tell_sizes, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def _add_node(self, name: str) -> None:
        admin = self._plane.admin
        _made(admin, "/api/v1/nodes", {"metadata": {"name": name}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        admin.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": ready})
        spec = {
            "nodeName": name,
            "serviceAccountName": _ACCOUNT,
            "containers": [{"name": "c", "image": "i"}],
            "tolerations": [{"operator": "Exists"}],
        }
        pod = {"metadata": {"name": f"{_ACCOUNT}-{name}", "namespace": _NAMESPACE}, "spec": spec}
        place = self._directory / name
        place.mkdir()
        made = _made(admin, f"/api/v1/namespaces/{_NAMESPACE}/pods", pod)
        (place / "token").write_text(self._plane.token_of(made))
        (place / "ca.crt").write_bytes(self._plane.authority.read_bytes())

    # -- what happens -------------------------------------------------------------------------------

    def api(self, name: str) -> KubeApi:
        """What a child of this node asks with."""
        deadline = time.monotonic() + _CHILD_SECONDS
        return KubeApi("127.0.0.1", self._plane.port, self._directory / name, deadline)

    def asked(self, seconds: float, answer: Answer) -> None:
        with self._lock:
            self.seconds.append(seconds)
            if not answer.code or answer.denied or answer.code >= 500:
                self.failures.append(answer.failure)

    def submit(self, call: Callable[[], None]) -> None:
        self._pool.submit(call)

    def size(self, nodes: int, waiting: int = 0) -> None:
        self._size = nodes, waiting

    def _tell_sizes(self) -> None:
        """The newest of them: the DaemonSet controller does not write each either."""
        told, admin = None, self._plane.admin
        while not self._stop.wait(0.2):
            if self._size != told and self._size is not None:
                told = self._size
                numbers = {"desiredNumberScheduled": told[0], "currentNumberScheduled": told[0]}
                numbers |= {"numberUnavailable": told[1], "numberReady": told[0] - told[1]}
                status = {**numbers, "numberMisscheduled": 0, "observedGeneration": 1}
                admin.call("PATCH", f"{DAEMONSET}/status", {"status": status})

    def _watch(self, version: str) -> None:
        """Each resourceVersion of the permits, one after the other."""
        admin = self._plane.admin
        while not self._stop.is_set():
            for event in admin.watch(f"{LEASES}?resourceVersion={version}&timeoutSeconds=50"):
                lease = event["object"]
                version = lease["metadata"]["resourceVersion"]
                name = lease["metadata"]["name"]
                with self._lock:
                    self._leases.pop(name, None)
                    if event["type"] != "DELETED":
                        self._leases[name] = lease
                    held = sum(bool(each.holder) for each in read_permits(list(self._leases.values())))
                    self.most_held, self.versions = max(self.most_held, held), self.versions + 1

    def leases(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._leases.values())


class _Asking:
    """One child's connection; each request of it counts."""

    def __init__(self, node: Any, api: KubeApi, store: RealStore) -> None:
        self._node, self._api, self._store = node, api, store

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        begun = time.monotonic()
        answer = self._api.call(method, path, body)
        self._store.asked(time.monotonic() - begun, answer)
        self._node.fleet.clock.from_thread(lambda: self._node.count(method, path))
        return answer


class RealLoop(SimLoop):
    """Its children ask at once, each in a thread."""

    def start(self, job: Job) -> Child:
        node: Any = self._api
        child, fleet = Child(), node.fleet

        def heard(output: str) -> None:
            if not child.killed and not self._is_over():
                job.on_line(output)
                job.on_end(0)

        def ask() -> None:
            try:
                output = self.run(job.argv, job.deadline).output
            except BaseException as error:
                failed = error  # in the thread that everybody looks at
                fleet.clock.from_thread(lambda: _raise(failed))
            else:
                fleet.clock.from_thread(lambda: heard(output))

        fleet.store.submit(ask)
        return child

    def run(self, argv: Sequence[str], _seconds: float) -> Finished:
        node: Any = self._api
        store: RealStore = node.fleet.store
        api = store.api(node.name)
        try:
            return Finished(
                tuple(argv),
                0,
                to_json(Sync(_Asking(node, api, store), parse_request(argv[-1]), self._wall).run()),
            )
        finally:
            api.close()


def _raise(error: BaseException) -> None:
    raise error


def _made(admin: Caller, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answer = admin.call("POST", path, body)
    assert answer.ok or answer.code == 409, answer
    return answer.body
