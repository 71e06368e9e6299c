"""The door to the Kubernetes API: JSON over HTTPS as the pod's service account.

It is for short-lived processes. `ssl` and `http.client` weigh 8 MB, so the first request loads them. One
connection serves all requests of a client. It uses no proxy of the environment, follows no redirect, and
repeats no request.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from installer import __version__
from installer.model.event import truncate
from installer.model.jsontext import items_at, mapping_at, parse_object, text_at

USER_AGENT = f"cri-resmgr-installer/{__version__}"
HIDDEN = "(hidden)"
_BEARER = "Bearer "
_HEAD, _SHORTEST = 16, 4  # characters of a secret; shorter ones are also words
SOCKET_SECONDS = 3.0
LONGEST_QUIET = 300.0
"""The most seconds without a request, whatever the Retry-After of a server says."""
MOST_SAID = 1024
"""Bytes that are kept of what a server or a Lease says in words: these go to logs and into memory."""
_BODY_LIMIT = 1 << 22  # bytes; etcd keeps no object above 1.5 MiB
_MERGE, _STRATEGIC_MERGE = "application/merge-patch+json", "application/strategic-merge-patch+json"
_JSON, _TABLE = "application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"
NO_OBJECTS = "includeObject=None"
"""In the query of a LIST: the answer is a Table of lines for people, without the objects (Kubernetes API
concepts, "Receiving resources as Tables"). A Node has 8 to 30 KB, its line 0.3 KB."""
ONLY_METADATA = "includeObject=Metadata"
"""The same with the metadata of the objects."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer, or why there is none."""

    code: int  # 0: none
    body: Mapping[str, Any] = field(default_factory=dict)  # empty if it was not a JSON object
    failure: str = ""  # for people: why the call failed; empty if it did not
    when: float = 0.0  # the server's time of the epoch; 0: not said
    retry_after: float = 0.0  # seconds for which it wants no request, at most LONGEST_QUIET

    @property
    def ok(self) -> bool:
        return 200 <= self.code < 300 and not self.failure

    @property
    def metadata(self) -> Mapping[str, Any]:
        return mapping_at(self.body, "metadata")

    @property
    def denied(self) -> bool:
        return self.code in (401, 403)


