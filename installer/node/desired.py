"""What should be on the host: a pure function of settings, payload, configs and facts of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from installer.inputs.systemd_syntax import quote
from installer.model import paths
from installer.model.host import DesiredFile, Part, UnitDetail
from installer.model.names import Mode
from installer.model.plan import Desired, DesiredKubelet, DesiredUnit, Strategy
from installer.model.proxy import DEFAULT_FALLBACK
from installer.node.header import digest_of, started_from, with_generation, with_header
from installer.node.kubelet_strategy import Choice, KubeletAnalysis, in_directory
from installer.rendering import fill, unit_text

if TYPE_CHECKING:
    from installer.inputs.configs import Configs
    from installer.inputs.load import Inputs
    from installer.inputs.payload import Payload
    from installer.inputs.settings import Settings


_START_RESERVE = 2  # seconds of kubelet's own TimeoutStartSec that the guard leaves
_MICROSECONDS = 1_000_000


def desired_kubelet(
    settings: Settings, detail: UnitDetail, choice: Choice, base: str
) -> tuple[tuple[DesiredFile, ...], DesiredKubelet]:
    """Kubelet's files in the order of writing, and kubelet as it should be. `base`: its base endpoint.

    The generation covers our lines, the variable and the flag. It leaves out the guard script, its deadline
    and the base endpoint, which matter only at the next start: nothing is the mildest sufficient action.
    """
    drop_in, unit_digest = with_header(
        fill(
            "kubelet-drop-in.conf.in",
            proxy_unit=paths.PROXY_UNIT,
            guard=paths.GUARD,
            static_file=paths.KUBELET_ENVIRONMENT,
            composed_file=paths.KUBELET_COMPOSED,
            exec_start=_exec_start(choice),
        ).encode("utf-8", "surrogateescape")
    )
    flag = f"--container-runtime-endpoint=unix://{paths.endpoint_link(base)}"
    generation = digest_of(unit_digest, choice.variable, flag)
    environment = fill(
        "kubelet.env.in",
        variable=choice.variable,
        flag=quote(flag),
        base=quote(paths.normalise_endpoint(base)),
        guard_seconds=guard_seconds(settings, detail),
    )
    carrier = with_generation(with_header(environment.encode())[0], generation)
    path = paths.drop_in(settings.kubelet.drop_in_directory, settings.kubelet.unit)
    files = (
        DesiredFile.of(path, drop_in, part=Part.KUBELET),
        DesiredFile.of(paths.KUBELET_ENVIRONMENT, carrier, part=Part.KUBELET, carrier=True),
    )
    desired = DesiredKubelet(
        DesiredUnit(settings.kubelet.unit, path, unit_digest, generation),
        choice.strategy,
        choice.why,
        choice.variable,
        (paths.KUBELET_ENVIRONMENT, paths.KUBELET_COMPOSED),
        choice.passed_on,
    )
    return files, desired


def _exec_start(choice: Choice) -> str:
    """The lines that repeat the base's command line with our variable; empty if the base already has one."""
    return f"ExecStart=\nExecStart={choice.exec_start} ${choice.variable}" if choice.exec_start else ""


