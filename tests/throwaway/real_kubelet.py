"""What a real kubelet needs of a throwaway host, beside a binary.

It runs with no API server: the kubeconfig that its flags name leads nowhere, and while kubelet has not heard
of its pods there, it leaves alone whatever containers it finds.
"""

import base64
import functools
import json
import re
from pathlib import Path

import trustme

from tests.throwaway.furnish import write

#: Of this kernel, and of a host whose cgroups are those of its machine, a real kubelet would complain.
LENIENT = {"failSwapOn": False, "failCgroupV1": False, "cgroupDriver": "cgroupfs"}

#: A shared root, which it mounts volumes in, and the kernel's log, which nspawn leaves out.
_NODE = """\
[Unit]
Description=What kubelet expects of a node
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mount --make-rshared /
ExecStart=/bin/sh -c 'test -e /dev/kmsg || ln -s /dev/null /dev/kmsg'

[Install]
WantedBy=multi-user.target
"""

_CONFIG = re.compile(r"--config[= ](\S+?)[\"'\s\\]")
_KUBECONFIG = re.compile(r"--kubeconfig[= ](\S+?)[\"'\s\\]")


def furnish(root: Path, flavour: Path) -> None:
    """Makes the node below `root`, on which the files of `flavour` are laid, fit for a real kubelet."""
    unit = "kubelet-needs.service"
    write(root / "etc/systemd/system" / unit, _NODE)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
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