def condition_of(given: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a Node or a pod; empty if there is none."""
    return next((each for each in items_at(given, "status", "conditions") if each.get("type") == kind), {})


def bearer(token: str) -> str:
    """Return the value of the header Authorization, without the white space around the token, as client-go
    sends it. Raises ValueError with what is wrong with the token, never with the token itself: Python's
    library repeats what it refuses."""
    found = token.strip()
    if not found:
        raise ValueError("is empty")
    if not re.fullmatch("[!-~]+", found):
        raise ValueError("has characters that no request can carry")
    return _BEARER + found


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return the text without these secrets: an API server may repeat in an error what it was sent. It may
    also cut it, so the beginning of a long one is hidden with everything up to the next white space."""
    for secret in secrets:
        if len(secret) > _HEAD:
            text = re.sub(re.escape(secret[:_HEAD]) + r"[^\s\"']*", HIDDEN, text)
        elif len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    return text


class Api(Protocol):
    """One server. No call raises anything, or lasts much longer than SOCKET_SECONDS."""

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """A PATCH is a JSON merge patch (RFC 7386); that of a `.../status` is Kubernetes' strategic merge
        patch, which tells conditions apart. The answer to a LIST with NO_OBJECTS or ONLY_METADATA is a
        Table."""
        ...


class KubeApi:
    """The Api at `host`:`port`. `account` has `token` and `ca.crt` as kubelet mounts them (Kubernetes
    documentation, "Accessing the Kubernetes API from a Pod"). Both are read here, because kubelet replaces
    the token before it expires. `deadline` (monotonic seconds) is for all calls together. One call without an
    answer takes half of the time at most, so that another one is possible."""

    def __init__(self, host: str, port: int, account: Path, deadline: float) -> None:
        self._host, self._port, self._account = host, port, account
        self._deadline = deadline
        self._patience = min(SOCKET_SECONDS, (deadline - time.monotonic()) / 2)
        self._connection: Any = None
        self._bearer = ""
        self._unreachable = ""

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """A server that could not be reached once is not tried again."""
        from http.client import HTTPException

        if not self._unreachable and self._left() <= 0:
            self._unreachable = "no time left for the request"
        if not self._unreachable:
            try:
                self._connect()
            except (OSError, ValueError) as error:
                self._unreachable = self._hide(_why(error))
                self.close()
        if self._unreachable:
            return Answer(0, failure=self._unreachable)
        try:
            return self._ask(method, path, body)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            return Answer(0, failure=self._hide(_why(error)))

    def _hide(self, text: str) -> str:
        return hide(text, [self._bearer.removeprefix(_BEARER)])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _left(self) -> float:
        return min(self._patience, self._deadline - time.monotonic())

    def _timeout(self) -> float:
        return max(0.05, self._left())

    def _connect(self) -> None:
        """Raises OSError (of which ssl.SSLError is one), ValueError."""
        if self._connection is not None:
            self._connection.sock.settimeout(self._timeout())
            return
        import ssl
        from http.client import HTTPSConnection

        try:
            self._bearer = bearer((self._account / "token").read_text("utf-8", "replace"))
        except ValueError as error:
            raise ValueError(f"{self._account / 'token'} {error}") from None
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        # Python 3.13 began to insist on extensions that the certificate authorities of older clusters lack.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connection = HTTPSConnection(self._host, self._port, timeout=self._timeout(), context=context)
        connection.auto_open = 0
        connection.connect()
        self._connection = connection

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        """Raises OSError, HTTPException, ValueError."""
        headers = {
            "Authorization": self._bearer,
            "Accept": f"{_TABLE},{_JSON}" if "includeObject=" in path else _JSON,
            "User-Agent": USER_AGENT,
        }
        content = None
        if body is not None:
            content = json.dumps(body, separators=(",", ":")).encode()
            patch = _STRATEGIC_MERGE if path.endswith("/status") else _MERGE
            headers["Content-Type"] = patch if method == "PATCH" else _JSON
        self._connection.request(method, path, content, headers)
        response = self._connection.getresponse()
        raw = self._read(response)
        response.close()  # read1 does not see the end of a body with a length
        if response.will_close:
            self.close()
        answer = _build_answer(response.status, raw)
        when, wait = response.getheader("Date"), response.getheader("Retry-After", "")
        failure = truncate(self._hide(answer.failure), MOST_SAID)
        return replace(answer, failure=failure, when=_server_time(when), retry_after=_quiet(wait))

    def _read(self, response: Any) -> bytes:
        """Raises OSError when the deadline passes or the body is too large for an API object."""
        raw = b""
        while chunk := response.read1(65536):
            raw += chunk
            if self._deadline <= time.monotonic():
                raise TimeoutError("the answer did not end in time")
            if len(raw) > _BODY_LIMIT:
                raise OSError(f"the answer is larger than {_BODY_LIMIT >> 20} MiB")
        return raw


def _build_answer(code: int, raw: bytes) -> Answer:
    body = parse_object(raw)
    if not 200 <= code < 300:
        said = text_at(body, "message") if body.get("kind") == "Status" else ""
        return Answer(code, body, f"{code}: {said}" if said else f"{code}")
    if not body:
        return Answer(code, failure=f"{code}, but the body is not an object of the API")
    return Answer(code, body)


def _quiet(text: str) -> float:
    """Parse the header Retry-After (RFC 9110), if it has a number of seconds and not a date."""
    return min(LONGEST_QUIET, float(text)) if text.isdecimal() else 0.0


def _server_time(text: str | None) -> float:
    """Parse the header Date (RFC 9110), which every API server sends: the clocks of nodes differ."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp() if text else 0.0
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _why(error: Exception) -> str:
    """Describe it in one line, without what differs from one time to the next."""
    verify = getattr(error, "verify_message", "")
    if verify:
        return f"its certificate is not valid: {verify}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = (error.strerror if isinstance(error, OSError) else str(error)) or str(error)
    where = getattr(error, "filename", None)
    return f"{where}: {text}" if where else text or type(error).__name__
