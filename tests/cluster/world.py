"""A whole cluster of real programs: a control plane, and kubelets with their containerd on throwaway hosts.

What an operator would do is done with kubectl and with the program's own commands; what is true is asked of
the hosts' systemd and of /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from installer.model.names import READY_CONDITION, STATUS
from tests.host.node import PROXY
from tests.image.container import import_archive
from tests.image.images import image
from tests.lib.extras import EXTENSION
from tests.lib.throwaway.containers import ctr, import_image
from tests.lib.throwaway.controlplane import ControlPlane
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, lay_kubelet, on_relay, wait_healthy
from tests.lib.throwaway.network import PODS, Network, address
from tests.lib.throwaway.real_kubelet import LENIENT
from tests.lib.throwaway.snapshot import difference, snapshot
from tests.lib.tree import tree

NAMESPACE, NAME = "kube-system", "cri-resmgr-installer"
OLD, NEW, BROKEN = "v0.9.2", "v0.9.3", "v0.9.4"
NONE = "policy:\n  Active: none\n"
RELAY = "unix:///var/run/cri-resmgr/cri-resmgr.sock"

COMMAND_SECONDS = 900.0  # one of ours may wait for each node in its turn
SECONDS = 240.0  # for anything, on a machine that has much else to do: what holds sooner ends the wait sooner
_OF_PODS = ("/var/log/pods/", "/var/log/containers/", "/var/lib/cni")
_IDLE = 'labels."io.kubernetes.container.name"~=^idle-'
_PACKAGES = ("containernetworking-plugins", "etcd-server")
_TOP = Path(__file__).parents[2]

Object = dict[str, Any]
T = TypeVar("T")


def system() -> Path:
    """That of a throwaway host, with what pods need of a network, and with etcd."""
    return tree(more=_PACKAGES)


class KubeNode:
    """One node: its host, and what its API object says of it."""

    def __init__(self, number: int, host: ThrowawayHost) -> None:
        self.number, self.host, self.name = number, host, f"worker-{number + 1}"

    def lay(self, kubeconfig: str, authority: str) -> None:
        """Its kubelet, joined to the control plane, and the network of its pods. The host is off."""
        lay_kubelet(self.host, "kubeadm-136")
        disk = self.host.disk
        write(disk / "etc/kubernetes/kubelet.conf", kubeconfig, 0o600)
        write(disk / "etc/kubernetes/pki/ca.crt", authority)
        write(
            disk / "etc/default/kubelet",
            f'KUBELET_EXTRA_ARGS="--hostname-override={self.name} --node-ip={address(self.number)}"\n',
        )
        write(disk / "var/lib/kubelet/config.yaml", yaml.safe_dump(_kubelet_configuration()))
        write(disk / "etc/cni/net.d/10-pods.conflist", json.dumps(_pod_network(self.number)))
        place = disk / "opt/cni/bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to("/usr/lib/cni")

    def on_relay(self) -> bool | None:
        """Whether kubelet runs and uses the relay. None: its host is off."""
        try:
            return on_relay(self.host)
        except (HostError, OSError, ValueError):
            return False if self.is_on() else None

    def is_on(self) -> bool:
        try:
            return bool(self.host.leader)
        except HostError:
            return False

    def journal(self) -> str:
        """What its kubelet has said last."""
        try:
            return self.host.journal(UNIT)[-1500:]
        except HostError as error:
            return str(error)

    def invocations(self) -> tuple[str, str]:
        """Which start of kubelet and of the proxy runs now."""
        kubelet, proxy = (self.host.show(unit, "InvocationID") for unit in (UNIT, PROXY))
        return kubelet, proxy

    def weights(self) -> dict[str, int]:
        """Container ID -> its CPU shares (cgroup v1), of the workload's that run."""
        idle = set(ctr(self.host, "containers", "list", "--quiet", _IDLE).split())
        tasks = [line.split()[:3] for line in ctr(self.host, "tasks", "list").splitlines()[1:]]
        found = {}
        for identity, pid, state in tasks:
            with contextlib.suppress(FileNotFoundError):
                if identity in idle and state == "RUNNING":
                    found[identity] = self._shares(int(pid))
        return found

    def _shares(self, pid: int) -> int:
        """The path is that on the machine, of which the host's cgroups are."""
        lines = (self.host.root / f"proc/{pid}/cgroup").read_text().splitlines()
        (place,) = (line.split(":", 2)[2] for line in lines if "cpu" in line.split(":")[1].split(","))
        return int(Path(f"/sys/fs/cgroup/cpu{place}/cpu.shares").read_text())

    def token(self, pod: Object) -> str:
        """What kubelet has put on the host for one of its pods; empty, as long as it has not."""
        identity = pod["metadata"]["uid"] if pod else "none"
        volumes = self.host.root / f"var/lib/kubelet/pods/{identity}/volumes"
        return "".join(place.read_text() for place in volumes.glob("kubernetes.io~projected/*/token"))

    def remember(self) -> None:
        self._before = snapshot(self.host)

    def traces(self) -> list[str]:
        """What is on the host now and was not when it was remembered, or the other way round; without what
        pods have logged, which kubelet removes in its own time, and what their network has left."""
        wait_healthy(self.host, SECONDS)
        found = difference(self._before, snapshot(self.host))
        return [line for line in found if not line.split()[1].startswith(_OF_PODS)]


