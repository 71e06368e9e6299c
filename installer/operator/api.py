"""The interface of API servers: kinds, pages, errors. Imports no library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from installer.operator.kube_objects import Object

MERGE = "application/merge-patch+json"  # RFC 7386
STRATEGIC = "application/strategic-merge-patch+json"  # lists by their keys


class Resource(NamedTuple):
    """A kind as its path names it. The group of the core API is empty."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        parts += ["namespaces", namespace] if namespace else []
        return "/" + "/".join([*parts, self.plural, *([name] if name else [])])


LEASES = Resource("coordination.k8s.io", "v1", "leases")
EVENTS = Resource("events.k8s.io", "v1", "events")
CORE_EVENTS = Resource("", "v1", "events")
"""The same Events in their older form, whose fields select what they are about."""
DAEMON_SETS = Resource("apps", "v1", "daemonsets")
NODES = Resource("", "v1", "nodes")
PODS = Resource("", "v1", "pods")
SECRETS = Resource("", "v1", "secrets")
CONFIG_MAPS = Resource("", "v1", "configmaps")


@dataclass(frozen=True, slots=True)
class Limits:
    """`seconds` and `size` (in bytes) bound a request with its answer; `pages` and `list_seconds` a list. The
    server ends a watch after `watch_seconds`. `page`: how many objects of a list one request asks for.
    `retries`: how often a read that the server asks to try again is tried again."""

    seconds: float = 30.0
    size: int = 64 << 20
    pages: int = 2000
    list_seconds: float = 600.0
    watch_seconds: int = 100
    page: int = 50  # a Cluster alone may have 200 KB
    retries: int = 0


USUAL = Limits()
KUBECTL = Limits(page=500, retries=10)
"""As kubectl asks (client-go, rest/request.go)."""
LEASE = Limits(seconds=3.0, size=1 << 20)
"""Far below the length of a Lease: after a longer wait, the holder could not know whether it still has it."""
SHOOT = Limits(seconds=10.0, size=4 << 20, pages=200, list_seconds=30.0)
"""For an API server that may be hostile. A page of 50 Nodes has about 1 MB."""


class ApiError(Exception):
    """A failed request. `code` is that of HTTP; 0: no answer. `more` continues a list
    whose version has expired. `retry_after`: the seconds after which the server, which has done nothing,
    asks to try again; 0: it does not. `too_large`: the answer, or its page of a list, exceeds the limit."""

    def __init__(
        self, code: int, message: str, more: str = "", retry_after: float = 0.0, too_large: bool = False
    ) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code, self.message, self.more = code, message, more
        self.retry_after, self.too_large = retry_after, too_large

    @property
    def missing(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        """The object has changed meanwhile, or exists already."""
        return self.code == 409

    @property
    def expired(self) -> bool:
        """The server no longer knows what happened since that resource version."""
        return self.code == 410


@dataclass(frozen=True, slots=True)
class Page:
    """`version` is the resource version of the first page: later pages may be newer."""

    items: tuple[Object, ...]
    version: str


class KubeApi:
    """One API server. Every method raises ApiError, and may be called from any thread. Without a namespace,
    methods are about objects that have none, and lists about all namespaces. An answer beyond the limits is
    an error."""

    def now(self) -> float:
        """Return the time of the epoch by the server's clock, as of its last answer: a person's machine may
        be hours off."""
        raise NotImplementedError

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", fields: str = ""
    ) -> Iterable[Page]:
        """Yield all objects that the label selector and the field selector select. If the version of the
        first page expires meanwhile, the rest is as it is now."""
        raise NotImplementedError

    def list_objects(self, resource: Resource, selector: str = "", namespace: str = "") -> Iterator[Object]:
        """Yield the same without their version. Holds one page at a time."""
        for page in self.list_pages(resource, selector, namespace):
            yield from page.items

    def watch(self, resource: Resource, version: str, selector: str = "") -> Iterable[tuple[str, Object]]:
        """Yield ADDED, MODIFIED, DELETED and BOOKMARK with the object, from `version` on, until the server
        ends the watch. Until then it may be silent, because unchanged objects cause no event; a server that
        is silent for longer is gone."""
        raise NotImplementedError

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        raise NotImplementedError

    def find(self, resource: Resource, namespace: str, name: str) -> Object:
        """Like `get`, but empty where there is none."""
        try:
            return self.get(resource, namespace, name)
        except ApiError as error:
            if error.missing:
                return {}
            raise

    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Object:
        raise NotImplementedError

    def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        status: bool = False,
        content_type: str = MERGE,
    ) -> Object:
        """Patch the object or its status. With the object's `metadata.resourceVersion`, the patch conflicts
        where another writer was quicker."""
        raise NotImplementedError

    def create_absent(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> bool:
        """Like `create`, but False where there is one already."""
        try:
            self.create(resource, namespace, body)
        except ApiError as error:
            if error.conflict:
                return False
            raise
        return True

    def merge_present(self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any]) -> bool:
        """Like `merge`, but False where there is none."""
        try:
            self.merge(resource, namespace, name, patch)
        except ApiError as error:
            if error.missing:
                return False
            raise
        return True

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete it; do nothing where there is none."""
        raise NotImplementedError

    def fence(self, may_write: Callable[[], bool]) -> None:
        """Let each write from now on raise ApiError unless `may_write` allows it. It is asked before each
        request, not once before a decision that may have waited for something in between."""
        raise NotImplementedError

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Bound all requests of this thread in the block together; after it they fail as without an
        answer."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
