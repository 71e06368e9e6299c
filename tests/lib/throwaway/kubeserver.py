"""A stand-in for a Kubernetes API server that controllers can live on: any kind of object, lists in pages,
watches with resource versions and bookmarks, 410 for what is forgotten, optimistic concurrency, merge
patches, the status subresource, generations, finalizers, the cascading deletion of what a namespace or an
owner has, immutable Secrets.

It behaves as the page "API concepts" of Kubernetes' documentation says. Plain HTTP without authentication,
unless it is asked to be secure.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import ssl
import threading
import time
import urllib.parse
import uuid
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.lib.throwaway.apiserver import as_table, inside, merge, merge_conditions, secure
from tests.lib.throwaway.kubevalidation import (
    SERVERS,
    InvalidError,
    check_fields,
    tidy,
    validate,
    validate_replacement,
)
from tests.lib.throwaway.selectors import matches

CORE, NAMESPACES = "/api/v1", "/namespaces/"
BOOKMARK_SECONDS = 0.2  # about a minute in real life
PROXY_PAGE = "<html><body><h1>404 Not Found</h1></body></html>"


class Kind(NamedTuple):
    """The part of a path before the namespace, and the plural."""

    prefix: str
    plural: str

    @property
    def group(self) -> str:
        """Of the API; empty for the core."""
        return "" if self.prefix == CORE else self.prefix.split("/")[2]


THE_NAMESPACES = Kind(CORE, "namespaces")


class Name(NamedTuple):
    kind: Kind
    namespace: str
    name: str

    def details(self) -> dict[str, str]:
        """What a failure says of the object that was asked for."""
        found = {"group": self.kind.group, "kind": self.kind.plural, "name": self.name}
        return {key: value for key, value in found.items() if value}


@dataclass
class Fault:
    """What happens to requests with this method whose path contains `part`, `times` times. A part that ends
    with a name or with `/status` has to be the end of the path. `page`: the answer is a proxy's, in HTML."""

    method: str
    part: str
    code: int = 0
    delay: float = 0.0
    hang: bool = False
    times: float = float("inf")
    after: bool = False  # the request has its effect, and its answer is lost
    page: bool = False
    retry_after: str = ""


def _place(found: dict[str, Any]) -> tuple[str, str]:
    """Where an object stands in a list of its kind."""
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


