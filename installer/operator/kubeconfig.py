"""A kubeconfig as kubectl reads it (client-go, tools/clientcmd): which files, which of them counts for what,
what a context, a cluster and a user may say. No message repeats more of it than names and keys."""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from installer.errors import InvalidInputError
from installer.inputs.yaml_document import parse_document
from installer.model.jsontext import items_at, mapping_at, text_at
from installer.operator.credentials import (
    CredentialsError,
    Identity,
    Password,
    Plugin,
    Program,
    Token,
    TokenFile,
    add_certificate,
)
from installer.operator.proxies import Proxy, parse_proxy, proxy_of_environment

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATHS = {
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key", "tokenFile"),
}
_KINDS = {"clusters": "cluster", "users": "user", "contexts": "context"}
_PLUGINS = "client.authentication.k8s.io"
_GONE = {"gcp": "gke-gcloud-auth-plugin", "azure": "kubelogin", "openstack": "client-keystone-auth"}
"""Built into kubectl until 1.25, and the credential plugins that came after."""
_TOKEN = "!#$&'*+^`|"
"""What a header's name may have besides letters, digits and -._~; client-go escapes all else in a key."""
_EXEC_EXTENSION = f"{_PLUGINS}/exec"


class KubeconfigError(CredentialsError):
    """It cannot be used."""


@dataclass(frozen=True)
class Access:
    """How to reach an API server, and as whom. `tls` is None for plain HTTP, which carries no credentials.
    `impersonated` are more headers."""

    server: str
    identity: Identity = field(default_factory=Identity)
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: Proxy | None = None
    impersonated: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Chosen:
    """What a context names; the names are for messages."""

    context: str
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    cluster_name: str
    user_name: str

    @property
    def provider(self) -> str:
        """The name of its `auth-provider`, a plugin that is part of kubectl; empty if there is none."""
        provider = mapping_at(self.user, "auth-provider")
        return _text(provider, "name", f"user {self.user_name}: auth-provider") if provider else ""


def read_files(paths: Sequence[Path], context: str) -> Chosen | None:
    """Merge these files: what the first of them says counts. One that is missing or empty says nothing.
    Return None where none says anything. Raises KubeconfigError."""
    configs = []
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise KubeconfigError(f"{path}: {error.strerror}") from None
        if given := parse(content, str(path)):
            _resolve(given, path.absolute().parent)
            configs.append(given)
    return choose(configs, context) if configs else None


def parse(content: bytes, name: str) -> dict[str, Any]:
    """Return a kubeconfig, empty if it says nothing. Raises KubeconfigError."""
    try:
        given = parse_document(content, name).data
    except InvalidInputError as error:
        place = re.match(rf"{re.escape(name)}(:\d+)?", error.message)
        where = place[0] if place else name  # the rest may repeat what stands there
        raise KubeconfigError(f"{where}: it cannot be read as YAML") from None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise KubeconfigError(f"{name}: is not a kubeconfig")
    if given.get("kind", "Config") != "Config":
        raise KubeconfigError(f"{name}: is not a kubeconfig, but of another kind")
    for part in _KINDS:
        listed = given.get(part) or []
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise KubeconfigError(f"{name}: {part} must be a list of objects")
        names = [text_at(each, "name") for each in listed]
        if twice := next((each for each in names if names.count(each) > 1), None):
            raise KubeconfigError(f"{name}: {part}: {twice} is there twice")
    return given


def _resolve(given: Mapping[str, Any], directory: Path) -> None:
    """Make its paths absolute: they are relative to its file. A program without a slash is searched for."""
    for part, keys in _PATHS.items():
        for item in items_at(given, part):
            entry = item.get(_KINDS[part])
            if not isinstance(entry, dict):
                continue
            for key in keys:
                if text_at(entry, key):
                    entry[key] = str(directory / entry[key])
            program = mapping_at(entry, "exec")
            if isinstance(program, dict) and "/" in text_at(program, "command"):
                program["command"] = str(directory / program["command"])


def choose(configs: Sequence[Mapping[str, Any]], context: str = "") -> Chosen:
    """Return what `context`, or the current one, names. Raises KubeconfigError."""
    name = context or next(filter(None, (text_at(config, "current-context") for config in configs)), "")
    if not name:
        known = ", ".join(_names(configs, "contexts"))
        raise KubeconfigError("it has no current context" + (f", only {known}" if known else ""))
    entry = _find(configs, "contexts", name)
    if entry is None:
        raise KubeconfigError(f"context {name} does not exist")
    where = f"context {name}"
    cluster_name, user_name = _text(entry, "cluster", where), _text(entry, "user", where)
    cluster = _find(configs, "clusters", cluster_name)
    if cluster is None:
        raise KubeconfigError(f"{where}: cluster {cluster_name or 'without a name'} does not exist")
    user = _find(configs, "users", user_name)
    if user is None and user_name:
        raise KubeconfigError(f"{where}: user {user_name} does not exist")
    return Chosen(name, cluster, user or {}, cluster_name, user_name)


