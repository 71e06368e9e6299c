"""A client that writes only as long as this replica leads: asked before each request, not once before a
decision that may have waited for something in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from installer.operator.api import MERGE, ApiError, KubeApi, Page, Resource
from installer.operator.kube_objects import Object


class Fenced(KubeApi):
    """See KubeApi. Writing raises ApiError where `held` says that another replica may lead by now."""

    def __init__(self, client: KubeApi, held: Callable[[], bool]) -> None:
        self._client, self._held = client, held

    def _writer(self) -> KubeApi:
        if not self._held():
            raise ApiError(0, "this replica is no longer the leader")
        return self._client

    def now(self) -> datetime:
        return self._client.now()

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", limit: int = 0, fields: str = ""
    ) -> Iterable[Page]:
        return self._client.list_pages(resource, selector, namespace, limit, fields)

    def watch(self, resource: Resource, version: str, selector: str = "") -> Iterable[tuple[str, Object]]:
        return self._client.watch(resource, version, selector)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self._client.get(resource, namespace, name)

    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Object:
        return self._writer().create(resource, namespace, body)

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

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self._client.within(seconds)

    def close(self) -> None:
        self._client.close()
