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
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client as library
from kubernetes import config as credentials
from kubernetes.client.exceptions import ApiException
from kubernetes.watch import Watch
from urllib3 import HTTPHeaderDict, Timeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
)

from installer.cluster.kubeapi import USER_AGENT, hide
from installer.errors import InvalidInputError
from installer.operator.api import KUBECTL, MERGE, USUAL, ApiError, KubeApi, Limits, Page, Resource
from installer.operator.bounded import Bounds, TooLargeError, bind, bounded, end_of, ending
from installer.operator.credentials import CredentialsError, Identity, bearer_of
from installer.operator.kube_objects import Object, cut_line, items_at, mapping_at, text_at
from installer.operator.kubeconfig import (
    Access,
    Chosen,
    KubeconfigError,
    access_of,
    check_provider,
    choose,
    in_cluster,
    parse,
    read_files,
    usual_paths,
)
from installer.operator.proxies import dial

_CONNECT_SECONDS = 5.0
_FAR = float("inf")
_GRACE = 20.0  # seconds: a server may end a watch so late
_CONNECTIONS = 24
_SMALLER = 8  # times, where a page of a list is too large: others' objects may have 1.5 MB each
_TEXT = 4096  # characters of an error that are read
_LONGEST_PAUSE = 5.0  # seconds, whatever the Retry-After of a server says


