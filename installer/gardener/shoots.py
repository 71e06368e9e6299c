"""Asks the API servers of the Shoots, in threads of their own: a slow, sick or hostile server must cost the
other Shoots nothing. The caller is called back when the answer is there.

One thread at a time asks a Shoot, and one Shoot gets at most a tenth of its time: after a long answer the
next question waits ten times as long. Credentials are rotated: the Secret is read again whenever a Shoot
does not answer.
"""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from installer.gardener.nodes import Nodes, ask_nodes
from installer.gardener.sweep import Swept, sweep
from installer.gardener.watchdog import Watchdog
from installer.gardener.work_queue import WorkQueue
from installer.model.names import Mode
from installer.operator.api import SECRETS, ApiError, KubeApi
from installer.operator.inventory import delete_installation
from installer.operator.kube_objects import cut_line, mapping_at

_ACCESS = ("gardener-internal", "gardener")
"""Secrets of a Shoot's namespace with a kubeconfig of its API server, the nearer address first
(NewClientForShoot of gardener/gardener)."""
_ASKERS = 4
_ASK_SECONDS = 60.0  # for all requests of a question
_SWEEP_SECONDS = 120.0  # then the next sweep continues
_REPORT_SECONDS = 300.0
_SHARE = 10.0
_FRESH = 20.0  # seconds for which a healthy Shoot is not asked again


class _What(Enum):
    NODES = "nodes"
    SWEEP = "sweep"
    UNINSTALL = "uninstall"


class _Question(NamedTuple):
    """`about` says what the answer is valid for: the resource version of the ManagedResource."""

    what: _What
    mode: Mode
    about: str


class _Answer(NamedTuple):
    """`time` is monotonic, `took` in seconds. `taken`: it was given out."""

    question: _Question
    time: float
    took: float
    content: Nodes | Swept
    taken: bool = False


class Shoots:
    """`instance` is the name of our installation in each Shoot. Calls `answered` with the namespace, from any
    thread. `pace` scales the times between two questions."""

    def __init__(
        self,
        seed: KubeApi,
        instance: str,
        connect: Callable[[bytes], KubeApi],
        answered: Callable[[str], None],
        log: Callable[[str], None],
        watchdog: Watchdog,
        pace: float = 1.0,
    ) -> None:
        self._seed, self._instance, self._connect = seed, instance, connect
        self._answered, self._log, self._watchdog, self._pace = answered, log, watchdog, pace
        self._queue: WorkQueue[str] = WorkQueue()
        self._lock = threading.Lock()
        self._clients: dict[str, KubeApi] = {}
        self._questions: dict[str, _Question] = {}
        self._answers: dict[str, _Answer] = {}

    def threads(self) -> list[threading.Thread]:
        """Return the threads that ask. They end after `close`."""
        return [threading.Thread(target=self._work, daemon=True) for _ in range(_ASKERS)]

    def ask(self, namespace: str, mode: Mode, about: str) -> Nodes | None:
        """Return None until there is an answer. An answer is given once; that a Shoot is healthy, as long
        as it is fresh and the ManagedResource has the resource version `about`."""
        found = self._answer(namespace, _Question(_What.NODES, mode, about))
        return found if isinstance(found, Nodes) else None

    def sweep(self, namespace: str) -> Swept | None:
        """Return None until there is an answer, which is given once."""
        found = self._answer(namespace, _Question(_What.SWEEP, Mode.REMOVE, ""))
        return found if isinstance(found, Swept) else None

    def uninstall(self, namespace: str) -> None:
        """Delete the DaemonSet of our installation. `ask` says whether it is gone."""
        self._answer(namespace, _Question(_What.UNINSTALL, Mode.REMOVE, ""))

    def _answer(self, namespace: str, question: _Question) -> Nodes | Swept | None:
        with self._lock:
            last, pending = self._answers.get(namespace), self._questions.get(namespace)
            now, wait = time.monotonic(), 0.0
            if pending is not None and pending.what is not _What.NODES:
                return None  # a sweep or a deletion comes before the next question
            if last is not None:
                if last.question == question and (not last.taken or self._is_fresh(last, now)):
                    self._answers[namespace] = last._replace(taken=True)
                    return last.content
                wait = last.time + _SHARE * last.took - now
            self._questions[namespace] = question
        self._queue.add(namespace, max(0.0, wait))
        return None

    def _is_fresh(self, last: _Answer, now: float) -> bool:
        healthy = isinstance(last.content, Nodes) and last.content.done and last.question.mode is Mode.INSTALL
        return healthy and now - last.time <= _FRESH * self._pace

    def _work(self) -> None:
        while (namespace := self._queue.take()) is not None:
            with self._lock:
                question = self._questions.get(namespace)
            who = f"the question to {namespace}"
            try:
                if question is not None:
                    self._watchdog.expect(who, _REPORT_SECONDS)
                    self._put(namespace, question)
            except Exception as error:
                self._log(f"{namespace}: {type(error).__name__}: {error}; this is a bug")
            finally:
                self._watchdog.rest(who)
                self._queue.done(namespace)

    def _put(self, namespace: str, question: _Question) -> None:
        begun = time.monotonic()
        content = self._fetch(namespace, question)
        now = time.monotonic()
        with self._lock:
            forgotten = namespace not in self._questions
            if self._questions.get(namespace) == question:
                del self._questions[namespace]
                self._answers[namespace] = _Answer(question, now, now - begun, content)
        if forgotten:
            self._disconnect(namespace)
        else:
            self._answered(namespace)

    def _fetch(self, namespace: str, question: _Question) -> Nodes | Swept:
        """Whatever the question raises is its answer: a hostile API server may send what no client expects,
        and a question without an answer would never be asked again."""
        sweeps, now = question.what is _What.SWEEP, time.time()
        try:
            client = self._client_of(namespace)
            with client.within(_SWEEP_SECONDS if sweeps else _ASK_SECONDS):
                if question.what is _What.NODES:
                    return ask_nodes(client, self._instance, question.mode, now)
                if sweeps:
                    return sweep(client, self._instance, now)
                delete_installation(client, self._instance)
                return Nodes(pending="The DaemonSet of the installation is being deleted.")
        except Exception as error:
            if not isinstance(error, ApiError):
                self._log(f"{namespace}: {type(error).__name__}: {cut_line(str(error))}; this is a bug")
            self._disconnect(namespace)
            what = "what is left there" if sweeps else "its nodes"
            said = cut_line(str(error)) or type(error).__name__
            why = f"The Shoot's API server does not list {what}: {said}"
            return Swept(waits=why) if sweeps else Nodes(unknown=why)

    def _client_of(self, namespace: str) -> KubeApi:
        """Raises ApiError."""
        with self._lock:
            found = self._clients.get(namespace)
        if found is None:
            found = self._open(namespace)
            with self._lock:
                self._clients[namespace] = found
        return found

    def _open(self, namespace: str) -> KubeApi:
        """Raises ApiError."""
        for name in _ACCESS:
            secret = mapping_at(self._seed.find(SECRETS, namespace, name), "data")
            if "kubeconfig" in secret:
                return self._connect(b64decode(secret["kubeconfig"]))
        raise ApiError(0, f"there is no Secret {' or '.join(_ACCESS)} with a kubeconfig in {namespace}")

    def forget(self, namespace: str) -> None:
        with self._lock:
            self._answers.pop(namespace, None)
            self._questions.pop(namespace, None)
        self._disconnect(namespace)

    def _disconnect(self, namespace: str) -> None:
        with self._lock:
            client = self._clients.pop(namespace, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        self._queue.close()
        for namespace in list(self._clients):
            self._disconnect(namespace)
