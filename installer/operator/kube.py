"""The door to API servers: the only importer of the official client library
(https://github.com/kubernetes-client/python), which provides connections, credentials that change, and the
parsing of watches. Requests and answers are plain JSON. Only reads that an overloaded server asks to try
again are retried here, and only for a person's command.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
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
from urllib3 import Timeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

from installer.errors import InvalidInputError
from installer.operator.api import KUBECTL, MERGE, USUAL, ApiError, KubeApi, Limits, Page, Resource
from installer.operator.bounded import Bounds, TooLargeError, bind, bounded, end_of, ending
from installer.operator.kube_objects import Object, cut_line, items_at, mapping_at, text_at

_CONNECT_SECONDS = 5.0
_FAR = float("inf")
_GRACE = 20.0  # seconds: a server may end a watch so late
_CONNECTIONS = 24
_SMALLER = 8  # times, where a page of a list is too large: others' objects may have 1.5 MB each
_TEXT = 4096  # characters of an error that are read
_LONGEST_PAUSE = 5.0  # seconds, whatever the Retry-After of a server says


class KubeClient(KubeApi):
    """See KubeApi."""

    def __init__(self, connection: library.ApiClient, limits: Limits) -> None:
        bind(connection.rest_client.pool_manager)
        self._connection, self._limits = connection, limits
        self._custom = library.CustomObjectsApi(connection)
        self._offset = 0.0  # seconds, of the server's clock
        self._may_write: Callable[[], bool] = lambda: True

    def now(self) -> float:
        return time.time() + self._offset

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", fields: str = ""
    ) -> Iterator[Page]:
        end = end_of(self._limits.list_seconds)
        query, page = {"labelSelector": selector, "fieldSelector": fields}, self._limits.page
        version = ""
        for _ in range(self._limits.pages):
            given = {key: value for key, value in query.items() if value} | {"limit": str(page)}
            try:
                body = self._read(resource.path(namespace), given, end)
            except ApiError as error:
                if error.too_large and page > 1:
                    page = max(1, page // _SMALLER)
                elif error.expired and error.more:
                    query["continue"] = error.more
                else:
                    raise
                continue
            if not text_at(body, "kind").endswith("List"):
                raise ApiError(0, f"the answer for {resource.plural} is not a list")
            metadata = mapping_at(body, "metadata")
            query["continue"] = str(metadata.get("continue") or "")
            version = version or str(metadata.get("resourceVersion") or "")
            yield Page(tuple(items_at(body, "items")), version)
            if not query["continue"]:
                return
        raise ApiError(0, f"the list of {resource.plural} does not end after {self._limits.pages} pages")

    def watch(self, resource: Resource, version: str, selector: str = "") -> Iterator[tuple[str, Object]]:
        chosen = {"label_selector": selector} if selector else {}
        events = Watch().stream(
            self._custom.list_cluster_custom_object,
            *resource,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=self._limits.watch_seconds,
            _request_timeout=(_CONNECT_SECONDS, self._limits.watch_seconds + _GRACE),
            **chosen,
        )
        with _translated():
            for event in events:
                if isinstance(event, dict) and isinstance(event.get("raw_object"), dict):
                    yield str(event.get("type")), event["raw_object"]

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self._read(resource.path(namespace, name))

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
        path = resource.path(namespace, name) + ("/status" if status else "")
        return self._request("PATCH", path, body=patch, content_type=content_type)

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        try:
            self._request("DELETE", resource.path(namespace, name))
        except ApiError as error:
            if not error.missing:
                raise

    def fence(self, may_write: Callable[[], bool]) -> None:
        self._may_write = may_write

    def within(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        return ending(time.monotonic() + seconds)

    def close(self) -> None:
        self._connection.close()

    def _read(self, path: str, query: Mapping[str, str] | None = None, end: float = _FAR) -> Object:
        for _ in range(self._limits.retries):
            try:
                return self._request("GET", path, query, end=end)
            except ApiError as error:
                if not error.retry_after:
                    raise
                time.sleep(error.retry_after)
        return self._request("GET", path, query, end=end)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        end: float = _FAR,
    ) -> Object:
        """Use the library's connection pool alone: its methods differ from release to release, build
        objects of their own where plain JSON is wanted, and unpack whatever is sent. `end` is monotonic."""
        if method != "GET" and not self._may_write():
            raise ApiError(0, "this replica is no longer the leader")
        bounds = Bounds(min(end, end_of(self._limits.seconds)), self._limits.size)
        configuration = self._connection.configuration
        headers = {"Accept": "application/json", **self._connection.default_headers}
        headers |= {"Content-Type": content_type} if body is not None else {}
        url = configuration.host + path + (f"?{urlencode(query)}" if query else "")
        with _translated(), bounded(bounds):
            # Read anew each time: a plugin's credentials change.
            headers |= {each["key"]: each["value"] for each in configuration.auth_settings().values()}
            patience = Timeout(connect=min(_CONNECT_SECONDS, bounds.left()), read=bounds.left())
            response = self._connection.rest_client.pool_manager.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=patience,
                preload_content=False,
                decode_content=False,
                retries=False,
                redirect=False,
            )
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                date = parsedate_to_datetime(response.headers.get("Date", ""))
                self._offset = date.timestamp() - time.time()
            try:
                content = response.read()
            except BaseException:
                response.close()  # the rest of this answer must not become that of the next request
                raise
            if not 200 <= response.status < 300:
                said = response.headers.get("Retry-After", "")
                raise _refusal(response.status, content, str(response.reason), said)
            found = json.loads(content)
        return found if isinstance(found, dict) else {}


def connect(limits: Limits = USUAL) -> KubeClient:
    """Connect to the cluster of $KUBECONFIG, else to that of the pod: for the controller, which runs in one.

    Raises InvalidInputError where there is none.
    """
    path = os.environ.get("KUBECONFIG", "")
    return _connect(path, "", "run it in a pod of the seed, or set KUBECONFIG", limits)


def connect_as_kubectl(kubeconfig: str = "", context: str = "") -> KubeClient:
    """Connect to the cluster that kubectl would use: `kubeconfig`, else $KUBECONFIG (of several files), else
    ~/.kube/config, else that of the pod; with its context, certificates and credential plugins.

    Raises InvalidInputError where there is none.
    """
    usual = Path("~/.kube/config").expanduser()
    path = kubeconfig or os.environ.get("KUBECONFIG", "") or (str(usual) if usual.exists() else "")
    hint = "give --kubeconfig FILE, and --context NAME if it has several; `kubectl config view` shows them"
    return _connect(path, context, hint, KUBECTL)


def _connect(path: str, context: str, hint: str, limits: Limits) -> KubeClient:
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
    return _client(configuration, limits)


def connect_with(kubeconfig: bytes, limits: Limits = USUAL) -> KubeClient:
    """Connect to the cluster of a kubeconfig that another party has written. Runs no program and reads no
    file that it names.

    Raises ApiError where it is not a kubeconfig, or names one of these.
    """
    configuration = library.Configuration()
    try:
        given = yaml.safe_load(kubeconfig)
        if elsewhere := _found_elsewhere(given):
            raise ApiError(
                0,
                f"its kubeconfig has {elsewhere}, which is not used: everything must be inline",
            )
        credentials.load_kube_config_from_dict(given, client_configuration=configuration)
    except (ConfigException, yaml.YAMLError, OSError, TypeError, ValueError, AttributeError) as error:
        raise ApiError(0, f"its kubeconfig cannot be read: {error}") from None
    return _client(configuration, limits)


_ELSEWHERE = {
    "user": ("exec", "auth-provider", "tokenFile", "client-certificate", "client-key"),
    "cluster": ("certificate-authority",),
}
"""Keys of a kubeconfig that name a program to run or a file to read (client-go, tools/clientcmd/api/v1)."""


def _found_elsewhere(kubeconfig: object) -> str:
    """Return the first of these keys; empty if there is none."""
    for part, keys in _ELSEWHERE.items():
        for each in items_at(kubeconfig if isinstance(kubeconfig, Mapping) else {}, f"{part}s"):
            found = [key for key in keys if mapping_at(each, part).get(key)]
            if found:
                return f"`{found[0]}`"
    return ""


def _client(configuration: Any, limits: Limits) -> KubeClient:
    configuration.retries = False  # redirects are not followed either: they may lead to another server
    configuration.connection_pool_maxsize = _CONNECTIONS
    return KubeClient(library.ApiClient(configuration), limits)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        # An event of a watch has its code only in its text.
        raise _refusal(int(error.status or 0), error.body or "", str(error.reason)) from None
    except (HTTPError, OSError) as error:
        raise ApiError(0, f"no answer: {_cause(error)}", too_large=_is_too_large(error)) from None
    except (ValueError, RecursionError) as error:
        raise ApiError(0, f"an answer that is not the API's: {cut_line(str(error))}") from None


def _is_too_large(error: BaseException | None) -> bool:
    """Whether a read was given up for its size, however the library wraps that."""
    while error is not None and not isinstance(error, TooLargeError):
        error = error.__cause__ or error.__context__
    return error is not None


def _refusal(code: int, content: str | bytes, reason: str, retry_after: str = "") -> ApiError:
    """Read a Status. For a kind that the server does not know, it answers with plain text."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = {}
    status = body if isinstance(body, dict) else {}
    message = cut_line(text_at(status, "message")) or cut_line(reason)
    pause = min(float(retry_after), _LONGEST_PAUSE) if retry_after.isdecimal() else 0.0
    return ApiError(code, message, text_at(status, "metadata", "continue"), pause)


def _cause(error: Exception) -> str:
    """Describe the error without the address of an object, which would differ each time."""
    if isinstance(error, ReadTimeoutError):
        return "it did not end in time"
    text = str(error) or type(error).__name__
    return cut_line(re.sub(r"<[^>]*>:? ?", "", text[:_TEXT]))
