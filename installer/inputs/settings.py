"""The operator's settings: YAML in, one frozen value out, all faults reported at once.

Defaults are the contract's. Command-line options, and the environment variables that stand for them, are the
CLI's.

This module dominates the start-up time: the models stay few and flat, they share one schema, and pydantic
does not look for plugins.
"""

# ruff: noqa: E402  pydantic is imported when it is known that there are no plugins
from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # they read the metadata of every distribution
# Even so, what would look for them imports importlib.metadata, email and zipfile: 1.4 MB and 19 ms.
_NO_PLUGINS: Any = ModuleType("pydantic.plugin._loader")
_NO_PLUGINS.get_plugins = tuple
sys.modules.setdefault(_NO_PLUGINS.__name__, _NO_PLUGINS)

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from installer.errors import InvalidInputError
from installer.inputs.reading import kind, read_input, reword, shown, suggest
from installer.inputs.yaml_document import Document, KeyPath, parse_document
from installer.model import paths
from installer.model.jsontext import camel
from installer.model.window import DAYS, Window, find_zone, has_zones

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SOCKET_PATH_LIMIT = 107  # bytes, of sun_path in unix(7), without the closing NUL
_DAY = 86_400  # seconds
_UNIT_NAME = re.compile(r"(?!@)[A-Za-z0-9:_.\\@-]{1,247}(?<!@)\.service")  # `x@.service` is a template
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEALTHZ_URL = re.compile(r"http://(\[[0-9A-Fa-f:]+\]|[0-9.]+|localhost)(?::([0-9]{1,5}))?(/[!-~]*)?")
_SHARE = re.compile(r"[1-9][0-9]{0,8}|([1-9][0-9]?|100)%")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TIME, _ZONE = "([01][0-9]|2[0-3]):[0-5][0-9]", re.compile(r"[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_DAY_MINUTES = 24 * 60
_SHORTEST_WINDOW = 10  # minutes: canaries work and are watched for some
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_LISTEN = re.compile(rf"((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):{_PORT})?")


def _is_address(host: str, port: str | None) -> bool:
    from ipaddress import ip_address  # late: most settings have the default

    try:
        ip_address("::1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        return False
    return int(port or 0) < 1 << 16


class _Section(BaseModel):
    """Strict: `"20"` is not a number. Python code uses the attributes' own names."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=camel,
        populate_by_name=True,
        defer_build=True,  # one schema that contains the sections, instead of one more per section
    )


class ProxySettings(_Section):
    """What runs between kubelet and the runtime."""

    runtime_endpoint: str = "auto"
    agent: Literal["enabled", "disabled"] = "enabled"
    agent_sockets: Literal["shared", "own"] = "shared"
    start_timeout_seconds: int = Field(default=20, ge=1, le=_DAY)
    dead_seconds: int = Field(default=5, ge=1, le=_DAY)
    existing_containers: Literal["adopt", "refuse"] = "adopt"

    @field_validator("runtime_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if endpoint == "auto":
            return endpoint
        # It becomes part of a command line, which would change quotes, backslashes and more.
        if not re.fullmatch(r"unix:///[A-Za-z0-9._/@:+-]+", endpoint):
            raise ValueError(
                "must be auto or unix:// with an absolute plain path, such as unix:///run/containerd/x.sock"
            )
        if paths.same_endpoint(endpoint, paths.RELAY_ENDPOINT):
            raise ValueError("is the proxy's own relay socket; it must be the runtime's")
        if paths.link_of(endpoint):
            raise ValueError("is our own link, which may lead to the relay; it must be the runtime's socket")
        if len(endpoint.removeprefix("unix://").encode()) > _SOCKET_PATH_LIMIT:
            raise ValueError(f"must have a path of at most {_SOCKET_PATH_LIMIT} bytes")
        return endpoint


class KubeletSettings(_Section):
    """How kubelet is moved onto the relay, and when that has succeeded or failed."""

    unit: str = "kubelet.service"
    strategy: Literal["auto", "environment", "exec-start"] = "auto"
    drop_in_directory: str = paths.AUTO
    healthz_url: str = "http://127.0.0.1:10248/healthz"
    start_timeout_seconds: int = Field(default=60, ge=1, le=_DAY)
    settle_seconds: int = Field(default=10, ge=1, le=_DAY)
    guard_seconds: int = Field(default=15, ge=3, le=_DAY)
    restarts_per_hour: int = Field(default=3, ge=1)
    accept_static_managers: bool = False
    variable: str = ""

    @field_validator("unit")
    @classmethod
    def _check_unit(cls, unit: str) -> str:
        if not _UNIT_NAME.fullmatch(unit):
            raise ValueError("must be the name of a service, such as kubelet.service")
        if unit == paths.PROXY_UNIT:
            raise ValueError("is the proxy's own unit; it must be kubelet's")
        return unit

    @field_validator("drop_in_directory")
    @classmethod
    def _check_directory(cls, directory: str) -> str:
        if directory.rstrip("/") not in (paths.AUTO, *paths.UNIT_DIRECTORIES):
            raise ValueError(f"must be auto or one that systemd reads: {', '.join(paths.UNIT_DIRECTORIES)}")
        return directory.rstrip("/")

    @field_validator("variable")
    @classmethod
    def _check_variable(cls, variable: str, info: ValidationInfo) -> str:
        if variable and not _VARIABLE_NAME.fullmatch(variable):
            raise ValueError("must be the name of an environment variable, such as KUBELET_EXTRA_ARGS")
        if variable.startswith("CRI_RESMGR_"):
            raise ValueError("is a variable of the guard; it must be one that kubelet's script reads")
        if variable and info.data.get("strategy") == "exec-start":
            raise ValueError("has no effect with kubelet.strategy: exec-start; leave one of them out")
        return variable

    @field_validator("healthz_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        # Our resolver, not the host's, would look up a name. healthz serves no TLS.
        found = _HEALTHZ_URL.fullmatch(url)
        if url and not (found and _is_address(found[1], found[2])):
            raise ValueError('must be http://ADDRESS:PORT/PATH with a numeric address, or "" (off)')
        return url


class RemovalSettings(_Section):
    """What is removed from the host, and when."""

    on_termination: Literal["keep", "auto"] = "keep"
    reset_pinning: bool = True
    wait_seconds: int = Field(default=600, ge=1, le=_DAY)  # for `uninstall`, which waits for the whole fleet
    # What places containers afterwards: the proxy leaves only a node that is ready for it, and the next node
    # waits until it serves this one.
    successor: Literal["none", "nri"] = "none"
    successor_namespace: str = "kube-system"  # of its custom resources

    @field_validator("successor_namespace")
    @classmethod
    def _check_namespace(cls, name: str) -> str:
        if not _NAMESPACE.fullmatch(name):
            raise ValueError("must be the name of a namespace, such as kube-system")
        return name


class RolloutWindow(_Section):
    """When planned work may begin."""

    days: list[Literal[DAYS]] = Field(default=list(DAYS), json_schema_extra={"minItems": 1})  # type: ignore[valid-type]
    begins: str = Field(alias="from", json_schema_extra={"pattern": f"^{_TIME}$"})
    ends: str = Field(alias="to", json_schema_extra={"pattern": f"^({_TIME}|24:00)$"})
    time_zone: str = "UTC"

    @field_validator("days")
    @classmethod
    def _check_days(cls, days: list[str]) -> list[str]:
        if not days:
            raise ValueError("must have a day: without one, the window never opens")
        return days

    @field_validator("begins", "ends")
    @classmethod
    def _check_time(cls, time: str, info: ValidationInfo) -> str:
        if not re.fullmatch(_TIME, time) and not (time == "24:00" and info.field_name == "ends"):
            raise ValueError("must be a time from 00:00 to 23:59")
        return time

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, zone: str) -> str:
        """A machine without time zone data believes a name; a node without it says so, and waits."""
        try:
            find_zone(zone)
        except ValueError:
            if has_zones() or not _ZONE.fullmatch(zone):
                raise ValueError(
                    "must be UTC, an offset such as +01:00, or a name such as Europe/Berlin"
                ) from None
        return zone

    @field_validator("ends")
    @classmethod
    def _check_length(cls, ends: str, info: ValidationInfo) -> str:
        begins = info.data.get("begins", "")
        if begins and begins == ends:
            raise ValueError(
                "must differ from `from`: such a window never opens; 00:00 to 24:00 is a whole day"
            )
        if begins and (_minutes_of(ends) - _minutes_of(begins)) % _DAY_MINUTES in range(1, _SHORTEST_WINDOW):
            raise ValueError(f"must be at least {_SHORTEST_WINDOW} minutes after `from`")
        return ends

    @property
    def window(self) -> Window:
        days = tuple(sorted({DAYS.index(day) for day in self.days}))
        return Window(days, _minutes_of(self.begins), _minutes_of(self.ends), self.time_zone)


def _minutes_of(time: str) -> int:
    hours, _, minutes = time.partition(":")
    return int(hours) * 60 + int(minutes)


def _or_one_window(schema: dict[str, Any]) -> None:
    several = {key: schema.pop(key) for key in ("type", "items")}
    schema["anyOf"] = [several, several["items"]]


class RolloutSettings(_Section):
    """How a change reaches a fleet."""

    concurrent_restarts: int | str = "1%"
    max_failures: int | str = "1%"
    order: Literal["canary", "any"] = "canary"
    soak_seconds: int = Field(default=300, ge=0, le=_DAY)
    pod_ready_seconds: int = Field(default=60, ge=0, le=600)
    window: list[RolloutWindow] = Field(default=[], json_schema_extra=_or_one_window)
    refused: Literal["ready", "notReady"] = "notReady"

    @field_validator("window", mode="before")
    @classmethod
    def _accept_one(cls, window: object) -> object:
        return [window] if isinstance(window, dict) else window

    @field_validator("concurrent_restarts", "max_failures", mode="before")
    @classmethod
    def _check_share(cls, share: object) -> object:
        if isinstance(share, bool) or not _SHARE.fullmatch(str(share)):
            raise ValueError("must be a number above 0, or a percentage of the nodes such as 1%")
        return share


class StatusSettings(_Section):
    """Where `run` serves its state."""

    # Empty: nowhere. The chart checks the pattern as well.
    listen: str = Field(default="", json_schema_extra={"pattern": f"^{_LISTEN.pattern}$"})

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: str) -> str:
        if not _LISTEN.fullmatch(listen):
            raise ValueError('must be host:port, such as 127.0.0.1:8080, or "" (off)')
        return listen


class Settings(_Section):
    """Everything an operator may set; docs/operations.md has an example of each."""

    api_version: Literal["cri-resmgr-installer/v1"] = "cri-resmgr-installer/v1"
    mode: Literal["install", "remove"] = "install"
    take_over: bool = False
    proxy: ProxySettings = Field(default_factory=ProxySettings)
    kubelet: KubeletSettings = Field(default_factory=KubeletSettings)
    removal: RemovalSettings = Field(default_factory=RemovalSettings)
    rollout: RolloutSettings = Field(default_factory=RolloutSettings)
    status: StatusSettings = Field(default_factory=StatusSettings)


def load_settings(path: Path | None) -> Settings:
    """The settings in the file at `path`; the defaults if it is None.

    Raises InvalidInputError with every fault that `read_input` or `parse_settings` finds.
    """
    if path is None:
        return parse_settings(b"")
    return parse_settings(read_input(path, "this is the file that --config names"), str(path))


def parse_settings(content: bytes, name: str = "settings") -> Settings:
    """The settings in a YAML text. An empty text, or a section without keys, means the defaults.

    Raises InvalidInputError with every fault at once, each as `path.in.yaml: what is wrong (name:line)`.
    """
    document = parse_document(content, name)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise InvalidInputError([f"{name}: must be a mapping of settings, not {kind(data)}"])
    # Empty sections are filled in here so that pydantic never builds a schema for a single section.
    sections: dict[object, object] = {key: {} for key in _SECTIONS if data.get(key) is None}
    data = {**data, **sections}
    faults = list(document.faults)
    try:
        # Only aliases count: a key in snake_case is not a setting.
        settings = Settings.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        faults += [_fault(detail, document, name) for detail in details]
    if faults:
        raise InvalidInputError(faults, f"correct {name}; nothing was touched")
    return settings


def _fields(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in model.model_fields.items())


_SECTIONS = {
    name: _fields(field.annotation)
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


_KNOWN = {**_SECTIONS, "window": _fields(RolloutWindow)}

_GONE: dict[tuple[int | str, ...], str] = {
    ("adopt",): "was renamed to takeOver",
    ("proxy", "strangers"): "was renamed to proxy.existingContainers",
    ("proxy", "acceptRepinning"): "was removed: proxy.existingContainers: adopt keeps the weight of "
    "containers; if one cannot be adopted, install with the policy none and recreate its pod",
    ("rollout", "spreadSeconds"): "was removed: in a fleet, permits limit the restarts",
    ("configs",): "was removed: a force.cfg takes precedence over what the agent has sent",
}
"""Settings that were renamed or removed, and what to use instead."""


def _where(path: KeyPath, document: Document, name: str) -> str:
    line = document.lines.get(path) or document.lines.get(tuple(part for part in path if part != "0"))
    return f" ({name}:{line})" if line else ""


def _fault(detail: ErrorDetails, document: Document, name: str) -> str:
    path = tuple(str(part) for part in detail["loc"])
    return f"{'.'.join(path) or name}: {_sentence(detail)}{_where(path, document, name)}"


def _suggest(key: str, known: tuple[str, ...]) -> str:
    section = next((section for section, fields in _SECTIONS.items() if key in fields), None)
    return f"it belongs under {section}" if section else suggest(key, known)


def _sentence(detail: ErrorDetails) -> str:
    """What is wrong, in an operator's words. The types are those of pydantic-core's error list."""
    value, message = detail["input"], detail["msg"]
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        if gone := _GONE.get(detail["loc"]):
            return gone
        *above, key = map(str, detail["loc"])
        section = next((each for each in reversed(above) if not each.isdecimal()), "")
        return f"unknown key; {_suggest(key, _KNOWN.get(section, ()) if above else _fields(Settings))}"
    if detail["type"] == "missing":
        return "must be given"
    if value is None:
        return "has no value; leave the key out for its default"
    if detail["type"] == "model_type":
        return f"must be a mapping, not {shown(value)}"
    return f"{reword(message)}, not {shown(value)}"
