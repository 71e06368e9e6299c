"""Kubelet's own files without the relay: texts in, texts out. Pure.

The shell installer of the Gardener extension for cri-resmgr deletes each line of kubelet.service that has the
word "containerd", and puts the relay's flag behind $KUBELET_EXTRA_ARGS, with a backslash after it. Others
name the relay in an environment file, or in kubelet's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from installer.model.paths import PROXY_UNIT, normalise_endpoint
from installer.model.snapshot import KubeletBase, UnitText
from installer.systemd_syntax.unit_file import parse_unit

_RELAY = r"(?:/var)?/run/cri-resmgr/cri-resmgr\.sock(?![\w./-])"
_NAMES_RELAY = re.compile(_RELAY)
_AS_ENDPOINT = re.compile(rf"(endpoint[\"']?\s*[=:\s]\s*[\"']?)(?:unix:(?://)?)?{_RELAY}", re.IGNORECASE)
_ORDERS = re.compile(r"^(?:After|Wants|Requires|Requisite|BindsTo|PartOf|Upholds)[ \t]*=.*\n?", re.M)
_TIES = frozenset(("Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom"))
# The flag as the shell installer leaves it: the last line of the command, its backslash continues nothing.
_APPENDED = re.compile(
    r"^(?P<before>.*)(?P<variable>\$\{?KUBELET_EXTRA_ARGS\}?)[ \t]*\\\n"
    rf"[ \t]*(?P<flag>--container-runtime-endpoint=\S*?{_RELAY})[ \t]*\\?[ \t]*"
    r"(?=\n[ \t]*(?:\n|\[|\Z)|\n?\Z)",
    re.M,
)
_GARDENER = ("/var/lib/kubelet/extra_args", "worker.gardener.cloud/")
_RUNTIME = "containerd"
_RUNTIME_CGROUPS = f"--runtime-cgroups=/system.slice/{_RUNTIME}.service"
_ORDER_LINES = (f"After={_RUNTIME}.service", f"Wants={_RUNTIME}.service")


class Repaired(NamedTuple):
    """`texts` are those that change. `sources` are the files that named the relay. `lost` is what a deletion
    of lines has taken from kubelet's unit, `returned` what of that `texts` put back."""

    texts: Mapping[str, str]
    sources: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


def names_relay(base: KubeletBase) -> bool:
    """Whether any of kubelet's own files names the relay."""
    return any(_NAMES_RELAY.search(_effective(text.text)) for text in texts_of(base))


def repair_base(base: KubeletBase, endpoint: str) -> Repaired:
    """Kubelet's files with the runtime's `endpoint` in place of the relay, and without orders for the
    proxy's unit, which will not always be there."""
    texts: dict[str, str] = {}
    lost: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    sources = tuple(text.path for text in texts_of(base) if _NAMES_RELAY.search(_effective(text.text)))
    units = {text.path for text in base.texts}
    for text in texts_of(base):
        after = text.text
        if text.path in units:
            after = _ORDERS.sub(_without_proxy_unit, after)
            if text.path in sources and _was_cut(after):
                lost = (*_ORDER_LINES, _RUNTIME_CGROUPS)
                after = _APPENDED.sub(_in_front, after)
                if _RUNTIME in endpoint and any(word in after for word in _GARDENER):
                    after = _give_back(after)
                    returned = tuple(line for line in lost if line in after)
        after = _with_endpoint(after, endpoint)
        if after != text.text:
            texts[text.path] = after
    return Repaired(texts, sources, tuple(line for line in lost if line not in returned), returned)


def ties_of(base: KubeletBase) -> Iterable[str]:
    """What is left in kubelet's unit that stops or restarts it with the proxy's: a line each, with its file.
    `repair_base` takes such orders away, but not those that go over several lines."""
    for text in base.texts:
        for line in parse_unit(text):
            if line.key in _TIES and PROXY_UNIT in line.value.split():
                yield f"{line.key}={PROXY_UNIT} in {text.path}"


def with_texts(base: KubeletBase, texts: Mapping[str, str]) -> KubeletBase:
    """The base with some of its files as `texts` have them."""

    def changed(text: UnitText) -> UnitText:
        return UnitText(text.path, texts.get(text.path, text.text))

    return replace(
        base,
        texts=tuple(map(changed, base.texts)),
        config=changed(base.config) if base.config else None,
        config_dir=None if base.config_dir is None else tuple(map(changed, base.config_dir)),
        environment_files={
            name: tuple(map(changed, found)) for name, found in base.environment_files.items()
        },
    )


def texts_of(base: KubeletBase) -> Iterable[UnitText]:
    """Every file of kubelet's base, once."""
    return {text.path: text for text in base.configured()}.values()


def _effective(text: str) -> str:
    """The text without its comments."""
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(("#", ";")))


def _with_endpoint(text: str, endpoint: str) -> str:
    path = normalise_endpoint(endpoint)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(("#", ";")):
            line = _AS_ENDPOINT.sub(lambda found: f"{found[1]}unix://{path}", line)
            lines[number] = _NAMES_RELAY.sub(lambda _found: path, line)
    return "\n".join(lines)


def _without_proxy_unit(found: re.Match[str]) -> str:
    """One line that orders units, without the proxy's; the line goes if that was all."""
    key, _equals, value = found[0].partition("=")
    words = value.split()
    if PROXY_UNIT not in words:
        return found[0]
    left = " ".join(word for word in words if word != PROXY_UNIT)
    return f"{key}={left}\n" if left else ""


def _was_cut(text: str) -> bool:
    """Whether the lines that name containerd are gone from a unit that runs kubelet."""
    return "ExecStart=" in text and _RUNTIME not in text


def _in_front(found: re.Match[str]) -> str:
    """The flag in front of the variable, where the distribution has it: the last word stays the variable."""
    before, variable, flag = found["before"], found["variable"], found["flag"]
    if before.lstrip().startswith("ExecStart"):
        return f"{before}\\\n    {flag} \\\n    {variable}"
    return f"    {flag} \\\n{before}{variable}"


def _give_back(text: str) -> str:
    """Gardener's lines that named containerd (its kubelet.service orders kubelet after it)."""
    lines = text.split("\n")
    flag = next(
        (n for n, line in enumerate(lines) if line.lstrip().startswith("--container-runtime-e")), None
    )
    if flag is not None and lines[flag].rstrip().endswith("\\"):
        lines.insert(flag + 1, f"    {_RUNTIME_CGROUPS} \\")
    unit = next((number for number, line in enumerate(lines) if line.strip() == "[Unit]"), None)
    if unit is not None:
        end = unit + 1
        while end < len(lines) and lines[end].strip() and not lines[end].startswith("["):
            end += 1
        lines[end:end] = _ORDER_LINES
    return "\n".join(lines)