class Cluster:
    """`with Cluster(programs, directory, 3, values) as cluster:` all of its nodes are Ready. Each of our
    manifests has these values, beside what is asked of it."""

    def __init__(self, programs: Mapping[str, Path], directory: Path, nodes: int, values: Object) -> None:
        self._programs, self._directory, self._count = programs, directory, nodes
        self._stack = ExitStack()
        self.nodes: list[KubeNode] = []
        self.values = values
        self._images: dict[str, str] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.network = stack.enter_context(Network())
            self.plane = ControlPlane(self._programs, self._directory / "plane", self.network)
            stack.enter_context(self.plane)
            for number in range(self._count):
                host = stack.enter_context(ThrowawayHost(boot=False, image=system()))
                self.nodes.append(KubeNode(number, host))
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._join, self.nodes))
            self.wait(lambda: all(map(self.is_ready, self.nodes)), "all nodes Ready")
            for node in self.nodes:
                node.remember()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _join(self, node: KubeNode) -> None:
        node.lay(self.plane.join(node.name), self.plane.authority.read_text())
        self.boot(node)

    def boot(self, node: KubeNode) -> None:
        """A host that is off."""
        node.host.boot()
        self.network.join(node.host, node.number)
        import_image(node.host)

    # -- an operator --------------------------------------------------------------------------------

    def kubectl(self, *argv: str, stdin: str = "", code: int | None = 0) -> str:
        """Its output. `code` is what it has to exit with; None: whatever."""
        return self._run([str(self._programs["kubectl"]), *argv], stdin, code)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """A kubectl that goes on; the caller ends it."""
        return self.begin(str(self._programs["kubectl"]), *argv)

    def begin(self, *argv: str) -> subprocess.Popen[str]:
        """A program on the network of the cluster that goes on; the caller ends it."""
        return subprocess.Popen(
            [*self.network.prefix, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment(),
        )

    def ours(self, *argv: str, stdin: str = "", code: int | None = 0) -> str:
        """The output of one of the program's commands for a whole cluster."""
        return self._run([sys.executable, "-m", "installer.cli", *argv], stdin, code)

    def python(self, program: str, *argv: str) -> str:
        """The output of a program of the test's, on the network of the cluster; its first argument is the
        kubeconfig."""
        kubeconfig = str(self.plane.kubeconfig("admin"))
        return self._run([sys.executable, "-c", program, kubeconfig, *argv], "", 0)

    def _run(self, argv: Sequence[str], stdin: str, code: int | None) -> str:
        done = subprocess.run(
            [*self.network.prefix, *argv],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
            cwd=_TOP,
            env=self._environment(),
        )
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"{' '.join(argv)}: {done.returncode}\n{said}"
        return said if code != 0 else done.stdout

    def _environment(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": str(self.plane.kubeconfig("admin")), "PYTHONPATH": str(EXTENSION)}

    def get(self, kind: str, name: str = "", namespace: str = "") -> Object:
        words = [*([name] if name else []), *(["--namespace", namespace] if namespace else [])]
        found: Object = json.loads(self.kubectl("get", kind, *words, "--output=json"))
        return found

    @property
    def namespace(self) -> str:
        """That of the installer."""
        return str(self.values.get("namespace", NAMESPACE))

    @property
    def account(self) -> str:
        """Who our pods are, for the API server."""
        return f"system:serviceaccount:{self.namespace}:{NAME}"

    def manifests(self, version: str = OLD, fallback: str = NONE, *options: str) -> str:
        """What an operator would apply. The version BROKEN ends soon after each start."""
        values = {"images": {"installer": self.image(version)}, "configs": {"fallback": fallback}}
        return self.ours(
            "manifests", "--values=/dev/stdin", *options, stdin=json.dumps({**self.values, **values})
        )

    def apply(self, manifests: str) -> str:
        return self.kubectl("apply", "--filename=-", stdin=manifests)

    def image(self, version: str) -> str:
        """The name of the image with this payload, which all nodes have from then on."""
        if version not in self._images:
            archive = image(version, **({"exitAfterSeconds": 0.3} if version == BROKEN else {}))
            names = {import_archive(node.host, archive) for node in self.nodes}
            (self._images[version],) = names
        return self._images[version]

    # -- reports --------------------------------------------------------------------------------------

    def node(self, node: KubeNode) -> Object:
        """Without anything in it, if there is none of its name."""
        answer = self.plane.admin.call("GET", f"/api/v1/nodes/{node.name}")
        return answer.body if answer.ok else {"metadata": {"labels": {}}}

    def condition(self, node: KubeNode, kind: str = READY_CONDITION) -> Object:
        """Empty, if its Node has none of the kind."""
        found = self.node(node).get("status", {}).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def is_ready(self, node: KubeNode) -> bool:
        return self.condition(node, "Ready").get("status") == "True"

    def word(self, node: KubeNode) -> Object:
        """What our annotation of its Node says."""
        text = self.node(node)["metadata"].get("annotations", {}).get(STATUS, "{}")
        found: Object = json.loads(text)
        return found

    def requests(self) -> list[Object]:
        """Of our pods, as the API server has logged them."""
        lines = self.plane.audit.read_text().rpartition("\n")[0].splitlines()
        return [each for each in map(json.loads, lines) if each["user"].get("username") == self.account]

    def denied(self) -> list[str]:
        """What our pods have asked for and did not get."""
        return [
            f"{each['verb']} {each['requestURI']}: {each['responseStatus'].get('message', '')}"
            for each in self.requests()
            if each["responseStatus"]["code"] in (401, 403, 422)
        ]

    def pods(self, name: str = NAME) -> list[Object]:
        """Of the installer, or of another DaemonSet beside it."""
        found: list[Object] = self.get("pods", namespace=self.namespace)["items"]
        return [each for each in found if each["metadata"]["name"].startswith(name)]

    def pod(self, node: KubeNode, name: str = NAME) -> Object:
        """The one on this node that is not to end; empty, if there is none."""
        found = (each for each in self.pods(name) if each["spec"].get("nodeName") == node.name)
        return next((each for each in found if "deletionTimestamp" not in each["metadata"]), {})

    def wait(self, true: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
        """What it is when it is true."""
        deadline = time.monotonic() + seconds
        while not (found := true()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.story()}"
            time.sleep(0.3)
        return found

    def story(self) -> str:
        """For whoever has to find out why it did not come."""
        listed = self.kubectl("get", "nodes,pods", "--all-namespaces", "--output=wide", code=None)
        logs = [
            self.kubectl(
                "logs", "--namespace", self.namespace, each["metadata"]["name"], "--tail=15", code=None
            )
            for each in self.pods()
        ]
        kubelets = [node.journal() for node in self.nodes]
        return "\n".join((listed, *logs, *kubelets))


def _kubelet_configuration() -> Object:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "resolvConf": "",
        "evictionHard": {"memory.available": "100Mi"},  # the disk is the machine's
        "imageGCHighThresholdPercent": 100,
        **LENIENT,
    }


def _pod_network(number: int) -> Object:
    ranges = [[{"subnet": PODS.format(number)}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [{"type": "ptp", "ipam": ipam}]
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
