"""The door to API servers: the only importer of the client that Kubernetes keeps
(https://github.com/kubernetes-client/python), which brings connections, credentials that change, and the
parsing of watches. What is asked for is plain JSON. Nothing is tried twice here: the caller does that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from kubernetes import client as library
from kubernetes import config as credentials
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.watch import Watch
from urllib3.exceptions import HTTPError

from installer.errors import InvalidInputError
from installer.kube.api import ApiError, Page, Resource
from installer.kube.objects import Object

PAGE = 50  # objects of one answer: a Cluster alone may have 200 KB
_PATIENCE = (5.0, 30.0)  # seconds to connect, and between two pieces of an answer
_WATCH_SECONDS = 300  # then the server ends a watch, and it is begun again
_SILENCE = 120.0  # seconds; the server sends a bookmark about once a minute
_CONNECTIONS = 24
_MERGE = "application/merge-patch+json"  # RFC 7386


class KubeClient:
    """One API server. Every method raises ApiError; all of them may be called from any thread."""

    def __init__(self, connection: library.ApiClient) -> None:
        self._connection = connection
        self._custom = library.CustomObjectsApi(connection)
        self._core = library.CoreV1Api(connection)

    def list_pages(self, resource: Resource, selector: str = "") -> Iterator[Page]:
        """All objects of the cluster that the label selector chooses."""
        position: str | None = None
        while position != "":
            chosen = {"label_selector": selector} if selector else {}
            chosen |= {"_continue": position} if position else {}
            body = _call(self._custom.list_cluster_custom_object, *resource, limit=PAGE, **chosen)
            metadata = body.get("metadata") or {}
            position = str(metadata.get("continue") or "")
            yield Page(tuple(body.get("items") or ()), str(metadata.get("resourceVersion") or ""))

    def watch(self, resource: Resource, version: str, selector: str = "") -> Iterator[tuple[str, Object]]:
        """ADDED, MODIFIED, DELETED and BOOKMARK with the object, from `version` on. Ends when the server ends
        it."""
        chosen = {"label_selector": selector} if selector else {}
        events = Watch().stream(
            self._custom.list_cluster_custom_object,
            *resource,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_SECONDS,
            _request_timeout=(_PATIENCE[0], _SILENCE),
            **chosen,
        )
        with _translated():
            for event in events:
                if isinstance(event, dict) and isinstance(event.get("raw_object"), dict):
                    yield str(event.get("type")), event["raw_object"]

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Without a namespace, what has none."""
        group, version, plural = resource
        if not namespace:
            return _call(self._custom.get_cluster_custom_object, group, version, plural, name)
        return _call(self._custom.get_namespaced_custom_object, group, version, namespace, plural, name)

    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Object:
        group, version, plural = resource
        return _call(
            self._custom.create_namespaced_custom_object, group, version, namespace, plural, dict(body)
        )

    def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        status: bool = False,
    ) -> Object:
        """A JSON merge patch of the object or of its status. With the object's `metadata.resourceVersion` in
        it, it conflicts where another one was quicker."""
        group, version, plural = resource
        how = (
            self._custom.patch_namespaced_custom_object_status
            if status
            else self._custom.patch_namespaced_custom_object
        )
        return _call(how, group, version, namespace, plural, name, dict(patch), _content_type=_MERGE)

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Does nothing where it is not there."""
        group, version, plural = resource
        try:
            _call(self._custom.delete_namespaced_custom_object, group, version, namespace, plural, name)
        except ApiError as error:
            if not error.missing:
                raise

    def create_secret(self, secret: Mapping[str, Any]) -> None:
        metadata = secret["metadata"]
        body = library.V1Secret(
            api_version="v1",
            kind="Secret",
            metadata=library.V1ObjectMeta(
                name=metadata["name"], namespace=metadata["namespace"], labels=metadata.get("labels")
            ),
            type=secret["type"],
            immutable=secret["immutable"],
            data=dict(secret["data"]),
        )
        _read(self._core.create_namespaced_secret, metadata["namespace"], body)

    def read_secret(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """Its data, decoded."""
        found = _read(self._core.read_namespaced_secret, name, namespace).get("data") or {}
        return {key: b64decode(value) for key, value in found.items()}

    def list_nodes(self, selector: str) -> tuple[Object, ...]:
        return _items(_read(self._core.list_node, label_selector=selector))

    def list_pods(self, namespace: str, selector: str) -> tuple[Object, ...]:
        return _items(_read(self._core.list_namespaced_pod, namespace, label_selector=selector))

    def list_events(self, namespace: str, selector: str) -> tuple[Object, ...]:
        """`selector` is one of fields."""
        return _items(_read(self._core.list_namespaced_event, namespace, field_selector=selector))

    def close(self) -> None:
        self._connection.close()


def connect() -> KubeClient:
    """The cluster of $KUBECONFIG, else that of the pod.

    Raises InvalidInputError where there is neither.
    """
    configuration = library.Configuration()
    path = os.environ.get("KUBECONFIG")
    try:
        if path:
            credentials.load_kube_config(config_file=path, client_configuration=configuration)
        else:
            credentials.load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError, yaml.YAMLError) as error:
        where = f"KUBECONFIG: {path}" if path else "neither KUBECONFIG nor a service account of a pod"
        raise InvalidInputError(
            [f"{where}: {error}"], "run it in a pod of the seed, or set KUBECONFIG"
        ) from None
    return _client(configuration)


def connect_with(kubeconfig: bytes) -> KubeClient:
    """The cluster of a kubeconfig's text.

    Raises ApiError where it is not one.
    """
    configuration = library.Configuration()
    try:
        given = yaml.safe_load(kubeconfig)
        credentials.load_kube_config_from_dict(given, client_configuration=configuration)
    except (ConfigException, yaml.YAMLError, OSError, TypeError, AttributeError) as error:
        raise ApiError(0, f"its kubeconfig cannot be read: {error}") from None
    return _client(configuration)


def _client(configuration: Any) -> KubeClient:
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    return KubeClient(library.ApiClient(configuration))


def _call(method: Callable[..., Any], *arguments: Any, **options: Any) -> Mapping[str, Any]:
    with _translated():
        found = method(*arguments, _request_timeout=_PATIENCE, **options)
    return found if isinstance(found, dict) else {}


def _read(method: Callable[..., Any], *arguments: Any, **options: Any) -> Mapping[str, Any]:
    """As plain JSON, where the library would make an object of its own."""
    with _translated():
        response = method(*arguments, _preload_content=False, _request_timeout=_PATIENCE, **options)
        with contextlib.closing(response):
            found = json.loads(response.data)
            if not 200 <= response.status < 300:
                raise ApiError(response.status, _said(found))
    return found if isinstance(found, dict) else {}


def _items(body: Mapping[str, Any]) -> tuple[Object, ...]:
    return tuple(each for each in body.get("items") or () if isinstance(each, dict))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        try:
            said = _said(json.loads(error.body or ""))
        except ValueError:
            said = ""
        # An event of a watch has its code in its text only.
        code = error.status or 0
        raise ApiError(int(code), said or str(error.reason)) from None
    except (HTTPError, OSError) as error:
        raise ApiError(0, f"no answer: {_cause(error)}") from None
    except ValueError as error:
        raise ApiError(0, f"an answer that is not the API's: {error}") from None


def _said(body: object) -> str:
    message = body.get("message") if isinstance(body, dict) else None
    return message if isinstance(message, str) else ""


def _cause(error: Exception) -> str:
    """Without the address of an object, which would differ each time."""
    text = str(error) or type(error).__name__
    return re.sub(r"<[^>]*>:? ?", "", text)
