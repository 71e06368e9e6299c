"""A stand-in for the Kubernetes API server: HTTPS, the real paths and status codes, nothing behind it.

Its objects are plain dicts that a test reads and edits; what goes wrong is a fault on a part of the
path. It has a certificate authority of its own and writes a service account's directory for
whoever is to talk to it.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import json
import os
import shutil
import socket
import ssl
import tempfile
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.lib.throwaway.selectors import matches

T = TypeVar("T")

PROXY_PAGE = b"<html><body><h1>404 Not Found</h1></body></html>"
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "AlreadyExists",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_COLLECTIONS = ("configmaps", "leases", "nodes")
_HANDSHAKE_SECONDS = 5.0
_LOOK_SECONDS = 0.1  # how soon a watch tells of a change


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to requests whose method is `method` (or any) and whose path contains `part`.
    `page`: the body is a proxy's, not the API's. `hang`: no answer until the fault is lifted."""

    part: str
    method: str = ""
    code: int = 0
    delay: float = 0.0
    hang: bool = False
    page: bool = False
    retry_after: str = ""


class ApiServer:
    """`with ApiServer(...) as server:` serves at `server.host`:`server.port` until the block ends.

    `objects` has each object at its path, `events` what was posted of them, `requests` every request
    as (method, path). `account` is the service account's directory; `token` the one that is valid.
    `network` is the network namespace that it listens in (`/proc/PID/ns/net`), without it the caller's.
    """

    def __init__(
        self,
        node: str = "node-1",
        namespace: str = "kube-system",
        daemonset: str = "cri-resmgr-installer",
        host: str = "127.0.0.1",
        port: int = 0,
        names: Sequence[str] = (),
        network: str = "",
    ) -> None:
        self.node_name, self.namespace, self.daemonset_name = node, namespace, daemonset
        self.host, self.port = host, port
        self.pod_uid = str(uuid.uuid4())
        self._names, self._network = (host, *names), network
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.changed = threading.Condition()
        self._faults: list[Fault] = []
        self._lifted = threading.Event()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._furnish()

    def add_node(self, name: str) -> None:
        """A Node that is Ready."""
        self.objects[f"/api/v1/nodes/{name}"] = {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "uid": str(uuid.uuid4()),
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
                "annotations": {},
                "resourceVersion": "1",
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }

    def _furnish(self) -> None:
        self.add_node(self.node_name)
        self.objects[self.daemonset_path] = {
            "kind": "DaemonSet",
            "apiVersion": "apps/v1",
            "metadata": {
                "name": self.daemonset_name,
                "namespace": self.namespace,
                "uid": str(uuid.uuid4()),
            },
            "spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}},
        }

    # -- paths and objects ------------------------------------------------------------------

    @property
    def node_path(self) -> str:
        return f"/api/v1/nodes/{self.node_name}"

    @property
    def daemonset_path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{self.daemonset_name}"

    @property
    def node(self) -> dict[str, Any]:
        return self.objects[self.node_path]

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"]["annotations"]
        return found

    @property
    def daemonset(self) -> dict[str, Any]:
        return self.objects[self.daemonset_path]

    def delete_daemonset(self) -> None:
        del self.objects[self.daemonset_path]

    def environment(self) -> dict[str, str]:
        """What a pod of ours has in its environment."""
        return {
            "KUBERNETES_SERVICE_HOST": self.host,
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "CRI_RESMGR_INSTALLER_SERVICE_ACCOUNT": str(self.account),
            "NODE_NAME": self.node_name,
            "POD_NAME": f"{self.daemonset_name}-x7k2p",
            "POD_NAMESPACE": self.namespace,
            "CRI_RESMGR_INSTALLER_POD_UID": self.pod_uid,
            "CRI_RESMGR_INSTALLER_DAEMONSET": self.daemonset_name,
        }

    def rotate_token(self) -> None:
        """The old one is no longer valid, and the new one is in the file."""
        self.token = uuid.uuid4().hex
        (self.account / "token").write_text(self.token)

    # -- faults -------------------------------------------------------------------------------

    def fail(
        self,
        part: str = "/",
        method: str = "",
        code: int = 0,
        delay: float = 0.0,
        hang: bool = False,
        page: bool = False,
        retry_after: str = "",
    ) -> None:
        self._faults.append(Fault(part, method, code, delay, hang, page, retry_after))

    def heal(self) -> None:
        """Lifts every fault, and lets go what hangs."""
        self._faults.clear()
        self._lifted.set()
        self._lifted = threading.Event()

    def fault(self, method: str, path: str) -> Fault | None:
        return next((f for f in self._faults if f.part in path and f.method in ("", method)), None)

    def go_away(self) -> None:
        """From now on connections are refused, and those that are open end."""
        self._lifted.set()
        self._lifted = threading.Event()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.drop_connections()
            self._thread.join()
        self._server = self._thread = None

    def come_back(self) -> None:
        """Serves again, at the same address."""
        listen = functools.partial(_Server, (self.host, self.port), self, self._context)
        self._server = inside(self._network, listen) if self._network else listen()
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    # -- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="apiserver-"))
        self.account = self._directory / "serviceaccount"
        self.account.mkdir()
        self._context = secure(self.account, *self._names)
        (self.account / "namespace").write_text(self.namespace)
        self.rotate_token()
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- the API ----------------------------------------------------------------------------------

    def lifted(self) -> threading.Event:
        """What a hanging request waits for."""
        return self._lifted

    def answer(
        self, method: str, path: str, body: Any, token: str, query: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """What the real one would say, faults aside."""
        with self.changed:
            self.requests.append((method, path))
            try:
                return self._answer(method, path, body, query) if token == self.token else _status(401)
            finally:
                self.changed.notify_all()

    def below(self, collection: str, query: str) -> dict[str, Any]:
        """The objects of a collection by path, as a watch's query selects them: one by name, or all."""
        selector = dict(urllib.parse.parse_qsl(query)).get("fieldSelector", "")
        name = selector.removeprefix("metadata.name=")
        return {
            path: copy.deepcopy(found)
            for path, found in list(self.objects.items())
            if path.rpartition("/")[0] == collection and (not name or path.endswith("/" + name))
        }

    def _patch_status(self, found: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        """The strategic merge patch of a status, of which only the conditions differ from any other. A Node's
        annotations and labels change with it, its spec does not (nodeStatusStrategy of the real one)."""
        metadata, status = found["metadata"], found.setdefault("status", {})
        changes = patch.get("status", {})
        conditions = merge_conditions(status.get("conditions", []), changes.get("conditions", []))
        found["status"] = merge(status, changes) | ({"conditions": conditions} if conditions else {})
        if not conditions:
            found["status"].pop("conditions", None)
        metadata.update(merge(metadata, patch.get("metadata", {})))
        return copy.deepcopy(found)

    def _is_outdated(self, path: str, body: Any) -> bool:
        """Whether a patch rests on another version of the object than the present one."""
        version = body.get("metadata", {}).get("resourceVersion")
        return version not in (None, self._versioned(path)["metadata"]["resourceVersion"])

    def _versioned(self, path: str) -> dict[str, Any]:
        """The object with its resourceVersion: 0 for what a test has put there."""
        found = copy.deepcopy(self.objects[path])
        found["metadata"].setdefault("resourceVersion", "0")
        return found

    def _list(self, collection: str, query: str) -> dict[str, Any]:
        """All of a collection, or those with a label."""
        selector = dict(urllib.parse.parse_qsl(query)).get("labelSelector", "")
        paths = [path for path in self.objects if path.rpartition("/")[0] == collection]
        items = [self._versioned(path) for path in paths]
        chosen = [item for item in items if matches(selector, item["metadata"].get("labels"))]
        return {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": chosen}

    def _answer(self, method: str, path: str, body: Any, query: str) -> tuple[int, dict[str, Any]]:
        if method == "GET" and path in self.objects:
            return 200, self._versioned(path)
        if method == "GET" and path.rpartition("/")[2] in _COLLECTIONS:
            return 200, self._list(path, query)
        if method == "PATCH" and path.endswith("/status") and path.removesuffix("/status") in self.objects:
            return 200, self._patch_status(self.objects[path.removesuffix("/status")], body)
        if method in ("PATCH", "PUT") and path in self.objects:
            if self._is_outdated(path, body):
                return _status(409, path)
            known = self._versioned(path)["metadata"]["resourceVersion"]
            self.objects[path] = merge(self.objects[path], body) if method == "PATCH" else body
            if "resourceVersion" in body.get("metadata", {}):
                self.objects[path]["metadata"]["resourceVersion"] = str(int(known) + 1)
            return 200, self._versioned(path)
        if method != "POST":
            return _status(404, path)
        name = body["metadata"].get("name") or body["metadata"]["generateName"] + uuid.uuid4().hex[:5]
        body["metadata"] |= {"name": name, "uid": str(uuid.uuid4())}
        if f"{path}/{name}" in self.objects:
            return _status(409, f"{path}/{name}")
        if path.endswith("/events"):
            self.events.append(body)
        self.objects[f"{path}/{name}"] = body
        return 201, self._versioned(f"{path}/{name}")


def as_table(found: dict[str, Any], query: str) -> dict[str, Any]:
    """What was found as a client gets it that accepts a Table (Kubernetes' documentation, API concepts): a
    row for each object, with its metadata unless `includeObject` is None."""
    bare = dict(urllib.parse.parse_qsl(query)).get("includeObject") == "None"
    if found.get("kind") == "Status":
        return found
    rows = [
        {"cells": [each["metadata"]["name"]], "object": None if bare else {"metadata": each["metadata"]}}
        for each in found.get("items", [found])
    ]
    named, parts = found.get("metadata", {}), ("resourceVersion", "continue")
    metadata = {key: named[key] for key in parts if key in named}
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "rows": rows}


def merge_conditions(there: list[dict[str, Any]], patch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a strategic merge patch does: by type; `$patch: delete` takes one away."""
    found = {each["type"]: each for each in there}
    for each in patch:
        if each.get("$patch") == "delete":
            found.pop(each["type"], None)
        else:
            found[each["type"]] = {**found.get(each["type"], {}), **each}
    return list(found.values())


def secure(account: Path, *names: str) -> ssl.SSLContext:
    """For a server of these names. Its certificate authority is written to where `account` has it."""
    import trustme  # late: it takes long, and most have no TLS

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(str(account / "ca.crt"))
    authority.issue_cert(*names).configure_cert(context)
    return context


def inside(network: str, make: Callable[[], T]) -> T:
    """Makes it in another network namespace, in a thread of its own: others stay where they are."""

    def enter_and_make() -> T:
        namespace = os.open(network, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns {network}")
        finally:
            os.close(namespace)
        return make()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_make).result()


def merge(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _status(code: int, path: str = "") -> tuple[int, dict[str, Any]]:
    """A failure as the API server words it."""
    reason = _REASONS.get(code, "Unknown")
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": reason,
        "reason": reason,
        "code": code,
    }
    if path and code != 401:
        _, kind, name = path.rsplit("/", 2)
        group = path.split("/")[2] if path.startswith("/apis/") else ""
        status["message"] = f'{kind}{"." * bool(group)}{group} "{name}": {reason}'
        status["details"] = {"name": name, "kind": kind} | ({"group": group} if group else {})
    return code, status


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], api: ApiServer, context: ssl.SSLContext) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.api, self._context = api, context
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the request's own thread: a client that is slow to shake hands holds nobody up."""
        request.settimeout(_HANDSHAKE_SECONDS)
        with contextlib.suppress(OSError):
            secure = self._context.wrap_socket(request, server_side=True)
            with self._lock:
                self._open.add(secure)
            try:
                secure.settimeout(None)
                super().finish_request(secure, client_address)
            finally:
                with self._lock:
                    self._open.discard(secure)
                secure.close()

    def drop_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        api, path = self.server.api, self.path.partition("?")[0]
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        fault = api.fault(self.command, path)
        if fault is not None and (fault.hang or fault.delay):
            api.requests.append((self.command, path))
            api.lifted().wait(None if fault.hang else fault.delay)
            if fault.hang:
                self.close_connection = True
                return
        if fault is not None and fault.code:
            code, answer = _status(fault.code, path)
            api.requests.append((self.command, path))
            content = PROXY_PAGE if fault.page else json.dumps(answer).encode()
            self._send(code, content, fault.page, fault.retry_after)
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        query = self.path.partition("?")[2]
        if token == api.token and dict(urllib.parse.parse_qsl(query)).get("watch") in ("1", "true"):
            api.requests.append((self.command, path))
            self._watch(path, query)
            return
        code, answer = api.answer(self.command, path, body, token, query)
        if "as=Table" in self.headers.get("Accept", ""):
            answer = as_table(answer, query)
        self._send(code, json.dumps(answer).encode())

    do_GET = do_POST = do_PATCH = do_PUT = _serve

    def _watch(self, collection: str, query: str) -> None:
        """Tells of each object that there is, and of each change, until the client or the server goes."""
        api, told = self.server.api, dict[str, Any]()
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lifted = api.lifted()
        while not lifted.is_set():
            now = api.below(collection, query)
            for path in told.keys() | now.keys():
                kind = "ADDED" if path not in told else "MODIFIED" if path in now else "DELETED"
                if told.get(path) != now.get(path):
                    self._chunk({"type": kind, "object": now.get(path, told.get(path))})
            told = now
            lifted.wait(_LOOK_SECONDS)

    def _chunk(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _send(self, code: int, content: bytes, page: bool = False, retry_after: str = "") -> None:
        self.send_response(code)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Type", "text/html" if page else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test reads `requests`."""
