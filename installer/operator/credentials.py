"""Who asks an API server: a token, one in a file, a name and password, or what a credential plugin says, as
client-go has it (transport, plugin/pkg/client/auth/exec).

The plugin is the program that a person's own kubeconfig names. It gets that person's environment, terminal
and standard error, as kubectl gives it.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from installer.cluster.kubeapi import bearer
from installer.model.instant import parse_time
from installer.model.jsontext import mapping_at, parse_json, text_at

_FILE_SECONDS = 60.0  # kubelet and others replace a token long before it expires
_INFO = "KUBERNETES_EXEC_INFO"
_NO_PLUGIN = (
    "install this credential plugin of client-go: "
    "https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins"
)


class CredentialsError(Exception):
    """There are none. The message never repeats one."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Identity:
    """Nobody; a client certificate may still say who. `password` is what no message may repeat, besides what
    `header` returns."""

    password = ""

    def header(self) -> str:
        """Return the value of Authorization now; empty: none. Raises CredentialsError."""
        return ""

    def denied(self) -> None:
        """The API server has answered 401."""


@dataclass(frozen=True)
class Token(Identity):
    token: str

    def header(self) -> str:
        return bearer_of(self.token, "its token")


class Password(Identity):
    def __init__(self, user: str, password: str) -> None:
        self._user, self.password = user, password

    def header(self) -> str:
        return f"Basic {b64encode(f'{self._user}:{self.password}'.encode()).decode()}"


class TokenFile(Identity):
    """It is read again every minute; if that fails, the last token stays. `fallback` counts until it can be
    read for the first time."""

    def __init__(self, path: Path, fallback: str = "") -> None:
        self._path = path
        self._until = 0.0
        self._last = bearer_of(fallback, "its token") if fallback else ""

    def header(self) -> str:
        if time.monotonic() >= self._until:
            try:
                self._last = bearer_of(self._path.read_text("utf-8", "replace"), str(self._path))
            except (OSError, CredentialsError) as error:
                if not self._last:
                    raise CredentialsError(_why(error, self._path)) from None
            self._until = time.monotonic() + _FILE_SECONDS
        return self._last


@dataclass(frozen=True)
class Program:
    """A plugin, as a kubeconfig names it. `cluster` is what it may know of the cluster; None: nothing."""

    api_version: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    interactive: str
    install_hint: str
    cluster: Mapping[str, object] | None


class Plugin(Identity):
    """Runs when the first request needs it, after its credentials have expired, and after a 401. `certify`
    gets a certificate with its key."""

    def __init__(self, program: Program, certify: Callable[[str, str], None]) -> None:
        self._program, self._certify = program, certify
        self._lock = threading.Lock()  # it may talk to a person
        self._found: tuple[str, float] | None = None  # the header, and until when it is good

    def header(self) -> str:
        with self._lock:
            if self._found is None or self._found[1] < time.time():
                self._found = self._ask()
            return self._found[0]

    def denied(self) -> None:
        self._found = None

    def _ask(self) -> tuple[str, float]:
        status, plugin = self._run(), f"the credential plugin {self._program.argv[0]}"
        token, until = text_at(status, "token"), parse_time(status.get("expirationTimestamp"))
        pair = [text_at(status, "clientCertificateData"), text_at(status, "clientKeyData")]
        if status.get("expirationTimestamp") and not until:
            raise CredentialsError(f"{plugin} has printed an expirationTimestamp that is no time")
        if not token and not any(pair):
            raise CredentialsError(f"{plugin} has printed neither a token nor a certificate")
        if any(pair) and not all(pair):
            raise CredentialsError(f"{plugin} has printed a certificate or a key, not both")
        if all(pair):
            self._certify(*pair)
        header = bearer_of(token, f"the token of {plugin}") if token else ""
        return header, until or float("inf")

    def _run(self) -> Mapping[str, object]:
        given = self._program
        plugin = f"the credential plugin {given.argv[0]}"
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if given.interactive == "Always" and not terminal:
            raise CredentialsError(f"{plugin} needs a terminal to talk to you")
        spec: dict[str, object] = {"interactive": terminal and given.interactive != "Never"}
        spec |= {} if given.cluster is None else {"cluster": given.cluster}
        info = json.dumps({"kind": "ExecCredential", "apiVersion": given.api_version, "spec": spec})
        try:
            done = subprocess.run(
                given.argv,
                env={**os.environ, **given.environment, _INFO: info},
                stdin=None if spec["interactive"] else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=False,
            )
        except FileNotFoundError:
            hint = given.install_hint.strip() or _NO_PLUGIN
            raise CredentialsError(f"{plugin} is not installed", hint) from None
        except (OSError, ValueError) as error:
            raise CredentialsError(f"{plugin} cannot run: {_why(error)}") from None
        if done.returncode:
            hint = "above is what it says; run it by hand, or log in again"
            failed = f"{plugin} failed with exit code {done.returncode}"
            raise CredentialsError(failed, hint)
        try:
            found = parse_json(done.stdout)
        except ValueError:
            found = None
        if text_at(found, "kind") != "ExecCredential" or not mapping_at(found, "status"):
            raise CredentialsError(f"{plugin} has printed no ExecCredential with a status")
        if text_at(found, "apiVersion") != given.api_version:
            said = f"has printed {text_at(found, 'apiVersion')}; its kubeconfig says {given.api_version}"
            raise CredentialsError(f"{plugin} {said}")
        return mapping_at(found, "status")


def bearer_of(token: str, what: str) -> str:
    """Return the header's value for a token. `what` names it. Raises CredentialsError."""
    try:
        return bearer(token)
    except ValueError as error:
        raise CredentialsError(f"{what} {error}") from None


def add_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Let new connections present it. OpenSSL reads both from a file, which is gone afterwards. Raises
    CredentialsError."""
    try:
        with tempfile.NamedTemporaryFile() as file:  # only its owner may read it
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name, password=_ask_nobody)
    except (OSError, ValueError) as error:
        raise CredentialsError(f"its client certificate and key do not fit: {_why(error)}") from None


def _ask_nobody() -> str:
    """OpenSSL would ask at the terminal for the password of an encrypted key."""
    raise ValueError("the key is encrypted")


def _why(error: Exception, path: Path | None = None) -> str:
    text = (error.strerror if isinstance(error, OSError) else "") or str(error)
    return f"{path}: {text}" if isinstance(error, OSError) and path else text