def _find(configs: Iterable[Mapping[str, Any]], part: str, name: str) -> Mapping[str, Any] | None:
    for config in configs:
        for each in items_at(config, part):
            if text_at(each, "name") == name:
                return mapping_at(each, _KINDS[part])
    return None


def _names(configs: Iterable[Mapping[str, Any]], part: str) -> list[str]:
    return [text_at(each, "name") for config in configs for each in items_at(config, part)]


def in_cluster(environment: Mapping[str, str], account: Path = _ACCOUNT) -> Access | None:
    """Return the access of a pod; None outside of one. Raises KubeconfigError."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    if not host or not port or not (account / "token").is_file():
        return None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    context = _trust(_bytes_of(account / "ca.crt"), "ca.crt", insecure=False)
    proxy = _proxy("", server, "", environment)
    return Access(server, TokenFile(account / "token"), context, proxy=proxy)


def access_of(chosen: Chosen, environment: Mapping[str, str], identity: Identity | None = None) -> Access:
    """Read what it names. `identity` is that of an `auth-provider`. Raises KubeconfigError."""
    cluster, user = chosen.cluster, chosen.user
    where, whose = f"cluster {chosen.cluster_name}", f"user {chosen.user_name}"
    authority = _file_or_data(cluster, "certificate-authority", where)
    server, given = _server_of(cluster, where)
    proxy = _proxy(_text(cluster, "proxy-url", where), server, where, environment)
    impersonated = _impersonation(user, whose)
    if not server.startswith("https:"):
        return Access(server, proxy=proxy, impersonated=impersonated)
    insecure = _flag(cluster, "insecure-skip-tls-verify", where)
    if insecure and authority:
        raise KubeconfigError(f"{where}: has a certificate authority and insecure-skip-tls-verify")
    tls = _trust(authority, where, insecure=insecure)
    certificate = _file_or_data(user, "client-certificate", whose)
    key = _file_or_data(user, "client-key", whose)
    if certificate and not key:
        raise KubeconfigError(f"{whose}: has a client certificate without its key")
    if certificate and key:
        add_certificate(tls, certificate, key)
    plain = _identity(user, whose) or identity or given
    if plain is None and not certificate and user.get("exec") is not None:
        plain = Plugin(_program(chosen, whose, server, authority), partial(_certify, tls))
    name = _text(cluster, "tls-server-name", where)
    return Access(server, plain or Identity(), tls, name, proxy, impersonated)


def _certify(context: ssl.SSLContext, certificate: str, key: str) -> None:
    add_certificate(context, certificate.encode(), key.encode())


def _server_of(cluster: Mapping[str, Any], where: str) -> tuple[str, Identity | None]:
    """Return the URL, and the name and password in it. kubectl takes one without a scheme for plain HTTP."""
    text = _text(cluster, "server", where)
    if not text:
        raise KubeconfigError(f"{where}: has no server")
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if not host or parts.scheme not in ("http", "https"):
        raise KubeconfigError(f"{where}: server must be a URL, https://HOST:PORT")
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    given = Password(unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")), given


def _proxy(text: str, server: str, where: str, environment: Mapping[str, str]) -> Proxy | None:
    try:
        return parse_proxy(text) if text else proxy_of_environment(server, environment)
    except ValueError as error:
        raise KubeconfigError(f"{where}: proxy-url {error}" if text else str(error)) from None


def _trust(authority: bytes, where: str, *, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cadata=authority.decode("ascii", "replace") if authority else None
        )
    except (ssl.SSLError, ValueError):
        raise KubeconfigError(f"{where}: its certificate authority is not a certificate") from None
    # Python 3.13 began to insist on extensions that the certificate authorities of older clusters lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _identity(user: Mapping[str, Any], where: str) -> Identity | None:
    """Return who it says, if it says so itself."""
    token, file = _text(user, "token", where), _text(user, "tokenFile", where)
    name, password = _text(user, "username", where), _text(user, "password", where)
    if token and (name or password):
        raise KubeconfigError(f"{where}: has both a token and a password; only one is allowed")
    if file:
        return TokenFile(Path(file), token)
    if token:
        return Token(token)
    return Password(name, password) if name or password else None


def _impersonation(user: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    name, uid = _text(user, "as", where), _text(user, "as-uid", where)
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    several = [groups, *(values or [] for values in extra.values())] if isinstance(extra, Mapping) else [None]
    if not all(
        isinstance(values, list) and all(isinstance(text, str) for text in values) for values in several
    ):
        raise KubeconfigError(
            f"{where}: as-groups must be a list of texts, as-user-extra an object with such lists"
        )
    if not name and (uid or groups or extra):
        raise KubeconfigError(f"{where}: as-uid, as-groups and as-user-extra need `as`")
    headers = [("User", name), ("Uid", uid)] + [("Group", group) for group in groups]
    for key, values in extra.items():
        headers += [(f"Extra-{quote(key, safe=_TOKEN)}", value) for value in values or []]
    if any(re.search(r"[\r\n\0]", value) for _, value in headers):
        raise KubeconfigError(f"{where}: a header cannot carry whom it impersonates")
    # HTTP libraries send latin-1: the bytes are those of UTF-8, as kubectl sends them.
    return tuple((f"Impersonate-{key}", value.encode().decode("latin-1")) for key, value in headers if value)


def _program(chosen: Chosen, where: str, server: str, authority: bytes) -> Program:
    given = mapping_at(chosen.user, "exec")
    where = f"{where}: exec"
    command, version = _text(given, "command", where), _text(given, "apiVersion", where)
    interactive = _text(given, "interactiveMode", where)
    if not command:
        raise KubeconfigError(f"{where}: has no command")
    if version not in (f"{_PLUGINS}/v1", f"{_PLUGINS}/v1beta1"):
        raise KubeconfigError(
            f"{where}: apiVersion must be {_PLUGINS}/v1 or v1beta1", "update the kubeconfig"
        )
    if not interactive and version.endswith("/v1"):
        raise KubeconfigError(f"{where}: has no interactiveMode", "IfAvailable is the usual one")
    if interactive not in ("", "Never", "IfAvailable", "Always"):
        raise KubeconfigError(f"{where}: interactiveMode must be Never, IfAvailable or Always")
    arguments = given.get("args") or []
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise KubeconfigError(f"{where}: args must be a list of texts")
    environment = {_text(each, "name", where): _text(each, "value", where) for each in items_at(given, "env")}
    known = _known_cluster(chosen, server, authority) if given.get("provideClusterInfo") else None
    hint = _text(given, "installHint", where)
    return Program(version, (command, *arguments), environment, interactive, hint, known)


def _known_cluster(chosen: Chosen, server: str, authority: bytes) -> dict[str, object]:
    """What a plugin may know of it (k8s.io/client-go/pkg/apis/clientauthentication)."""
    keys = ("tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    known = {key: chosen.cluster[key] for key in keys if chosen.cluster.get(key)}
    known |= {"server": server}
    known |= {"certificate-authority-data": b64encode(authority).decode()} if authority else {}
    for extension in items_at(chosen.cluster, "extensions"):
        if text_at(extension, "name") == _EXEC_EXTENSION:
            known["config"] = extension.get("extension")
    return known


def check_provider(chosen: Chosen) -> None:
    """Raises KubeconfigError unless kubectl still has this `auth-provider`, and has all that it needs."""
    name, where = chosen.provider, f"user {chosen.user_name}: auth-provider"
    if chosen.user.get("exec"):
        raise KubeconfigError(f"{where}: there is an exec plugin, too; only one is allowed")
    if name == "oidc":
        given = mapping_at(chosen.user, "auth-provider", "config")
        for key in ("idp-issuer-url", "client-id"):
            if not _text(given, key, where):
                raise KubeconfigError(f"{where}: has no {key}")
        return
    hint = f"use the credential plugin {_GONE[name]}" if name in _GONE else ""
    raise KubeconfigError(f"auth-provider {name}: kubectl does not have it", hint)


def _file_or_data(given: Mapping[str, Any], key: str, where: str) -> bytes:
    if data := _text(given, f"{key}-data", where):
        try:
            return b64decode("".join(data.split()), validate=True)
        except ValueError:
            raise KubeconfigError(f"{where}: {key}-data is not base64") from None
    path = _text(given, key, where)
    return _bytes_of(Path(path)) if path else b""


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{path}: {error.strerror}") from None


def _text(given: Mapping[str, Any], key: str, where: str) -> str:
    found = given.get(key)
    if found is not None and not isinstance(found, str):
        raise KubeconfigError(f"{where}: {key} must be a text: put it in quotes")
    return found or ""


def _flag(given: Mapping[str, Any], key: str, where: str) -> bool:
    found = given.get(key)
    if found is not None and not isinstance(found, bool):
        raise KubeconfigError(f"{where}: {key} must be true or false")
    return bool(found)


def usual_paths(kubeconfig: str, environment: Mapping[str, str]) -> list[Path]:
    """Return the files that kubectl would read. Raises KubeconfigError where the one asked for is missing."""
    if kubeconfig:
        if not (path := Path(kubeconfig).expanduser()).exists():
            raise KubeconfigError(f"{path}: No such file or directory")
        return [path]
    if listed := environment.get("KUBECONFIG", ""):
        return [Path(each) for each in dict.fromkeys(listed.split(os.pathsep)) if each]
    return [Path("~/.kube/config").expanduser()]
