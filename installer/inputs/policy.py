"""Which policy a configuration asks for, and which one cri-resmgr has activated or would activate. Pure.

cri-resmgr uses one configuration whole, the first that exists: force.cfg, the agent's (kept in its cache),
fallback.cfg, built-in defaults. It activates a policy only when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from installer.errors import InvalidInputError
from installer.inputs.yaml_document import parse_document
from installer.model import paths
from installer.model.controls import Control
from installer.model.host import ABSENT, Content, HostSnapshot
from installer.model.jsontext import mapping_at
from installer.model.plan import Desired
from installer.model.proxy import PolicyInForce, PolicySource, ProxyCache


@dataclass(frozen=True, slots=True)
class Asked:
    """What a configuration asks of the policy."""

    policy: str = "none"  # the one that cri-resmgr would activate
    section: Mapping[str, object] = field(default_factory=dict)  # its part of the configuration
    reserved: str = ""  # CPUs kept for the system (`750m`, `cpuset:0`); may be empty
    available: str = ""  # CPUs that it may use at all; may be empty

    @classmethod
    def of(cls, data: object) -> Asked:
        """From a parsed configuration."""
        policy = mapping_at(unfold(data), "policy")
        active = policy.get("Active")
        name = "none" if active is None else str(active)
        cpus = (_cpus(policy.get(field)) for field in ("ReservedResources", "AvailableResources"))
        return cls(name, mapping_at(unfold(policy), name), *cpus)

    @property
    def pins(self) -> bool:
        """Whether it may pin CPUs."""
        return self.section.get("PinCPU") is not False


NOTHING_ASKED = Asked()

_CONTROLS = {
    "cpu.classes": Control.CPU_FREQUENCY,
    "rdt.partitions": Control.RESCTRL,
    "rdt.classes": Control.RESCTRL,
    "blockio.classes": Control.BLOCK_IO,
}
"""What a configuration sets -> the control that it uses. Go's decoder ignores the case of keys."""


def unfold(data: object) -> dict[str, object]:
    """Turn `policy.Active: x` into `policy: {Active: x}`, as cri-resmgr does."""
    unfolded: dict[str, object] = {}
    for key, value in mapping_at(data).items():
        head, dot, rest = str(key).partition(".")
        new = {rest: value} if dot else value
        old = unfolded.get(head)
        unfolded[head] = {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
    return unfolded


def _cpus(resources: object) -> str:
    """cri-resmgr ignores the case of the resources' keys, and of no others."""
    found = mapping_at(resources).items()
    return next((str(value) for key, value in found if str(key).lower() == "cpu" and value is not None), "")


def policy_in_force(snapshot: HostSnapshot) -> PolicyInForce | None:
    """The policy that the running proxy has activated; None if no proxy runs.

    Its command line tells which file it uses. Its cache tells which policy it activated, and whether the
    agent has sent a configuration, which a next start with an agent would fetch again.
    """
    process = snapshot.proxy.process
    if process is None:
        return None
    cache, configured = snapshot.cache, "none"
    if forced := process.flag("--force-config"):
        if forced == paths.SPARING_CONFIG:
            return PolicyInForce("none", PolicySource.GUARD)
        source, configured = PolicySource.FORCE, _policy_at(paths.FORCE_CONFIG, snapshot)
    elif cache.agent is not None:
        source, configured = PolicySource.AGENT, asked_by_agent(cache).policy
    elif process.flag("--fallback-config"):
        source, configured = PolicySource.FALLBACK, _policy_at(paths.FALLBACK_CONFIG, snapshot)
    else:
        source = PolicySource.BUILT_IN
    active = cache.policy or configured
    return PolicyInForce(active, source, configured if configured != active else "")


def policy_of(desired: Desired, cache: ProxyCache) -> PolicyInForce:
    """The policy that a start with these files would activate."""
    files = {file.path: file.content for file in desired.files if isinstance(file.content, bytes)}
    forced = files.get(paths.FORCE_CONFIG)
    if forced is None and cache.agent is not None:
        source, asked = PolicySource.AGENT, asked_by_agent(cache)
    elif forced is None:
        source, asked = PolicySource.FALLBACK, asked_in(files.get(paths.FALLBACK_CONFIG, b""))
    else:
        source, asked = PolicySource.FORCE, asked_in(forced)
    return PolicyInForce(asked.policy, source, pins=asked.pins)


def asked_by_agent(cache: ProxyCache) -> Asked:
    """What the configuration from the agent asks for."""
    return Asked.of(_sections_of(cache))


def _sections_of(cache: ProxyCache) -> dict[str, object]:
    return {name: _data_in(text.encode("utf-8", "replace")) for name, text in (cache.agent or {}).items()}


def controls_of(contents: Iterable[Content | None], cache: ProxyCache) -> frozenset[Control]:
    """The kernel settings, besides containers' CPUs and memory, that these configurations or the one from the
    agent change. A configuration that is not at hand as bytes, such as a damaged copy, may change all."""
    given = list(filter(None, contents))
    texts = [content for content in given if isinstance(content, bytes)]
    if len(texts) < len(given):
        return frozenset(Control)
    agents = _sections_of(cache)
    keys = {
        f"{section}.{key.lower()}"
        for data in (agents, *map(_data_in, texts))
        for section, content in unfold(data).items()
        for key, value in unfold(content).items()
        if value
    }
    return frozenset(control for key, control in _CONTROLS.items() if key in keys)


def _policy_at(path: str, snapshot: HostSnapshot) -> str:
    return asked_in(snapshot.files.get(path, ABSENT).content or b"").policy


@lru_cache(maxsize=8)
def asked_in(content: bytes) -> Asked:
    """What a file asks for; nothing if it cannot be parsed."""
    return Asked.of(_data_in(content))


def _data_in(content: bytes) -> object:
    """Like kubelet, cri-resmgr reads the first document."""
    try:
        return parse_document(content, "", alone=False).data
    except InvalidInputError:
        return None
