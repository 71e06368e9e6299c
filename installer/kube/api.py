"""What is asked of an API server: kinds, pages, errors. Imports no library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from installer.kube.objects import Object


class Resource(NamedTuple):
    """A kind as its path has it."""

    group: str
    version: str
    plural: str


LEASES = Resource("coordination.k8s.io", "v1", "leases")
EVENTS = Resource("events.k8s.io", "v1", "events")
DAEMON_SETS = Resource("apps", "v1", "daemonsets")


class ApiError(Exception):
    """A request that did not do what it should. `code` is that of HTTP; 0: no answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code

    @property
    def missing(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        """The object has changed meanwhile, or is there already."""
        return self.code == 409

    @property
    def expired(self) -> bool:
        """Nobody knows any more what happened since that resource version."""
        return self.code == 410


@dataclass(frozen=True, slots=True)
class Page:
    """`version` is the resource version of the whole list, on every page of it."""

    items: tuple[Object, ...]
    version: str


class ObjectApi(Protocol):
    """What everybody here needs of an API server. See KubeClient."""

    def get(self, resource: Resource, namespace: str, name: str) -> Object: ...
    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Object: ...
    def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        status: bool = False,
    ) -> Object: ...