class _Event(NamedTuple):
    """A change. `before` is the object as it was, `there`: whether there still is one."""

    version: int
    key: Name
    body: dict[str, Any]
    before: dict[str, Any] | None
    there: bool

    def told(self, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """To who has asked so. What is selected no longer is gone for him, as it was."""
        was = self.before is not None and selected(self.before, query)
        if self.there and selected(self.body, query):
            yield {"type": "MODIFIED" if was else "ADDED", "object": self.body}
        elif self.before is not None and was:
            metadata = {**self.before["metadata"], "resourceVersion": str(self.version)}
            yield {"type": "DELETED", "object": {**self.before, "metadata": metadata}}


class Refused(Exception):
    """`about`: the object that it is about, if that is another than was asked for. `more`: where a list that
    was forgotten goes on as it is now. `retry_after`: the header of that name."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        about: Name | None = None,
        more: str = "",
        retry_after: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.about, self.more = code, reason, about, more
        self.retry_after = retry_after


class KubeServer:
    """`with KubeServer() as server:` serves at `server.url`. `requests` counts (method, plural), `log` has
    (method, path) of each; WATCH is one of the methods.

    With `account`, a directory, it serves by TLS who has the token, and writes there what a pod has of its
    service account. `network` is the network namespace that it listens in (`/proc/PID/ns/net`)."""

    def __init__(self, account: Path | None = None, network: str = "") -> None:
        self.account, self._network = account, network
        self.token, self._context = "", None if account is None else secure(account, "127.0.0.1")
        if account is not None:
            self.token = uuid.uuid4().hex
            (account / "token").write_text(self.token)
        self.objects: dict[Name, dict[str, Any]] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.log: list[tuple[str, str]] = []
        self.changed = threading.Condition(threading.RLock())
        self.faults: list[Fault] = []
        self.unknown = {"monitoring.coreos.com"}  # groups that nobody has installed
        self.version = 1000
        self.keeps_pods = (
            False  # without their owner, too: what plays the nodes ends them, but on silent ones
        )
        self.patience = 300.0  # seconds: on a machine that has much else to do
        self._uids: set[str] = set()  # of what is there
        self._history: list[_Event] = []
        self._pages: dict[int, tuple[int, Sequence[dict[str, Any]]]] = {}  # of lists: version and rest
        self._forgotten = 0
        self.cut = 0  # watches of an earlier number end
        self._lifted = threading.Event()
        self._server: _Server | None = None
        self.port = 0

    # -- for tests ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http{'s' if self.account else ''}://127.0.0.1:{self.port}"

    def kubeconfig(self, only: str = "") -> str:
        """With `only`, what is in this namespace and in none is all that there is, and kube-system is it."""
        cluster = {"server": f"{self.url}/only/{only}" if only else self.url}
        if self.account is not None:
            authority = (self.account / "ca.crt").read_bytes()
            cluster["certificate-authority-data"] = b64encode(authority).decode()
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": self.token} if self.token else {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )

    def account_of(self, _pod: dict[str, Any]) -> Path | None:
        """The directory with what a pod has of its service account."""
        return self.account

    def wait(self, holds: Callable[[], Any], seconds: float = 0.0, what: str = "") -> Any:
        """Until it holds, looked at after each change; the deadline only ends a test that has failed."""
        end = time.monotonic() + (seconds or self.patience)
        with self.changed:
            while not (found := holds()):
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"never: {what or holds}")
                self.changed.wait(min(left, 0.5))
            return found

    def fail(self, method: str = "", part: str = "/", **how: Any) -> Fault:
        fault = Fault(method, part, **how)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        self.faults.clear()
        self.heal_hanging()

    def heal_hanging(self) -> None:
        """Lets go what hangs; faults that are still to come stay."""
        self._lifted.set()
        self._lifted = threading.Event()

    def cut_watches(self) -> None:
        with self.changed:
            self.cut += 1
            self.changed.notify_all()

    def forget(self) -> None:
        """What happened until now: watches and lists from before are answered with 410."""
        with self.changed:
            self._history.clear()
            self._forgotten = self.version

    def go_away(self) -> None:
        self.cut_watches()
        self._lifted.set()
        self._lifted = threading.Event()
        if self._server is not None:
            self._server.shutdown()
            self._server.drop()
            self._server.server_close()
            self._server = None

    def come_back(self) -> None:
        listen = functools.partial(_Server, ("127.0.0.1", self.port), self, self._context)
        self._server = inside(self._network, listen) if self._network else listen()
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Self:
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()

    # -- what a client does -------------------------------------------------------------------------

    def get(self, name: Name) -> dict[str, Any]:
        with self.changed:
            if name not in self.objects:
                raise Refused(404, "NotFound", f'{name.kind.plural} "{name.name}" not found', name)
            return copy.deepcopy(self.objects[name])

    def find(self, kind: Kind, namespace: str = "") -> list[dict[str, Any]]:
        with self.changed:
            return copy.deepcopy(self._all(kind, namespace))

    def _all(self, kind: Kind, namespace: str) -> list[dict[str, Any]]:
        names = [
            name
            for name in self.objects
            if name.kind == kind and (not name.namespace or namespace in ("", name.namespace))
        ]
        return [self.objects[name] for name in sorted(names)]

    def create(self, kind: Kind, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            body = copy.deepcopy(body)
            metadata = body.setdefault("metadata", {})
            name = metadata.get("name") or metadata["generateName"] + uuid.uuid4().hex[:5]
            key = Name(kind, namespace, name)
            if key in self.objects:
                raise Refused(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
            if "resourceVersion" in metadata:
                raise Refused(500, "", "resourceVersion should not be set on objects to be created")
            metadata |= {
                "name": name,
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "creationTimestamp": now(),
            }
            if namespace:
                metadata["namespace"] = namespace
            validate(kind.plural, kind.group, body)
            tidy(kind.plural, body)
            if "gardener.cloud" in kind.prefix:
                body.pop("status", None)
            self._store("ADDED", key, body)
            return copy.deepcopy(body)

    def patch(
        self, key: Name, body: dict[str, Any], status: bool = False, strategic: bool = False
    ) -> dict[str, Any]:
        """A merge patch; a strategic one, of which only conditions differ."""
        with self.changed:
            old = self._get_version(key, body)
            new = merge(old, body)
            if new["metadata"]["uid"] != old["metadata"]["uid"]:
                raise Refused(422, "Invalid", "metadata.uid: field is immutable")
            new["metadata"] |= {part: old["metadata"][part] for part in SERVERS if part in old["metadata"]}
            if strategic and "conditions" in body.get("status", {}):
                there = old.get("status", {}).get("conditions", [])
                new["status"]["conditions"] = merge_conditions(there, body["status"]["conditions"])
            try:
                return self._update(key, old, new, status)
            except InvalidError as error:  # also for what cannot be read: the request was well
                raise Refused(422, "Invalid", str(error)) from None

    def replace(self, key: Name, body: dict[str, Any]) -> dict[str, Any]:
        """All but the metadata that the server gives."""
        with self.changed:
            if key not in self.objects and body["metadata"].get("resourceVersion"):
                what = f'{key.kind.plural} "{key.name}": it may have been deleted'
                raise Refused(409, "Conflict", f"Operation cannot be fulfilled on {what}")
            old = self._get_version(key, body)
            kept = {name: old["metadata"][name] for name in SERVERS if name in old["metadata"]}
            new = {**copy.deepcopy(body), "metadata": {**copy.deepcopy(body["metadata"]), **kept}}
            return self._update(key, old, new)

    def _get_version(self, key: Name, body: dict[str, Any]) -> dict[str, Any]:
        """The object, which must have the resource version of the body if that has one."""
        old = self.get(key)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
            what = f'{key.kind.plural} "{key.name}": the object has been modified'
            raise Refused(409, "Conflict", f"Operation cannot be fulfilled on {what}")
        return old

    def _update(
        self, key: Name, old: dict[str, Any], new: dict[str, Any], status: bool = False
    ) -> dict[str, Any]:
        if old.get("immutable") is True and any(new.get(part) != old[part] for part in ("data", "immutable")):
            raise Refused(422, "Invalid", "field is immutable when `immutable` is set")
        validate(key.kind.plural, key.kind.group, new, old)
        tidy(key.kind.plural, new)
        if "gardener.cloud" in key.kind.prefix:
            kept = "metadata", "spec"
            if status:
                new |= {part: old[part] for part in kept if part in old}
            else:
                new.pop("status", None)
                new |= {"status": old["status"]} if "status" in old else {}
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        if new == old:
            return old
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._remove(key)
        else:
            self._store("MODIFIED", key, new)
        return copy.deepcopy(new)

    def delete(self, key: Name) -> None:
        with self.changed:
            found = self.objects.get(key) or self.get(key)
            if key.kind == THE_NAMESPACES:
                self._terminate(key, found)
            elif not found["metadata"].get("finalizers"):
                self._remove(key)
            elif not found["metadata"].get("deletionTimestamp"):
                generation = found["metadata"]["generation"] + 1
                going = {"deletionTimestamp": now(), "generation": generation}
                self._store("MODIFIED", key, {**found, "metadata": {**found["metadata"], **going}})

    def _terminate(self, key: Name, found: dict[str, Any]) -> None:
        """It is Terminating until its controller has found it empty (Kubernetes documentation, "Namespaces",
        and API reference, core/v1 NamespaceStatus): somebody sees that before it is gone."""
        if found["metadata"].get("deletionTimestamp"):
            return
        metadata = {**found["metadata"], "deletionTimestamp": now()}
        self._store("MODIFIED", key, {**found, "metadata": metadata, "status": {"phase": "Terminating"}})
        for held in [each for each in self.objects if each.namespace == key.name]:
            self.delete(held)

    def finish_namespaces(self) -> None:
        """What the namespace controller does when it comes round."""
        with self.changed:
            for key in [each for each in self.objects if each.kind == THE_NAMESPACES]:
                found = self.objects[key]
                if not found["metadata"].get("deletionTimestamp"):
                    continue
                held = [each for each in self.objects if each.namespace == key.name]
                if not held:
                    self._remove(key)
                    continue
                kinds = Counter(
                    name for each in held for name in self.objects[each]["metadata"].get("finalizers", [])
                )
                said = ", ".join(f"{name} in {count} resource instances" for name, count in kinds.items())
                message = f"Some content in the namespace has finalizers remaining: {said}"
                condition = {"type": "NamespaceFinalizersRemaining", "status": "True", "message": message}
                found["status"]["conditions"] = [condition]

    def _remove(self, key: Name) -> None:
        gone = self.objects.pop(key)
        self._record(key, {**gone, "metadata": dict(gone["metadata"])}, gone, there=False)
        uid = gone["metadata"]["uid"]
        self._uids.discard(uid)
        for other, each in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", [])):
                self._collect(other)

    def _collect(self, key: Name) -> None:
        """What is owned, and by nobody who is there, goes: the garbage collector."""
        found = self.objects.get(key)
        if key.kind.plural == "pods" and self.keeps_pods:
            return
        owners = found["metadata"].get("ownerReferences") if found else None
        if owners and not any(owner["uid"] in self._uids for owner in owners):
            self.delete(key)

    def _store(self, _kind: str, key: Name, body: dict[str, Any]) -> None:
        before, self.objects[key] = self.objects.get(key), body
        self._uids.add(body["metadata"]["uid"])
        self._record(key, body, before)
        if not body["metadata"].get("deletionTimestamp"):
            self._collect(key)

    def _record(
        self, key: Name, body: dict[str, Any], before: dict[str, Any] | None, there: bool = True
    ) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self._history.append(_Event(self.version, key, copy.deepcopy(body), before, there))
        self.changed.notify_all()

    # -- lists and watches --------------------------------------------------------------------------

    def list(self, kind: Kind, namespace: str, query: dict[str, str]) -> dict[str, Any]:
        """All pages are of the moment of the first, as long as that is not forgotten."""
        with self.changed:
            more = int(query.get("continue") or 0)
            found = [each for each in self._all(kind, namespace) if selected(each, query)]
            version, rest = self._pages[more] if more else (self.version, found)
            if version < self._forgotten:
                later = [each for each in found if _place(each) >= _place(rest[0])]
                raise Refused(
                    410,
                    "Expired",
                    "The provided continue parameter is too old",
                    more=self._keep(self.version, later),
                )
            # What comes from the watch cache comes whole.
            cached = query.get("resourceVersion") == "0" and not more
            limit = (0 if cached else int(query.get("limit", "0") or 0)) or len(rest)
            metadata = {"resourceVersion": str(version)}
            if limit < len(rest):
                metadata["continue"] = self._keep(version, rest[limit:])
            return {"kind": "List", "metadata": metadata, "items": copy.deepcopy(rest[:limit])}

    def _keep(self, version: int, rest: Sequence[dict[str, Any]]) -> str:
        """What asks for the rest of a list."""
        place = len(self._pages) + 1
        self._pages[place] = version, rest
        return str(place)

    def watch(
        self, kind: Kind, namespace: str, query: dict[str, str], cut: int
    ) -> Iterator[dict[str, Any] | None]:
        """Events; None when nothing has happened for a moment. Ends when watches of `cut` end. Who names no
        version first gets what exists. There is no bookmark where nothing of the kind has changed."""
        seen = int(query.get("resourceVersion") or 0)
        end = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        told, newest = time.monotonic(), -1  # version of the newest change that he knows to be passed
        if 0 < seen < self._forgotten:
            what = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            yield {"type": "ERROR", "object": what}
            return
        position = last = 0
        while time.monotonic() < end:
            with self.changed:
                if self.cut != cut:
                    return
                history, found = self._history, list[dict[str, Any]]()
                if not seen:
                    there = [each for each in self._all(kind, namespace) if selected(each, query)]
                    found = [{"type": "ADDED", "object": each} for each in copy.deepcopy(there)]
                    seen, position = self.version, len(history)
                position = min(position, len(history))
                fresh = [event for event in history[position:] if event.key.kind == kind]
                for event in fresh:
                    if event.version > seen and namespace in ("", event.key.namespace):
                        found += event.told(query)
                last = fresh[-1].version if fresh else last
                newest = last if newest < 0 or found else newest
                position, seen = len(history), max(seen, self.version)
                if not found:
                    self.changed.wait(0.1)
            yield from found
            late = "allowWatchBookmarks" in query and time.monotonic() - told > BOOKMARK_SECONDS
            if not found and late and last > newest:
                told, newest = time.monotonic(), last
                yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}}
            elif not found:
                yield None

    # -- one request --------------------------------------------------------------------------------

    def authenticate(self, authorization: str) -> str:
        """Who asks, by this header. Raises Refused."""
        if self.token not in authorization:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return ""

    @contextlib.contextmanager
    def acting(self, _user: str, _method: str, _key: Name, _status: bool) -> Iterator[None]:
        """In the block this request is answered. Raises Refused, if its user may not make it."""
        yield

    def fault(self, method: str, path: str) -> Fault | None:
        with self.changed:
            for fault in self.faults:
                ends = fault.part.count("/") > 1 and not fault.part.endswith("/")
                fits = path.endswith(fault.part) if ends else fault.part in path
                if fault.method in ("", method) and fits and fault.times > 0:
                    fault.times -= 1
                    return fault
            return None

    def hang(self, seconds: float | None) -> None:
        self._lifted.wait(seconds)

    def answer(
        self,
        method: str,
        key: Name,
        status: bool,
        body: dict[str, Any],
        query: dict[str, str],
        strategic: bool,
    ) -> dict[str, Any]:
        if method == "GET":
            found = self.get(key) if key.name else self.list(key.kind, key.namespace, query)
            if key.kind == THE_NAMESPACES:
                self.finish_namespaces()
            return found
        if body:
            check_fields(method, key.kind.plural, key.kind.group, body, query.get("fieldValidation", ""))
        if method == "POST":
            return self.create(key.kind, key.namespace, body)
        if method == "PUT":
            validate_replacement(key.kind.plural, body)
            return self.replace(key, body)
        if method == "PATCH":
            # Who writes a Node leaves its status alone, and the other way round.
            other = ("spec" if status else "status") if key.kind.plural == "nodes" else ""
            body = {part: content for part, content in body.items() if part != other}
            return self.patch(key, body, status, strategic)
        if method == "DELETE":
            uid = self.get(key)["metadata"]["uid"]
            self.delete(key)
            gone = {"kind": "Status", "status": "Success", "details": {**key.details(), "uid": uid}}
            return copy.deepcopy(self.objects.get(key, gone))
        raise Refused(405, "MethodNotAllowed", method)


def parse_path(path: str) -> tuple[Name, bool]:
    """The name, and whether it is its status."""
    parts = path.strip("/").split("/")
    taken = 2 if parts[0] == "api" else 3
    prefix, rest = "/" + "/".join(parts[:taken]), parts[taken:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return Name(Kind(prefix, rest[0]), namespace, rest[1] if len(rest) > 1 else ""), rest[2:] == ["status"]


def selected(body: dict[str, Any], query: dict[str, str]) -> bool:
    """By labels, and by a few fields."""
    if not matches(query.get("labelSelector", ""), body["metadata"].get("labels")):
        return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = part.partition("=")
        found: Any = body
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        if found != value:
            return False
    return True


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], kube: KubeServer, context: ssl.SSLContext | None = None
    ) -> None:
        self.kube = kube
        self._open: set[Any] = set()
        super().__init__(address, _Handler)
        if context is not None:
            # Shaken hands with at the first read, which is in the thread of the request.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is none of the server's business."""

    def drop(self) -> None:
        for request in list(self._open):
            self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        kube, (path, _, text) = self.server.kube, self.path.partition("?")
        query = {key: values[-1] for key, values in urllib.parse.parse_qs(text).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        only = ""
        if path.startswith("/only/"):
            only, _, path = path.removeprefix("/only/").partition("/")
        if any(path.startswith(f"/apis/{group}/") for group in kube.unknown):
            self._send_text(404, "404 page not found\n", "text/plain; charset=utf-8")
            return
        name, status = parse_path(path)
        if only and name.namespace == "kube-system":
            name = name._replace(namespace=only)
        if name not in kube.objects:
            name = name._replace(namespace=name.namespace or only)
        watches = query.get("watch") in ("true", "True", "1")
        with kube.changed:
            kube.requests["WATCH" if watches else self.command, name.kind.plural] += 1
            kube.log.append(("WATCH" if watches else self.command, path))
            cut = kube.cut
            kube.changed.notify_all()
        fault = kube.fault(self.command, path)
        if fault is not None and (fault.hang or fault.delay) and not fault.after:
            kube.hang(None if fault.hang else fault.delay)
        try:
            user = kube.authenticate(self.headers.get("Authorization", ""))
            if fault is not None and fault.page:
                self._send_text(fault.code, PROXY_PAGE, "text/html")
                return
            if fault is not None and fault.code and not fault.after:
                reason = "Conflict" if fault.code == 409 else "Fault"
                raise Refused(fault.code, reason, "a fault of the test", retry_after=fault.retry_after)
            if fault is not None and fault.hang and not fault.after:
                self.close_connection = True
                return
            if watches:
                self._stream(kube.watch(name.kind, name.namespace, query, cut))
                return
            strategic = "strategic" in (self.headers.get("Content-Type") or "")
            with kube.acting(user, self.command, name, status):
                found = kube.answer(self.command, name, status, body, query, strategic)
            if fault is not None and fault.after:
                if fault.hang:
                    kube.hang(None)
                self.close_connection = True
                return
            table = "as=Table" in (self.headers.get("Accept") or "")
            self._send(201 if self.command == "POST" else 200, as_table(found, text) if table else found)
        except ValueError as error:  # of a query, unless it says otherwise
            code, reason = getattr(error, "code", 400), getattr(error, "reason", "BadRequest")
            self._refuse(Refused(code, reason, str(error)), name)
        except Refused as error:
            self._refuse(error, name)
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _stream(self, events: Iterator[dict[str, Any] | None]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            if event is not None:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, code: int, body: dict[str, Any], retry_after: str = "") -> None:
        self._send_text(code, json.dumps(body), "application/json", retry_after)

    def _refuse(self, error: Refused, name: Name) -> None:
        metadata = {"continue": error.more} if error.more else {}
        what: dict[str, Any] = {"kind": "Status", "metadata": metadata, "status": "Failure"}
        details = {"details": (error.about or name).details()} if error.code != 401 else {}
        what |= details | {"message": str(error), "reason": error.reason, "code": error.code}
        self._send(error.code, what, error.retry_after)

    def _send_text(self, code: int, text: str, kind: str, retry_after: str = "") -> None:
        content = text.encode()
        self.send_response(code)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test reads `log`."""
