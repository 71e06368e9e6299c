"""Keeps what the seed has of one kind of object up to date by a watch. Of an object it keeps only what is
parsed: a Cluster contains the whole Shoot, CloudProfile and Seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from installer.gardener.watchdog import Watchdog
from installer.operator.api import ApiError, KubeApi, Resource
from installer.operator.kube_objects import Object, text_at

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace (empty for what has none) and name."""

_FIRST, _LONGEST = 0.5, 30.0  # seconds of the back-off
REPORT_SECONDS = 300.0
"""From one report to the watchdog to the next: longer than a request, the silence of a watch or a
back-off."""


class Mirror(Generic[T]):
    """Calls `changed` with the key of each object that is new, changed or gone, from the thread of `run`.
    During an outage everything stays as it was last known."""

    def __init__(
        self,
        source: KubeApi,
        resource: Resource,
        parse: Callable[[Object], T | None],
        changed: Callable[[Key], None],
        log: Callable[[str], None],
        watchdog: Watchdog,
        selector: str = "",
    ) -> None:
        self._source, self._resource, self._selector = source, resource, selector
        self._parse, self._changed, self._log = parse, changed, log
        self._watchdog = watchdog
        self._known: dict[Key, tuple[str, T | None]] = {}
        self._lock = threading.Lock()
        self.complete = threading.Event()

    def get(self, namespace: str, name: str) -> T | None:
        with self._lock:
            return self._known.get((namespace, name), ("", None))[1]

    def keys_of(self, namespace: str) -> list[Key]:
        with self._lock:
            return [
                key for key, (_, value) in self._known.items() if key[0] == namespace and value is not None
            ]

    def run(self, stop: threading.Event) -> None:
        """Keep it up to date until `stop`."""
        version, failures = "", 0
        while not stop.is_set():
            self._watchdog.expect(self._resource.plural, REPORT_SECONDS)
            try:
                if not version:
                    version = self._list()
                for latest in self._follow(version):
                    self._watchdog.expect(self._resource.plural, REPORT_SECONDS)
                    version, failures = latest, 0
                    if stop.is_set():
                        return
                stop.wait(_FIRST)  # the server has ended the watch; do not begin it again at once
            except ApiError as error:
                if error.expired:
                    version = ""
                    stop.wait(_FIRST)  # a server may forget each list at once
                    continue
                failures += 1
                self._log(f"{self._resource.plural}: {error}; retried")
                stop.wait(backoff(failures))

    def _list(self) -> str:
        """List the objects; return the version of the list."""
        listed: dict[Key, tuple[str, T | None]] = {}
        version = ""
        for page in self._source.list_pages(self._resource, self._selector):
            self._watchdog.expect(self._resource.plural, REPORT_SECONDS)
            version = page.version
            listed |= {_key(item): (_version(item), self._parse(item)) for item in page.items}
        with self._lock:
            before, self._known = self._known, listed
        for key in before.keys() | listed.keys():
            if before.get(key, ("", None))[0] != listed.get(key, ("", None))[0]:
                self._changed(key)
        self.complete.set()
        return version

    def _follow(self, version: str) -> Iterable[str]:
        """Yield the version after each event."""
        for kind, given in self._source.watch(self._resource, version, self._selector):
            version = _version(given) or version
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                key = _key(given)
                with self._lock:
                    if kind == "DELETED":
                        self._known.pop(key, None)
                    else:
                        self._known[key] = (version, self._parse(given))
                self._changed(key)
            yield version


def backoff(failures: int, first: float = _FIRST) -> float:
    """Return seconds, with jitter, so that clients do not come back together."""
    return min(_LONGEST, first * 2.0 ** min(failures - 1, 10)) * random.uniform(0.8, 1.2)


def _key(given: Object) -> Key:
    return text_at(given, "metadata", "namespace"), text_at(given, "metadata", "name")


def _version(given: Object) -> str:
    return text_at(given, "metadata", "resourceVersion")
