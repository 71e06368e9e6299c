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
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from kubernetes import client as library
from kubernetes import config as credentials
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.watch import Watch
from urllib3.exceptions import HTTPError

from installer.errors import InvalidInputError
from installer.kube.api import CORE_EVENTS, MERGE, NODES, PODS, SECRETS, ApiError, Page, Resource
from installer.kube.objects import Object

PAGE = 50  # objects of one answer: a Cluster alone may have 200 KB
_PATIENCE = (5.0, 30.0)  # seconds to connect, and between two pieces of an answer
_WATCH_SECONDS = 300  # then the server ends a watch, and it is begun again
_SILENCE = 120.0  # seconds; the server sends a bookmark about once a minute
_CONNECTIONS = 24


class KubeClient:
    """One API server. Every method raises ApiError; all of them may be called from any thread. Without a
    namespace, objects that have none, and lists of all namespaces."""

    def __init__(self, connection: library.ApiClient) -> None:
        self._connection = connection
        self._custom = library.CustomObjectsApi(connection)
        self._offset = timedelta(0)

    def now(self) -> datetime:
        """By the clock of the server, as it has last said: a person's machine may be wrong by hours."""
        return datetime.now(UTC) + self._offset

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", limit: int = PAGE
    ) -> Iterator[Page]:
        """All objects that the label selector chooses, `limit` of them with each request."""
        position: str | None = None
        while position != "":
            query = {"limit": str(limit)}
            query |= {"labelSelector": selector} if selector else {}
            query |= {"continue": position} if position else {}
            body = self._request("GET", resource.path(namespace), query)
            metadata = body.get("metadata") or {}
            position = str(metadata.get("continue") or "")
            yield Page(_items(body), str(metadata.get("resourceVersion") or ""))

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
        return self._request("GET", resource.path(namespace, name))

    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Object:
        return self._request("POST", resource.path(namespace), body=body)

    def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        status: bool = False,
        content_type: str = MERGE,
    ) -> Object:
        """A patch of the object or of its status. With the object's `metadata.resourceVersion` in it, it
        conflicts where another one was quicker."""
        path = resource.path(namespace, name) + ("/status" if status else "")
        return self._request("PATCH", path, body=patch, content_type=content_type)

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Does nothing where it is not there."""
        try:
            self._request("DELETE", resource.path(namespace, name))
        except ApiError as error:
            if not error.missing:
                raise

    def create_secret(self, secret: Mapping[str, Any]) -> None:
        self.create(SECRETS, secret["metadata"]["namespace"], secret)

    def read_secret(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """Its data, decoded."""
        found = self.get(SECRETS, namespace, name).get("data") or {}
        return {key: b64decode(value) for key, value in found.items()}

    def list_nodes(self, selector: str) -> tuple[Object, ...]:
        return _items(self._request("GET", NODES.path(), {"labelSelector": selector}))

    def list_pods(self, namespace: str, selector: str) -> tuple[Object, ...]:
        return _items(self._request("GET", PODS.path(namespace), {"labelSelector": selector}))

    def list_events(self, namespace: str, selector: str) -> tuple[Object, ...]:
        """`selector` is one of fields."""
        return _items(self._request("GET", CORE_EVENTS.path(namespace), {"fieldSelector": selector}))

    def close(self) -> None:
        self._connection.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """By the library's connection alone: its methods for each kind differ from release to release, and
        make objects of their own where plain JSON is wanted."""
        configuration = self._connection.configuration
        headers = {"Accept": "application/json", **self._connection.default_headers}
        headers |= {"Content-Type": content_type} if body is not None else {}
        url = configuration.host + path + (f"?{urlencode(query)}" if query else "")
        with _translated():
            # Asked anew each time: a plugin's credentials change.
            headers |= {each["key"]: each["value"] for each in configuration.auth_settings().values()}
            response = self._connection.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=_PATIENCE
            )
            self._set_clock(getattr(response, "urllib3_response", response).headers.get("Date", ""))
            content = response.data if response.data is not None else response.read()
            if not 200 <= response.status < 300:
                raise ApiError(response.status, _message_in(content) or str(response.reason))
            found = json.loads(content)
        return found if isinstance(found, dict) else {}

    def _set_clock(self, date: str) -> None:
        with contextlib.suppress(ValueError, TypeError):
            self._offset = parsedate_to_datetime(date) - datetime.now(UTC)


def connect() -> KubeClient:
    """The cluster of $KUBECONFIG, else that of the pod: for the controller, which runs in one.

    Raises InvalidInputError where there is none.
    """
    path = os.environ.get("KUBECONFIG", "")
    return _connect(path, "", "run it in a pod of the seed, or set KUBECONFIG")


def connect_as_kubectl(kubeconfig: str = "", context: str = "") -> KubeClient:
    """The cluster that kubectl would ask: `kubeconfig`, else $KUBECONFIG (of several files), else
    ~/.kube/config, else that of the pod; with its context, certificates and plugins for credentials.

    Raises InvalidInputError where there is none.
    """
    usual = Path("~/.kube/config").expanduser()
    path = kubeconfig or os.environ.get("KUBECONFIG", "") or (str(usual) if usual.exists() else "")
    hint = "give --kubeconfig FILE, and --context NAME if it has several; `kubectl config view` shows them"
    return _connect(path, context, hint)


def _connect(path: str, context: str, hint: str) -> KubeClient:
    configuration = library.Configuration()
    try:
        if path:
            credentials.load_kube_config(
                config_file=path, context=context or None, client_configuration=configuration
            )
        else:
            credentials.load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError, yaml.YAMLError) as error:
        where = f"kubeconfig {path}" if path else "neither a kubeconfig nor a service account of a pod"
        raise InvalidInputError([f"{where}: {error}"], hint) from None
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


def _items(body: Mapping[str, Any]) -> tuple[Object, ...]:
    return tuple(each for each in body.get("items") or () if isinstance(each, dict))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        said = _message_in(error.body or "")
        # An event of a watch has its code in its text only.
        code = error.status or 0
        raise ApiError(int(code), said or str(error.reason)) from None
    except (HTTPError, OSError) as error:
        raise ApiError(0, f"no answer: {_cause(error)}") from None
    except ValueError as error:
        raise ApiError(0, f"an answer that is not the API's: {error}") from None


def _message_in(content: str | bytes) -> str:
    """Of a Status. A kind that the server does not know is answered with plain text."""
    try:
        body = json.loads(content)
    except ValueError:
        return ""
    message = body.get("message") if isinstance(body, dict) else None
    return message if isinstance(message, str) else ""


def _cause(error: Exception) -> str:
    """Without the address of an object, which would differ each time."""
    text = str(error) or type(error).__name__
    return re.sub(r"<[^>]*>:? ?", "", text)
