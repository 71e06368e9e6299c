"""What a real kubelet needs of a throwaway host, beside a binary.

It runs with no API server: the kubeconfig that its flags name leads nowhere, and while kubelet has not heard
of its pods there, it leaves alone whatever containers it finds.
"""

import base64
import functools
import json
import re
import shlex
from pathlib import Path

import trustme

from tests.lib.throwaway.furnish import write

#: Of this kernel, and of a host whose cgroups are those of its machine, a real kubelet would complain.
LENIENT = {"failSwapOn": False, "failCgroupV1": False, "cgroupDriver": "cgroupfs"}

#: What it would write into the kernel, where nspawn lets it not: a file of the host is seen there,
#: with the value that kubelet wants (pkg/util/sysctl).
_KERNEL = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
_SETTLE = "; ".join(
    f"echo {value} >/run/kubelet-needs.{name.replace('/', '.')} && "
    f"mount --bind /run/kubelet-needs.{name.replace('/', '.')} /proc/sys/{name}"
    for name, value in _KERNEL.items()
)

#: Once, before each kubelet of the host: a shared root, which it mounts volumes in, the kernel's log, which
#: nspawn leaves out, and the kernel's settings.
PREPARE = (
    ("mount", "--make-rshared", "/"),
    ("sh", "-c", f"test -e /dev/kmsg || ln -s /dev/null /dev/kmsg; {_SETTLE}"),
)

_UNIT = "kubelet-needs.service"
_NODE = """\
[Unit]
Description=What kubelet expects of a node
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
"""

_CONFIG = re.compile(r"--config[= ](\S+?)[\"'\s\\]")
_KUBECONFIG = re.compile(r"--kubeconfig[= ](\S+?)[\"'\s\\]")


def furnish(root: Path, flavour: Path) -> None:
    """Makes the node below `root`, on which the files of `flavour` are laid, fit for a real kubelet."""
    lines = "".join(f"ExecStart=/bin/{shlex.join(words)}\n" for words in PREPARE)
    write(root / "etc/systemd/system" / _UNIT, _NODE + lines)
    wants = root / "etc/systemd/system/kubelet.service.wants"  # a host that runs already starts it, too
    wants.mkdir(exist_ok=True)
    (wants / _UNIT).symlink_to(f"/etc/systemd/system/{_UNIT}")
    texts = [path.read_text() for path in flavour.rglob("*") if path.is_file()]
    for path in {found for text in texts for found in _KUBECONFIG.findall(text)}:
        write(root / path.lstrip("/"), kubeconfig(), 0o600)
    for path in {found for text in texts for found in _CONFIG.findall(text)}:
        make_lenient(root / path.lstrip("/"))


def make_lenient(config: Path) -> None:
    """Adds to a KubeletConfiguration, YAML or JSON, what a throwaway host needs."""
    text = config.read_text()
    if text.lstrip().startswith("{"):
        config.write_text(json.dumps({**json.loads(text), **LENIENT}))
        return
    kept = [line for line in text.splitlines() if line.partition(":")[0] not in LENIENT]
    kept += [f"{key}: {json.dumps(value)}" for key, value in LENIENT.items()]
    config.write_text("\n".join(kept) + "\n")


@functools.cache
def kubeconfig() -> str:
    """With a client's certificate, so that it does not bootstrap, for an API server that nobody serves."""
    authority = trustme.CA()
    client = authority.issue_cert(common_name="system:node:throwaway", organization_name="system:nodes")

    def data(blob: trustme.Blob) -> str:
        return base64.b64encode(blob.bytes()).decode()

    user = {"client-certificate-data": data(client.cert_chain_pems[0])}
    user["client-key-data"] = data(client.private_key_pem)
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": data(authority.cert_pem)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "none", "cluster": cluster}],
            "users": [{"name": "node", "user": user}],
            "contexts": [{"name": "none", "context": {"cluster": "none", "user": "node"}}],
            "current-context": "none",
        }
    )
