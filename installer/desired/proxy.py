"""The proxy's part of the desired state: binary, guard, unit, EnvironmentFile, configurations."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from installer.assets import unit_text
from installer.header import digest_of, started_from, with_generation, with_header
from installer.inputs.configs import DEFAULT_FALLBACK
from installer.model import paths
from installer.model.resource import DesiredFile, Part
from installer.model.state import DesiredUnit
from installer.render import fill
from installer.systemd_syntax.environment_file import quote

if TYPE_CHECKING:
    from installer.inputs.configs import Configs
    from installer.inputs.payload import Payload
    from installer.inputs.settings import Settings

_NO_EXTRA_OPTIONS = '# None were given: an EXTRA_OPTIONS.cfg of others has no effect.\nEXTRA_OPTIONS=""'


def proxy_resources(
    settings: Settings, configs: Configs, payload: Payload, endpoint: str
) -> tuple[tuple[DesiredFile, ...], DesiredUnit]:
    """The proxy's files in the order of writing, and its unit.

    The generation covers what a running proxy was started from. Of a force.cfg
    only that it is there and its policy: the rest is re-read on SIGHUP.
    """
    fallback = DEFAULT_FALLBACK if configs.fallback is None else configs.fallback
    unit, unit_digest = with_header(_unit(settings))
    environment = _environment(settings, configs, endpoint)
    if configs.force is None:
        configuration = digest_of("fallback", fallback)
    else:  # fallback.cfg is not read then
        configuration = digest_of("force", configs.policy)
    generation = digest_of(
        started_from(unit),
        started_from(environment),
        payload.binary.digest,
        configuration,
        configs.extra_options or "",
    )
    carrier = with_generation(with_header(environment)[0], generation)
    files = [
        DesiredFile(paths.BINARY, payload.binary, 0o755, Part.PROXY, payload.binary.digest),
        _file(paths.GUARD, with_header(unit_text("cri-resmgr-kubelet-guard").encode())[0], 0o755),
        _file(paths.FALLBACK_CONFIG, with_header(fallback)[0]),
    ]
    reload_digest = ""
    if configs.force is not None:
        force = _file(paths.FORCE_CONFIG, with_header(configs.force)[0])
        reload_digest = force.digest
        files.append(force)
    if configs.extra_options is not None:
        files.append(_file(paths.EXTRA_OPTIONS, with_header(configs.extra_options.encode())[0]))
    files += [_file(paths.PROXY_UNIT_FILE, unit), _file(paths.PROXY_ENVIRONMENT, carrier, carrier=True)]
    desired = DesiredUnit(paths.PROXY_UNIT, paths.PROXY_UNIT_FILE, unit_digest, generation, reload_digest)
    return tuple(files), desired


def _unit(settings: Settings) -> bytes:
    """The unit, its header and digest still to be filled in.

    A start, and any job that kubelet's start may wait for, ends before kubelet's budget does; but always 2 s
    after the guard's part, which is two thirds: a slow machine is not a hanging guard.
    """
    budget = settings.kubelet.guard_seconds
    milliseconds = max(budget * 5_000 // 6, budget * 2_000 // 3 + 2_000)
    return fill("cri-resource-manager.service.in", start_timeout=f"{milliseconds}ms").encode()


def _environment(settings: Settings, configs: Configs, endpoint: str) -> bytes:
    """The EnvironmentFile, its generation still empty."""
    forced = configs.force is not None
    config_flag = "--force-config" if forced else "--fallback-config"
    # Normalised: another spelling of the same socket in kubelet's files restarts nothing.
    runtime = paths.normalise_endpoint(endpoint)
    return fill(
        "cri-resource-manager.env.in",
        config_options=quote(f"{config_flag} {paths.FORCE_CONFIG if forced else paths.FALLBACK_CONFIG}"),
        runtime_options=quote(f"--runtime-socket={runtime} --image-socket={runtime}"),
        agent_options=quote(_agent_options(settings)),
        extra_options=_NO_EXTRA_OPTIONS if configs.extra_options is None else "",
        guard_seconds=settings.kubelet.guard_seconds,
    ).encode()


def _agent_options(settings: Settings) -> str:
    """Empty for cri-resmgr's defaults, which are beside the relay."""
    if settings.proxy.agent == "disabled":
        return "--agent-socket=disabled"
    if settings.proxy.agent_sockets == "own":
        return f"--agent-socket={paths.AGENT_SOCKET} --config-socket={paths.CONFIG_SOCKET}"
    return ""


def _file(path: str, content: bytes, mode: int = 0o644, *, carrier: bool = False) -> DesiredFile:
    return DesiredFile(path, content, mode, Part.PROXY, sha256(content).hexdigest(), carrier)