def guard_seconds(settings: Settings, detail: UnitDetail) -> int:
    """The guard's deadline, below kubelet's own start timeout, at which systemd would fail the unit."""
    wanted = int(settings.kubelet.guard_seconds)
    if detail.timeout_start_usec == 0:
        return wanted
    return max(1, min(wanted, detail.timeout_start_usec // _MICROSECONDS - _START_RESERVE))


_NO_EXTRA_OPTIONS = '# None were given.\nEXTRA_OPTIONS=""'


def desired_proxy(
    settings: Settings, configs: Configs, payload: Payload, endpoint: str
) -> tuple[tuple[DesiredFile, ...], DesiredUnit]:
    """The proxy's files in the order of writing, and its unit.

    The generation covers what a running proxy was started from. Of a force.cfg it covers only its existence
    and its policy: SIGHUP makes the proxy re-read the rest.
    """
    fallback = DEFAULT_FALLBACK if configs.fallback is None else configs.fallback
    unit, unit_digest = with_header(_unit(settings, configs))
    environment = _environment(settings, configs, endpoint)
    if configs.force is None:
        configuration = digest_of("fallback", fallback)
    else:  # with it, fallback.cfg is not read
        configuration = digest_of("force", configs.asked.policy)
    generation = digest_of(
        started_from(unit),
        started_from(environment),
        payload.binary.digest,
        configuration,
        configs.extra_options or "",
    )
    carrier = with_generation(with_header(environment)[0], generation)
    files = [
        payload.binary,
        DesiredFile.of(paths.GUARD, with_header(unit_text("cri-resmgr-kubelet-guard").encode())[0], 0o755),
        DesiredFile.of(paths.FALLBACK_CONFIG, with_header(fallback)[0]),
    ]
    reload_digest = ""
    if configs.force is not None:
        force = DesiredFile.of(paths.FORCE_CONFIG, with_header(configs.force)[0])
        reload_digest = force.digest
        files.append(force)
    if configs.extra_options is not None:
        files.append(DesiredFile.of(paths.EXTRA_OPTIONS, with_header(configs.extra_options.encode())[0]))
    files += [
        DesiredFile.of(paths.PROXY_UNIT_FILE, unit),
        DesiredFile.of(paths.PROXY_ENVIRONMENT, carrier, carrier=True),
    ]
    desired = DesiredUnit(paths.PROXY_UNIT, paths.PROXY_UNIT_FILE, unit_digest, generation, reload_digest)
    return tuple(files), desired


def _unit(settings: Settings, configs: Configs) -> bytes:
    """The unit, with header and digest still to be filled in. It names EXTRA_OPTIONS.cfg only if we write it:
    the file of others could set any variable of the proxy and of the guard.

    Its start, and any job that kubelet's start may wait for, ends within kubelet's budget, but always 2 s
    after the guard's share of two thirds: a slow machine is not a hanging guard.
    """
    budget = settings.kubelet.guard_seconds
    milliseconds = max(budget * 5_000 // 6, budget * 2_000 // 3 + 2_000)
    text = fill("cri-resource-manager.service.in", start_timeout=f"{milliseconds}ms")
    if configs.extra_options is None:
        text = text.replace(f"EnvironmentFile=-{paths.EXTRA_OPTIONS}\n", "")
    return text.encode()


def _environment(settings: Settings, configs: Configs, endpoint: str) -> bytes:
    """The EnvironmentFile, with its generation still empty."""
    forced = configs.force is not None
    config_flag = "--force-config" if forced else "--fallback-config"
    # Normalised, so that another spelling of the same socket in kubelet's files restarts nothing.
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
    """Empty for cri-resmgr's defaults, beside the relay."""
    if settings.proxy.agent == "disabled":
        return "--agent-socket=disabled"
    if settings.proxy.agent_sockets == "own":
        return f"--agent-socket={paths.AGENT_SOCKET} --config-socket={paths.CONFIG_SOCKET}"
    return ""


_NAME_LENGTH = 12  # characters of a name for people
# An example node, for a digest that is the same on all nodes.
_ANY_ENDPOINT = "unix:///run/containerd/containerd.sock"
_ANY_CHOICE = Choice(Strategy.ENVIRONMENT, "KUBELET_EXTRA_ARGS", "")


def fleet_generation(inputs: Inputs) -> str:
    """The name of what a fleet is given, the same on all nodes.

    It is a digest of every file as an example node gets it (payload, configs, guard, unit, drop-in), so that
    an installer that writes other files starts on canaries as well, and of the settings that matter only on
    other kinds of nodes. Defaults are left out, so a new setting makes no new generation. Empty for a
    removal.
    """
    if inputs.payload is None or inputs.request.mode is Mode.REMOVE:
        return ""
    settings = in_directory(inputs.request.settings, paths.USUAL_UNITS)  # it differs between nodes
    proxy_files, _proxy = desired_proxy(settings, inputs.configs, inputs.payload, _ANY_ENDPOINT)
    kubelet_files, _kubelet = desired_kubelet(settings, UnitDetail(), _ANY_CHOICE, _ANY_ENDPOINT)
    digests = (f"{file.path} {file.digest}" for file in (*proxy_files, *kubelet_files))
    return digest_of(*digests, _given(settings))[:_NAME_LENGTH]


def settings_digest(settings: Settings) -> str:
    """What an attempt is made with besides the files that it puts in place."""
    return digest_of(_given(settings))


def _given(settings: Settings) -> str:
    """The settings of proxy, kubelet and configs that are not the default."""
    return settings.model_dump_json(
        include={"proxy": True, "configs": True, "kubelet": True},
        exclude={"kubelet": {"drop_in_directory"}},
        exclude_defaults=True,
    )


def build_desired(
    settings: Settings, configs: Configs, payload: Payload, kubelet: KubeletAnalysis, detail: UnitDetail
) -> Desired:
    """Everything that should be there for `install`; nothing if kubelet cannot be served.

    Files are in the order of writing: what a unit starts comes before the unit.
    """
    endpoint = runtime_endpoint(settings, kubelet)
    if kubelet.refusals or kubelet.choice is None or not endpoint:
        return Desired()
    proxy_files, proxy = desired_proxy(settings, configs, payload, endpoint)
    kubelet_files, wanted = desired_kubelet(settings, detail, kubelet.choice, kubelet.endpoint)
    return Desired((*proxy_files, *kubelet_files), proxy, wanted)


def runtime_endpoint(settings: Settings, kubelet: KubeletAnalysis) -> str:
    """Where the proxy finds the runtime: as the settings say, or kubelet's base endpoint; empty if
    unknown."""
    wanted = settings.proxy.runtime_endpoint
    return kubelet.endpoint if wanted == "auto" else wanted
