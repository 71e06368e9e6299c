"""Hostile unit files, EnvironmentFiles and configurations of kubelet, and values that want to break out.

What is made of them is read again as systemd reads it: it holds exactly what it should, or there is none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from installer.inputs.configs import load_configs, parse_extra_options
from installer.inputs.load import Request, load_inputs
from installer.inputs.settings import Settings, parse_settings
from installer.inputs.systemd_syntax import parse_environment_file, parse_exec, parse_unit, split_words
from installer.model import paths
from installer.model.host import (
    DesiredFile,
    HostSnapshot,
    KubeletBase,
    KubeletSnapshot,
    Machine,
    ProcessState,
    ProxySnapshot,
    UnitDetail,
    UnitState,
    UnitText,
)
from installer.model.names import Mode
from installer.model.plan import Assessment, Strategy
from installer.node.assess import assess
from installer.node.kubelet_command import parse_base
from installer.node.record import Record, RecordStatus
from tests.faults.disks.node import program
from tests.faults.inputs.texts import every_value, hostile_text, spoilt
from tests.faults.inputs.trial import Trial, end_of

_NAME = "kubelet.service"
_UNIT = f"/usr/lib/systemd/system/{_NAME}"
_DROP_IN = f"/etc/systemd/system/{_NAME}.d/10-kubeadm.conf"
_ENVIRONMENT = "/etc/default/kubelet"
_CONFIG = "/var/lib/kubelet/config.yaml"
_UNITS = (
    "[Unit]\nDescription=kubelet\n[Service]\nEnvironment=A=1 'B=x y'\nEnvironmentFile=-/etc/default/kubelet\n"
    "ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml \\\n  --v=2 $A\nRestart=always\n",
    "[Service]\nExecStart=/usr/bin/kubelet\n[Install]\nWantedBy=multi-user.target\n",
)
_DROP_INS = (
    "[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=\n"
    "ExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n",
    "[Service]\nUnsetEnvironment=A\n",
)
_FILES = ('KUBELET_EXTRA_ARGS="--v=2 --container-runtime-endpoint=unix:///run/x.sock"\n', "# x\nA=1\n")
_CONFIGS = (
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\ncpuManagerPolicy: none\n",
)


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The files of a kubelet as bytes, and the words of its command line if it runs."""

    unit: bytes
    drop_in: bytes
    environment: bytes
    config: bytes
    argv: tuple[str, ...]

    def snapshot(self) -> HostSnapshot:
        """A host with this kubelet and nothing of ours."""
        process = ProcessState(1, ("/usr/bin/kubelet", *self.argv), {}) if self.argv else None
        unit = UnitState(_NAME, "loaded", "active", "running", fragment_path=_UNIT, drop_in_paths=(_DROP_IN,))
        texts = ((_UNIT, self.unit), (_DROP_IN, self.drop_in))
        base = KubeletBase(
            UnitDetail(environment_files=((_ENVIRONMENT, True),)),
            tuple(UnitText(path, raw.decode("utf-8", "surrogateescape")) for path, raw in texts),
            UnitText(_CONFIG, self.config.decode("utf-8", "replace")),
            (UnitText("/etc/x.conf", self.config.decode("utf-8", "replace")),),
            {_ENVIRONMENT: (UnitText(_ENVIRONMENT, self.environment.decode("utf-8", "surrogateescape")),)},
        )
        return HostSnapshot(
            ProxySnapshot(UnitState(paths.PROXY_UNIT)),
            KubeletSnapshot(unit, process, healthy=True),
            machine=Machine("x86_64", "0" * 32, "node"),
            base=base,
        )


_PLAIN = Kubelet(_UNITS[0].encode(), b"", b"", b"", ("--v=2",))


def _assess(kubelet: Kubelet, settings: Settings, directory: Path, configs: Path | None = None) -> Assessment:
    request = Request(Mode.INSTALL, settings, _payload(directory), configs)
    inputs = load_inputs(request, Record().known_digest)
    return assess(inputs, kubelet.snapshot(), Record(), RecordStatus.MISSING, "0a1b")


def _check_kubelet(kubelet: Kubelet, directory: Path) -> str:
    found: list[str] = []
    for strategy in ("auto", "exec-start"):
        settings = Settings(kubelet=parse_settings(f"kubelet: {{strategy: {strategy}}}".encode()).kubelet)

        def install(settings: Settings = settings) -> None:
            found.append(_wrong(_assess(kubelet, settings, directory)))

        found.append(end_of(install))
    return next((wrong for wrong in found if wrong), "")


def _payload(directory: Path) -> Path:
    binary = directory / "payload" / paths.BINARY[1:]
    if not binary.exists():
        binary.parent.mkdir(parents=True)
        binary.write_bytes(program("one"))
        binary.chmod(0o755)
    return directory / "payload"


