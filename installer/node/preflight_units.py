"""Whether the lines of others, in kubelet's unit and in drop-ins for the proxy's, leave ours room. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from installer.inputs.systemd_syntax import Assignment, parse_unit
from installer.model import paths
from installer.model.host import Probe, UnitText
from installer.model.plan import Finding, refusal
from installer.node.sandbox import confines, needed_paths

if TYPE_CHECKING:
    from installer.node.facts import Facts

_PROXY_ALONE = frozenset({"ExecStart", "Type"})
# What keeps the unit from starting, ends it, or does more if it fails; and the values that do not.
_PROXY_NEVER = re.compile(
    "(Condition|Assert).+|ExecCondition|Requisite|Conflicts|RefuseManualSt.+|StopWhenUnneeded|.+Action"
    "|WatchdogSec|RuntimeMaxSec"
)
_NEUTRAL = frozenset({"", "0", "no", "n", "false", "f", "off", "none", "infinity", "shutdown.target"})
_PROXY_NEEDS = frozenset({"Environment", "EnvironmentFile", "ExecStartPre", "ExecStartPost"})


def check_proxys(probe: Probe) -> Iterable[Finding]:
    """Drop-ins that remove needed lines from the proxy's unit. What is installed would be blamed for the
    failure."""
    for line in confines(probe.proxy_drop_ins, kubelet=False):
        yield _confined("proxy-confined", paths.PROXY_UNIT, line)
    yield from _check_missing("proxy-confined", paths.PROXY_UNIT, probe.proxy_drop_ins, probe)
    for text in probe.proxy_drop_ins:
        lost = {line.key for line in parse_unit(text) if _overrides(line)}
        if lost:
            yield refusal(
                "proxy-drop-in-resets",
                f"{text.path} overrides what {paths.PROXY_UNIT} needs: {', '.join(sorted(lost))}",
                "remove these lines, or the file; options of cri-resmgr belong in "
                "EXTRA_OPTIONS.cfg of the configs",
            )


def _overrides(line: Assignment) -> bool:
    if line.section == "Service" and (line.key in _PROXY_ALONE or line.key in _PROXY_NEEDS):
        return line.key in _PROXY_ALONE or not line.value
    return _PROXY_NEVER.fullmatch(line.key) is not None and line.value.lower() not in _NEUTRAL


def check_kubelets(facts: Facts) -> Iterable[Finding]:
    name, texts = facts.unit.name, facts.snapshot.base.texts
    if facts.unit.load_state != "masked":
        for line in confines(texts, kubelet=True):
            yield _confined("kubelet-confined", name, line)
        if facts.restarts_kubelet:
            yield from _check_missing("kubelet-confined", name, texts, facts.probe)


def _check_missing(code: str, unit: str, texts: Iterable[UnitText], probe: Probe) -> Iterable[Finding]:
    """A path that was there when the unit started last, or that a later drop-in names."""
    for path, line in needed_paths(texts):
        if path in probe.missing:
            yield refusal(
                code,
                f"{line.path} sets {line.key}={line.value}: {path} does not exist, so {unit} would not start",
                "create it, or remove that line",
            )


def _confined(code: str, unit: str, line: Assignment) -> Finding:
    return refusal(
        code,
        f"{line.path} sets {line.key}={line.value}: {unit} would not reach the proxy and what starts it",
        "remove that line, or exclude this node (nodeSelector of the DaemonSet)",
    )
