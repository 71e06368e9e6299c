"""How each kubelet is served, and where somebody else edits what it is started with."""

from dataclasses import dataclass

UNIT_FILE = "/etc/systemd/system/kubelet.service"
NEW_FLAG = "--max-pods=57"


@dataclass(frozen=True, slots=True)
class Flavour:
    """How a flavour is served, and where somebody else sets its flags.

    `flags` is the file, `old` what stands in it (empty: it is made, or is written anew), `new` what
    takes its place; NEW_FLAG is in it.
    """

    strategy: str
    variable: str
    flags: str
    old: str
    new: str


EXTRA_ARGS = "/etc/default/kubelet"
OURS = "CRI_RESMGR_KUBELET_ARGS"
KUBELETS = {
    "aks": Flavour("environment", "KUBELET_FLAGS", EXTRA_ARGS, "--cloud-provider=external", NEW_FLAG),
    "config-dir": Flavour("exec-start", OURS, UNIT_FILE, "--v=2", f"--v=2 {NEW_FLAG}"),
    "crio": Flavour("exec-start", OURS, UNIT_FILE, "--runtime-cgroups", f"{NEW_FLAG} --runtime-cgroups"),
    "eks-al2023": Flavour(
        "environment",
        "NODEADM_KUBELET_ARGS",
        "/etc/eks/kubelet/environment",
        "--cloud-provider=external",
        NEW_FLAG,
    ),
    "gardener-set": Flavour(
        "environment", "KUBELET_EXTRA_ARGS", "/var/lib/kubelet/extra_args", "--node-ip=10.250.0.7", NEW_FLAG
    ),
    "gardener-unset": Flavour(
        "environment",
        "KUBELET_EXTRA_ARGS",
        "/var/lib/kubelet/extra_args",
        "",
        f'KUBELET_EXTRA_ARGS="{NEW_FLAG}"\n',
    ),
    "kind": Flavour(
        "environment",
        "KUBELET_KUBEADM_ARGS",
        "/var/lib/kubelet/kubeadm-flags.env",
        "--node-ip=172.18.0.2",
        NEW_FLAG,
    ),
    "kubeadm": Flavour(
        "environment",
        "KUBELET_EXTRA_ARGS",
        EXTRA_ARGS,
        "KUBELET_EXTRA_ARGS=",
        f"KUBELET_EXTRA_ARGS={NEW_FLAG}",
    ),
    "kubeadm-136": Flavour(
        "environment", "KUBELET_EXTRA_ARGS", EXTRA_ARGS, "", f"KUBELET_EXTRA_ARGS={NEW_FLAG}\n"
    ),
    "launchers": Flavour("exec-start", OURS, UNIT_FILE, "--v=2", f"--v=2 {NEW_FLAG}"),
    "plain-absent": Flavour("exec-start", OURS, UNIT_FILE, "--v=2", f"--v=2 {NEW_FLAG}"),
    "plain-one-word": Flavour("exec-start", OURS, UNIT_FILE, "--v=2", f"{NEW_FLAG}"),
    "plain-two-words": Flavour("exec-start", OURS, UNIT_FILE, "--v=2", f"{NEW_FLAG} --v=4"),
    "quoted": Flavour("exec-start", OURS, UNIT_FILE, "--unit=%n", f"--unit=%n {NEW_FLAG}"),
    "script": Flavour("exec-start", OURS, "/opt/node/kubelet.service", "pool=one", f"pool=one {NEW_FLAG}"),
    "shell-command": Flavour(
        "environment", "KUBELET_EXTRA_ARGS", "/etc/kubernetes/kubelet.env", "--node-ip=10.0.0.7", NEW_FLAG
    ),
}
