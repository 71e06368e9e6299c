"""Which policy cri-resmgr has activated or would activate, and whose configuration says so. Pure.

cri-resmgr takes one configuration whole, the first that there is: force.cfg, the agent's (kept in its cache),
fallback.cfg, built-in defaults. It activates a policy when it starts, and no later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from installer.errors import InvalidInputError
from installer.inputs.configs import pins_in, policy_in
from installer.inputs.yaml_document import parse_document
from installer.model import paths
from installer.model.host import ABSENT, HostSnapshot
from installer.model.plan import Desired
from installer.model.proxy import PolicyInForce, PolicySource, ProxyCache

if TYPE_CHECKING:
    from installer.inputs.configs import Configs


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


def next_policy(configs: Configs, cache: ProxyCache) -> PolicyInForce:
    """What a start with these configs would activate."""
    if configs.force is not None:
        return PolicyInForce(configs.policy, PolicySource.FORCE, pins=configs.pins)
    if cache.agent:
        sections = _agents_sections(cache)
        return PolicyInForce(policy_in(sections), PolicySource.AGENT, pins=pins_in(sections))
    return PolicyInForce(configs.policy, PolicySource.FALLBACK, pins=configs.pins)


def policy_of(desired: Desired, cache: ProxyCache) -> str:
    """The policy that a start with these files would activate."""
    files = {file.path: file.content for file in desired.files if isinstance(file.content, bytes)}
    forced = files.get(paths.FORCE_CONFIG)
    if forced is None and cache.agent:
        return agent_policy(cache)
    path = paths.FALLBACK_CONFIG if forced is None else paths.FORCE_CONFIG
    return _policy_in_text(files.get(path, b""), path)


def agent_policy(cache: ProxyCache) -> str:
    """The policy of the configuration that the agent has sent."""
    return policy_in(_agents_sections(cache))


def _agents_sections(cache: ProxyCache) -> dict[str, object]:
    sections: dict[str, object] = {}
    for name, text in cache.agent.items():
        try:
            sections[name] = parse_document(text.encode("utf-8", "replace"), name).data
        except InvalidInputError:
            continue
    return sections


def _file_policy(snapshot: HostSnapshot, path: str) -> str:
    return _policy_in_text(snapshot.files.get(path, ABSENT).content or b"", path)


def _policy_in_text(content: bytes, path: str) -> str:
    try:
        return policy_in(parse_document(content, path).data)
    except InvalidInputError:
        return "none"
