"""Which policy cri-resmgr has activated or would activate, and whose configuration says so. Pure.

cri-resmgr takes one configuration whole, the first that there is: force.cfg, the agent's (kept in its cache),
fallback.cfg, built-in defaults. It activates a policy when it starts, and no later.
"""

from __future__ import annotations

from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.configs import pins_in, policy_in
from installer.inputs.yaml_document import parse_document
from installer.model import paths
from installer.model.host import ABSENT, HostSnapshot
from installer.model.plan import Desired
from installer.model.proxy import PolicyInForce, PolicySource, ProxyCache


def policy_in_force(snapshot: HostSnapshot) -> PolicyInForce | None:
    """What the running proxy has activated; None while none runs.

    Its command line says which file it uses, its cache which policy it activated and whether the agent has
    sent a configuration, which an agent's next start would fetch again.
    """
    process = snapshot.proxy.process
    if process is None:
        return None
    forced, fallback = process.flag("--force-config"), process.flag("--fallback-config")
    cache = snapshot.cache
    if forced == paths.SPARING_CONFIG:
        return PolicyInForce("none", PolicySource.GUARD)
    if forced:
        source, configured = PolicySource.FORCE, _file_policy(snapshot, paths.FORCE_CONFIG)
    elif cache.agent:
        source, configured = PolicySource.AGENT, agent_policy(cache)
    elif fallback:
        source, configured = PolicySource.FALLBACK, _file_policy(snapshot, paths.FALLBACK_CONFIG)
    else:
        source, configured = PolicySource.BUILT_IN, "none"
    active = cache.policy or configured
    return PolicyInForce(active, source, configured if configured != active else "")


def policy_of(desired: Desired, cache: ProxyCache) -> PolicyInForce:
    """What a start with these files would activate."""
    files = {file.path: file.content for file in desired.files if isinstance(file.content, bytes)}
    forced = files.get(paths.FORCE_CONFIG)
    if forced is None and cache.agent:
        source, data = PolicySource.AGENT, _agents_sections(cache)
    elif forced is None:
        source, data = PolicySource.FALLBACK, _data_in(files.get(paths.FALLBACK_CONFIG, b""))
    else:
        source, data = PolicySource.FORCE, _data_in(forced)
    return PolicyInForce(policy_in(data), source, pins=pins_in(data))


def agent_policy(cache: ProxyCache) -> str:
    """The policy of the configuration that the agent has sent."""
    return policy_in(_agents_sections(cache))


def _agents_sections(cache: ProxyCache) -> dict[str, object]:
    return {name: _data_in(text.encode("utf-8", "replace")) for name, text in cache.agent.items()}


def _file_policy(snapshot: HostSnapshot, path: str) -> str:
    return policy_in(_data_in(snapshot.files.get(path, ABSENT).content or b""))


def _data_in(content: bytes) -> Any:
    """What a text says; None if it cannot be read."""
    try:
        return parse_document(content, "").data
    except InvalidInputError:
        return None
