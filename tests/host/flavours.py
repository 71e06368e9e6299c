"""How each kubelet is served, and where somebody else edits what it is started with."""

from dataclasses import dataclass

UNIT_FILE = "/etc/systemd/system/kubelet.service"
NEW_FLAG = "--max-pods=57"


@dataclass(frozen=True, slots=True)
class Flavour:
    """How a flavour is served, and where somebody else sets its flags.

    `flags` is the file, `old` what stands in it (empty: it is created, or rewritten), `new` what
    takes its place; NEW_FLAG is in it.
    """

    strategy: str
    variable: str
    flags: str
    old: str
    new: str


EXTRA_ARGS = "/etc/default/kubelet"


def _environment(variable: str, flags: str, old: str, new: str = NEW_FLAG) -> Flavour:
    return Flavour("environment", variable, flags, old, new)


def _exec_start(old: str, new: str, flags: str = UNIT_FILE) -> Flavour:
    return Flavour("exec-start", "CRI_RESMGR_KUBELET_ARGS", flags, old, new)


_GARDENERS = ("KUBELET_EXTRA_ARGS", "/var/lib/kubelet/extra_args")
_SET = f"KUBELET_EXTRA_ARGS={NEW_FLAG}"
KUBELETS = {
    "aks": _environment("KUBELET_FLAGS", EXTRA_ARGS, "--cloud-provider=external"),
    "config-dir": _exec_start("--v=2", f"--v=2 {NEW_FLAG}"),
    "crio": _exec_start("--runtime-cgroups", f"{NEW_FLAG} --runtime-cgroups"),
    "eks-al2023": _environment(
        "NODEADM_KUBELET_ARGS", "/etc/eks/kubelet/environment", "--cloud-provider=external"
    ),
    "gardener-set": _environment(*_GARDENERS, "--node-ip=10.250.0.7"),
    "gardener-unset": _environment(*_GARDENERS, "", f'KUBELET_EXTRA_ARGS="{NEW_FLAG}"\n'),
    "kind": _environment(
        "KUBELET_KUBEADM_ARGS", "/var/lib/kubelet/kubeadm-flags.env", "--node-ip=172.18.0.2"
    ),
    "kubeadm": _environment("KUBELET_EXTRA_ARGS", EXTRA_ARGS, "KUBELET_EXTRA_ARGS=", _SET),
    "kubeadm-136": _environment("KUBELET_EXTRA_ARGS", EXTRA_ARGS, "", f"{_SET}\n"),
    "launchers": _exec_start("--v=2", f"--v=2 {NEW_FLAG}"),
    "plain-absent": _exec_start("--v=2", f"--v=2 {NEW_FLAG}"),
    "plain-one-word": _exec_start("--v=2", NEW_FLAG),
    "plain-two-words": _exec_start("--v=2", f"{NEW_FLAG} --v=4"),
    "quoted": _exec_start("--unit=%n", f"--unit=%n {NEW_FLAG}"),
    "script": _exec_start("pool=one", f"pool=one {NEW_FLAG}", "/opt/node/kubelet.service"),
    "shell-command": _environment("KUBELET_EXTRA_ARGS", "/etc/kubernetes/kubelet.env", "--node-ip=10.0.0.7"),
}