class KubeClient(KubeApi):
    """See KubeApi."""

    def __init__(self, connection: library.ApiClient, access: Access, limits: Limits) -> None:
        self._connection, self._access, self._limits = connection, access, limits
        self._secrets = {access.identity.password, access.proxy.password if access.proxy else ""}
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
        with self._translated():
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
        with self._translated():  # a plugin may talk to a person before the time of the request begins
            headers = self._headers(content_type if body is not None else "")
        bounds = Bounds(min(end, end_of(self._limits.seconds)), self._limits.size)
        with self._translated(), bounded(bounds):
            url = self._access.server + path + (f"?{urlencode(query)}" if query else "")
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
            if response.status == 401:
                self._access.identity.denied()
            if not 200 <= response.status < 300:
                said = response.headers.get("Retry-After", "")
                raise _refusal(response.status, content, str(response.reason), said)
            found = json.loads(content)
        return found if isinstance(found, dict) else {}

    def _headers(self, content_type: str) -> HTTPHeaderDict:
        """Made anew each time: credentials change. Raises CredentialsError."""
        found = HTTPHeaderDict({"Accept": "application/json", "User-Agent": USER_AGENT})
        for key, value in self._access.impersonated:
            found.add(key, value)
        if content_type:
            found["Content-Type"] = content_type
        if header := self.authorize():
            found["Authorization"] = header
        return found

    def authorize(self) -> str:
        """Return the value of Authorization now; empty: none. Plain HTTP carries none. Raises
        CredentialsError."""
        header = self._access.identity.header() if self._access.tls is not None else ""
        self._secrets |= {header.partition(" ")[2]}
        return header

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Let everything that a request raises be an ApiError without credentials."""
        try:
            yield
        except ApiError as error:
            raise ApiError(error.code, self._said(error.message), error.more, error.retry_after) from None
        except ApiException as error:
            # An event of a watch has its code only in its text.
            found = _refusal(int(error.status or 0), error.body or "", str(error.reason))
            raise ApiError(found.code, self._said(found.message), found.more) from None
        except CredentialsError as error:
            raise ApiError(
                0, f"no credentials: {error}" + (f" ({error.hint})" if error.hint else "")
            ) from None
        except (HTTPError, OSError) as error:
            why = f"no answer: {self._said(cause_of(error))}"
            raise ApiError(0, why, too_large=_is_too_large(error)) from None
        except (ValueError, RecursionError, OverflowError, MemoryError) as error:
            said = self._said(str(error)) or type(error).__name__
            raise ApiError(0, f"an answer that is not the API's: {said}") from None

    def _said(self, text: str) -> str:
        return cut_line(hide(text[:_TEXT], self._secrets))


def connect(limits: Limits = USUAL) -> KubeClient:
    """Connect to the cluster of $KUBECONFIG, else to that of the pod: for the controller, which runs in one.

    Raises InvalidInputError where there is none.
    """
    hint = "run it in a pod of the seed, or set KUBECONFIG"
    return _connect(os.environ.get("KUBECONFIG", ""), "", hint, limits)


def connect_as_kubectl(kubeconfig: str = "", context: str = "", limits: Limits = KUBECTL) -> KubeClient:
    """Connect to the cluster that kubectl would use: `kubeconfig`, else $KUBECONFIG (of several files), else
    ~/.kube/config, else that of the pod; with its context, certificates and credential plugins.

    Raises InvalidInputError where there is none.
    """
    hint = "give --kubeconfig FILE, and --context NAME if it has several; `kubectl config view` shows them"
    return _connect(kubeconfig, context, hint, limits)


def _connect(kubeconfig: str, context: str, hint: str, limits: Limits) -> KubeClient:
    try:
        paths = usual_paths(kubeconfig, os.environ)
        chosen = read_files(paths, context)
        if chosen is not None:
            return _client(access_of(chosen, os.environ, _provided(paths, chosen)), limits)
        if access := in_cluster(os.environ):
            return _client(access, limits)
        named = ", ".join(map(str, paths))
        raise KubeconfigError(f"{named} says nothing, and this is not a pod with a service account")
    except CredentialsError as error:
        raise InvalidInputError([f"kubeconfig: {error}"], error.hint or hint) from None


def connect_with(kubeconfig: bytes, limits: Limits = USUAL) -> KubeClient:
    """Connect to the cluster of a kubeconfig that another party has written. Runs no program and reads no
    file that it names.

    Raises ApiError where it is not a kubeconfig, or names one of these.
    """
    try:
        given = parse(kubeconfig, "kubeconfig")
        if elsewhere := _found_elsewhere(given):
            raise ApiError(
                0,
                f"its kubeconfig has {elsewhere}, which is not used: everything must be inline",
            )
        return _client(access_of(choose([given]), os.environ), limits)
    except CredentialsError as error:
        raise ApiError(0, f"its kubeconfig cannot be used: {error}") from None


_ELSEWHERE = {
    "user": ("exec", "auth-provider", "tokenFile", "client-certificate", "client-key"),
    "cluster": ("certificate-authority",),
}
"""Keys of a kubeconfig that name a program to run or a file to read (client-go, tools/clientcmd/api/v1)."""


def _found_elsewhere(kubeconfig: object) -> str:
    """Return the first of these keys; empty if there is none."""
    for part, keys in _ELSEWHERE.items():
        for entry in items_at(kubeconfig if isinstance(kubeconfig, Mapping) else {}, f"{part}s"):
            present = [key for key in keys if mapping_at(entry, part).get(key)]
            if present:
                return f"`{present[0]}`"
    return ""


class _Provided(Identity):
    """Who an `auth-provider` says: the library renews its token, and writes it back."""

    def __init__(self, paths: Sequence[Path], context: str) -> None:
        self._configuration = library.Configuration()
        try:
            credentials.load_kube_config(
                os.pathsep.join(map(str, paths)), context, client_configuration=self._configuration
            )
        except Exception as error:  # it repeats what it reads
            raise CredentialsError(f"auth-provider: {type(error).__name__}; log in again") from None

    def header(self) -> str:
        try:
            found = self._configuration.get_api_key_with_prefix("BearerToken") or ""
        except Exception as error:
            raise CredentialsError(f"auth-provider: {type(error).__name__}; log in again") from None
        return bearer_of(found.removeprefix("Bearer "), "the token of its auth-provider")


def _provided(paths: Sequence[Path], chosen: Chosen) -> Identity | None:
    if not chosen.provider:
        return None
    check_provider(chosen)
    return _Provided(paths, chosen.context)


def _client(access: Access, limits: Limits) -> KubeClient:
    configuration = library.Configuration()
    configuration.host, configuration.proxy = access.server, None
    connection = library.ApiClient(configuration)
    connection.rest_client.pool_manager = _pool(access)
    connection.user_agent = USER_AGENT
    client = KubeClient(connection, access, limits)

    def renew(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = client.authorize()

    if client.authorize():  # a plugin speaks now, and not in the middle of the work
        configuration.api_key["BearerToken"] = ""
        configuration.refresh_api_key_hook = renew
    return client


def _pool(access: Access) -> Any:
    """Redirects are not followed: they may lead to another server."""
    options: dict[str, Any] = {"maxsize": _CONNECTIONS, "retries": False}
    if access.tls is not None:
        options["ssl_context"] = access.tls
        if access.tls.verify_mode == ssl.CERT_NONE:
            urllib3.disable_warnings(InsecureRequestWarning)  # their kubeconfig says so
    if access.server_name:
        options["server_hostname"] = access.server_name
    proxy = access.proxy
    if proxy is None or proxy.scheme == "socks5":
        pool = urllib3.PoolManager(**options)
        bind(pool, partial(dial, proxy) if proxy else None)
        return pool
    given = f"{proxy.user}:{proxy.password}"
    headers = urllib3.make_headers(proxy_basic_auth=given) if proxy.user else None
    pool = urllib3.ProxyManager(proxy.url, proxy_headers=headers, **options)
    bind(pool)
    return pool


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
    message = text_at(status, "message") or reason
    pause = min(float(retry_after), _LONGEST_PAUSE) if retry_after.isdecimal() else 0.0
    return ApiError(code, message, text_at(status, "metadata", "continue"), pause)


def cause_of(error: BaseException) -> str:
    """Describe what lies behind an error of urllib3, whose own text has addresses of objects and its
    parameters, in the words of a person."""
    if isinstance(error, ReadTimeoutError):
        return "it did not end in time"
    if isinstance(error, NameResolutionError):
        return f"the name of the server or its proxy is not known: {_innermost(error)}"
    if isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    deeper = _deeper(error)
    if deeper is not None:
        found = cause_of(deeper)
        return f"the proxy: {found}" if isinstance(error, ProxyError) else found
    text = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return re.sub(r"<[^>]*>:? ?|\(?_?ssl\.c:\d+\)?", "", text[:_TEXT]).strip()


def _deeper(error: BaseException) -> BaseException | None:
    causes = [getattr(error, "reason", None), *error.args[::-1], error.__cause__, error.__context__]
    return next((cause for cause in causes if isinstance(cause, BaseException) and cause is not error), None)


def _innermost(error: BaseException) -> str:
    while (deeper := _deeper(error)) is not None:
        error = deeper
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
