"""Clients that write only as long as this replica leads: asked before each request, not once before a
decision that may have waited for something in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from installer.gardener.mirror import Source
from installer.gardener.shoots import ShootClient
from installer.gardener.write import SeedApi
from installer.operator.api import MERGE, ApiError, Page, PatchApi, Resource
from installer.operator.kube_objects import Object


class Seed(Source, SeedApi, Protocol):
    """See KubeClient."""


class _Writes(PatchApi, Protocol):
    def delete(self, resource: Resource, namespace: str, name: str) -> None: ...


C = TypeVar("C", bound=_Writes)


class _Fenced(Generic[C]):
    def __init__(self, client: C, held: Callable[[], bool]) -> None:
        self._client, self._held = client, held

    def _writer(self) -> C:
        """Raises ApiError where another replica may lead by now."""
        if not self._held():
            raise ApiError(0, "this replica does not lead any more")
        return self._client

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self._client.get(resource, namespace, name)

    def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        status: bool = False,
        content_type: str = MERGE,
    ) -> Object:
        return self._writer().merge(resource, namespace, name, patch, status, content_type)

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        self._writer().delete(resource, namespace, name)


class FencedSeed(_Fenced[Seed]):
    def list_pages(self, resource: Resource, selector: str = "") -> Iterable[Page]:
        return self._client.list_pages(resource, selector)

    def watch(self, resource: Resource, version: str, selector: str = "") -> Iterable[tuple[str, Object]]:
        return self._client.watch(resource, version, selector)

    def read_secret(self, namespace: str, name: str) -> Mapping[str, bytes]:
        return self._client.read_secret(namespace, name)

    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Object:
        return self._writer().create(resource, namespace, body)

    def create_secret(self, secret: Mapping[str, Any]) -> None:
        self._writer().create_secret(secret)


class FencedShoot(_Fenced[ShootClient]):
    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", limit: int = 50, fields: str = ""
    ) -> Iterable[Page]:
        return self._client.list_pages(resource, selector, namespace, limit, fields)

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self._client.within(seconds)

    def close(self) -> None:
        self._client.close()