def _wrong(found: Assessment) -> str:
    """What the rendered files say besides what they should."""
    desired = found.plan.desired
    files = {file.path: file for file in desired.files}
    kubelet = desired.kubelet
    if kubelet is None:
        return "" if found.plan.refusals else "neither refused nor served"
    base = found.snapshot.base
    wrong = _wrong_drop_in(files[kubelet.unit.unit_file], kubelet.strategy, kubelet.variable, base)
    ours = _variables(files[paths.KUBELET_ENVIRONMENT])
    endpoint = ours.get("CRI_RESMGR_GUARD_BASE", "")  # kubelet's; the proxy may be given another one
    expected = {
        "CRI_RESMGR_GUARD_VARIABLE": kubelet.variable,
        "CRI_RESMGR_GUARD_FLAG": f"--container-runtime-endpoint=unix://{paths.endpoint_link(endpoint)}",
        "CRI_RESMGR_GUARD_BASE": endpoint,
        "CRI_RESMGR_GUARD_SECONDS": "15",
        "CRI_RESMGR_INSTALLER_GENERATION": kubelet.unit.generation,
    }
    if ours != expected or not endpoint.startswith("/"):
        return f"kubelet.env has {ours}"
    return wrong or _wrong_proxy(files[paths.PROXY_ENVIRONMENT], found.base_endpoint)


def _wrong_drop_in(file: DesiredFile, strategy: Strategy, variable: str, kubelet: KubeletBase) -> str:
    assert isinstance(file.content, bytes)
    lines = parse_unit(UnitText(file.path, file.content.decode("utf-8", "surrogateescape")))
    repeated = 2 if strategy is Strategy.EXEC_START else 0
    keys = [
        "Wants",
        "After",
        "Environment",
        "ExecStartPre",
        "ExecStartPre",
        "ExecStartPost",
        "ExecStopPost",
        "EnvironmentFile",
        "EnvironmentFile",
    ]
    if [line.key for line in lines] != keys + ["ExecStart"] * repeated:
        return f"the drop-in has {lines}"
    if repeated:
        base, again = parse_base(kubelet).commands()[0], parse_exec(lines[-1])
        if (again.prefixes, again.words) != (base.prefixes, (*base.words, f"${variable}")) or lines[-2].value:
            return f"the drop-in runs {again}, the base {base}"
    return ""


def _wrong_proxy(file: DesiredFile, endpoint: str) -> str:
    """The runtime's endpoint is one value in two flags, and nothing else is set."""
    variables = _variables(file)
    names = {"CONFIG_OPTIONS", "RUNTIME_OPTIONS", "AGENT_OPTIONS", "EXTRA_OPTIONS"}
    names |= {"CRI_RESMGR_GUARD_SECONDS", paths.GENERATION_VARIABLE}
    if not names - {"EXTRA_OPTIONS"} <= variables.keys() <= names:
        return f"the proxy's environment has {variables}"
    place = paths.normalise_endpoint(endpoint)
    words = split_words(variables["RUNTIME_OPTIONS"], relaxed=True)
    if words != (f"--runtime-socket={place}", f"--image-socket={place}"):
        return f"the proxy is given {words} for {endpoint!r}"
    return ""


def _variables(file: DesiredFile) -> dict[str, str]:
    assert isinstance(file.content, bytes)
    return parse_environment_file(file.content.decode("utf-8", "surrogateescape"))


def _check_endpoint(text: str, directory: Path) -> str:
    """A setting that goes into an EnvironmentFile, and from there into a command line."""
    found: list[str] = []

    def install() -> None:
        data = {"proxy": {"runtimeEndpoint": f"unix:///run/{text}"}}
        settings = parse_settings(json.dumps(data).encode())
        found.append(_wrong(_assess(_PLAIN, settings, directory)))

    return end_of(install) or next((wrong for wrong in found if wrong), "")


def _check_options(content: bytes, directory: Path) -> str:
    """EXTRA_OPTIONS.cfg gives the words that we have read and checked, and sets nothing else."""
    configs = directory / "configs"
    configs.mkdir(exist_ok=True)
    (configs / "EXTRA_OPTIONS.cfg").write_bytes(content)
    found: list[str] = []

    def install() -> None:
        assessment = _assess(_PLAIN, Settings(), directory, configs)
        desired = assessment.plan.desired
        file = next(file for file in desired.files if file.path == paths.EXTRA_OPTIONS)
        variables = _variables(file)
        options = load_configs(configs).extra_options or ""
        words = split_words(variables.get("EXTRA_OPTIONS", "?"), relaxed=True)
        if variables.keys() != {"EXTRA_OPTIONS"} or words != parse_extra_options(options):
            found.append(f"systemd reads {variables}")
        found.append(_wrong(assessment))

    return end_of(install) or next((wrong for wrong in found if wrong), "")


_OPTIONS = (
    'EXTRA_OPTIONS="--metrics-interval 30s --disable-ui"\n',
    "# a comment\n\nEXTRA_OPTIONS=--disable-ui\n",
)
_lines = hostile_text.map(lambda text: f"EXTRA_OPTIONS=--x {text}\n".encode("utf-8", "surrogatepass"))
_unit_values = hostile_text | st.lists(hostile_text).map(" ".join)

TRIALS = (
    Trial(
        "kubelet's files",
        st.builds(
            Kubelet,
            spoilt(_UNITS, _unit_values),
            st.just(b"") | spoilt(_DROP_INS, _unit_values),
            spoilt(_FILES, hostile_text),
            spoilt(_CONFIGS),
            st.just(())
            | st.lists(st.sampled_from(("--container-runtime-endpoint", "--config")) | hostile_text).map(
                tuple
            ),
        ),
        _check_kubelet,
        [Kubelet(_UNITS[0].encode(), b"", b"", config, ()) for config in every_value(_CONFIGS)],
    ),
    Trial("runtime endpoints", hostile_text, _check_endpoint),
    Trial("EXTRA_OPTIONS.cfg", spoilt(_OPTIONS, hostile_text) | _lines, _check_options),
)
