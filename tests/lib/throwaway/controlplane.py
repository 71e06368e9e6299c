"""A real control plane, for whoever has its programs: etcd, kube-apiserver and kube-controller-manager, each
a process of this machine that listens on 127.0.0.1, with certificates of its own. No node, no kubelet, no
scheduler: what an API server and the controllers beside it do with objects, and for whom.

In a network of hosts (network.py) it is a whole one: with all controllers and the scheduler, at an address
that the hosts reach.

`--kubernetes DIR` names the directory of the programs, as an unpacked release of Kubernetes for servers has
them; etcd is there, too, or on the path.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.error import HTTPError, URLError

from installer.cluster.kubeapi import USER_AGENT
from tests.lib.throwaway import network as networks
from tests.lib.throwaway.apiserver import inside
from tests.lib.throwaway.network import Network

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "etcd")
#: Of a whole cluster, without etcd.
CLUSTER_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_SECONDS = 300.0  # until it serves, on a machine that has much else to do
_CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "validatingadmissionpolicy-status-controller",
)

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")

Object = dict[str, Any]


def find_programs(directory: Path, names: Iterable[str] = PROGRAMS, etcd: str = "etcd") -> dict[str, Path]:
    """By their names; `etcd` is where that one is, unless it is in the directory or on the path. Raises
    ValueError, in words for whoever has named the directory."""
    found = {name: directory / name for name in names if (directory / name).is_file()}
    if "etcd" not in found and (there := shutil.which("etcd") or shutil.which(etcd)):
        found["etcd"] = Path(there)
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"--kubernetes: {directory} has no {', '.join(missing)}")
    return found


class Answer(NamedTuple):
    code: int
    body: Object

    @property
    def ok(self) -> bool:
        return 200 <= self.code < 300

    @property
    def says(self) -> str:
        """Why it was refused."""
        return str(self.body.get("message", ""))


class Caller:
    """Who asks an API server: by the token of a pod, as our pods ask, or by the certificate in `context`."""

    def __init__(self, url: str, context: ssl.SSLContext, token: str = "", network: str = "") -> None:
        asked = {"Authorization": f"Bearer {token}", "User-Agent": USER_AGENT}
        self._url, self._token = url, asked if token else {}
        self._opener = urllib.request.build_opener(_Https(context, network))

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "",
        accept: str = "application/json",
    ) -> Answer:
        """`kind` is that of a patch: merge (the default), strategic-merge, json or apply."""
        content = {"apply": "apply-patch+yaml"}.get(kind, f"{kind or 'merge'}-patch+json")
        headers = {"Content-Type": f"application/{content if method == 'PATCH' else 'json'}", **self._token}
        headers["Accept"] = accept
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=60) as reply:
                return Answer(reply.status, _parsed(reply.read()))
        except HTTPError as error:
            with error:
                return Answer(error.code, _parsed(error.read()))

    def watch(self, path: str) -> Iterator[Object]:
        """The events from now on, until the server ends it."""
        request = urllib.request.Request(f"{self._url}{path}&watch=true", headers=self._token)
        reply = self._opener.open(request, timeout=60)

        def events() -> Iterator[Object]:
            with reply:
                yield from map(json.loads, reply)

        return events()


class _Https(urllib.request.HTTPSHandler):
    """Connections that begin in a network namespace, if one is named."""

    def __init__(self, context: ssl.SSLContext, network: str) -> None:
        super().__init__(context=context)
        self._made = functools.partial(_Connection, context=context, network=network)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made, request)


class _Connection(http.client.HTTPSConnection):
    def __init__(self, host: str, *, context: ssl.SSLContext, network: str, timeout: float) -> None:
        super().__init__(host, context=context, timeout=timeout)
        self._tls, self._network = context, network

    def connect(self) -> None:
        if not self._network:
            return super().connect()
        place = (self.host, self.port)
        plain = inside(self._network, lambda: socket.create_connection(place, self.timeout))
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        return None


def _parsed(raw: bytes) -> Object:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": raw.decode("utf-8", "replace")}


class ControlPlane:
    """`with ControlPlane(find_programs(where), directory) as plane:` serves at `plane.url`; `plane.admin` may
    do everything. The directory is its own: certificates, the data of etcd, a log of each program, and what
    the API server was asked: `audit`."""

    def __init__(
        self,
        programs: Mapping[str, Path],
        directory: Path,
        network: Network | None = None,
        controllers: Sequence[str] = (),
    ) -> None:
        """`controllers`: beside those that clean up."""
        self._programs, self._directory, self._network = programs, directory, network
        self._controllers = ("*",) if network else (*_CONTROLLERS, *controllers)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._etcd, self._peer, self.port, self._manager = free_ports(4)
        self._address = "127.0.0.1"
        if network:
            self._address, self.port = networks.ADDRESS, 443  # that of the Service `kubernetes`, too
        self.url = f"https://{self._address}:{self.port}"
        self.authority = directory / "ca.crt"
        self.audit = directory / "audit.log"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._issue_certificates()
        try:
            self._start_etcd()
            self._start_apiserver()
            self._wait("/readyz")
            self._start_manager()
            if self._network:
                self._start("kube-scheduler", *self._client("scheduler"), "--leader-elect=false")
            self._wait("/api/v1/namespaces/default/serviceaccounts/default")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """The last one first: each still finds what it depends on."""
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def admin(self) -> Caller:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self._directory / "admin.crt", self._directory / "admin.key")
        return Caller(self.url, context, network=self._namespace)

    def bearer(self, token: str) -> Caller:
        context = ssl.create_default_context(cafile=str(self.authority))
        return Caller(self.url, context, token, self._namespace)

    def forget(self) -> None:
        """What happened until now: watches and lists from before are answered with 410. etcd forgets its
        history, which an API server has it do every five minutes, and the API server what it remembers of
        that, by a restart."""
        etcd = f"http://127.0.0.1:{self._etcd}/v3/kv"
        key = {"key": base64.b64encode(b"/").decode()}
        with urllib.request.urlopen(f"{etcd}/range", json.dumps(key).encode()) as reply:
            revision = json.load(reply)["header"]["revision"]
        urllib.request.urlopen(f"{etcd}/compaction", json.dumps({"revision": revision}).encode()).close()
        at = next(at for at, each in enumerate(self._processes) if "kube-apiserver" in str(each.args))
        self._processes[at].kill()  # asked to end, it waits for every watch
        self._processes.pop(at).wait()
        self._start_apiserver()
        self._processes.insert(at, self._processes.pop())
        self._wait("/readyz")

    def memory(self, program: str) -> float:
        """MiB that this one of its programs has had at most."""
        process = next(each for each in self._processes if program in str(each.args))
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    @property
    def _namespace(self) -> str:
        return self._network.namespace if self._network else ""

    def token_of(self, pod: Mapping[str, Any]) -> str:
        """As kubelet asks for it: bound to the pod, so that it says on which node that is."""
        metadata = pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        account = (
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{pod['spec']['serviceAccountName']}"
        )
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.admin.call("POST", f"{account}/token", asked | {"spec": {"boundObjectRef": bound}})
        assert answer.ok, answer
        return str(answer.body["status"]["token"])

    # -- its programs -----------------------------------------------------------------------------

    def _issue_certificates(self) -> None:
        import trustme  # late: it takes long

        self._issuer = trustme.CA()
        self._issuer.cert_pem.write_to_path(str(self.authority))
        people = {
            "apiserver": ("kube-apiserver", None),
            "admin": ("kubernetes-admin", "system:masters"),
            "manager": ("system:kube-controller-manager", None),
            "scheduler": ("system:kube-scheduler", None),
            "accounts": ("service-accounts", None),
        }
        for name, (person, group) in people.items():
            self._issue(name, person, group)

    def _issue(self, name: str, person: str, group: str | None) -> None:
        names = ("127.0.0.1", "localhost", networks.ADDRESS, networks.SERVICE)
        issued = self._issuer.issue_cert(*names, common_name=person, organization_name=group)
        issued.cert_chain_pems[0].write_to_path(str(self._directory / f"{name}.crt"))
        issued.private_key_pem.write_to_path(str(self._directory / f"{name}.key"))

    def issue_pair(self, directory: Path) -> Path:
        """A certificate of a server of this machine, as a directory has it that is mounted from a Secret."""
        directory.mkdir()
        issued = self._issuer.issue_cert("127.0.0.1", "localhost")
        issued.cert_chain_pems[0].write_to_path(str(directory / "tls.crt"))
        issued.private_key_pem.write_to_path(str(directory / "tls.key"))
        return directory

    def join(self, node: str) -> str:
        """The kubeconfig of a node's kubelet."""
        self._issue(node, f"system:node:{node}", "system:nodes")
        return self.kubeconfig(node).read_text()

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd, self._peer))
        self._start(
            "etcd",
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def _start_apiserver(self) -> None:
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--bind-address={'0.0.0.0' if self._network else self._address}",
            f"--advertise-address={self._address}",
            f"--endpoint-reconciler-type={'lease' if self._network else 'none'}",
            f"--secure-port={self.port}",
            f"--cert-dir={self._directory}",
            f"--audit-log-path={self.audit}",
            f"--audit-policy-file={self._policy()}",
            *self._pair("tls-cert-file", "tls-private-key-file", "apiserver"),
            f"--client-ca-file={self.authority}",
            "--service-account-issuer=https://kubernetes.default.svc",
            *self._pair("service-account-key-file", "service-account-signing-key-file", "accounts"),
            f"--service-cluster-ip-range={networks.SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            *self._pair("kubelet-client-certificate", "kubelet-client-key", "admin"),
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _policy(self) -> Path:
        """Of the audit: who has asked for what, and what the answer was."""
        rules = [{"level": "Metadata", "omitStages": ["RequestReceived"]}]
        path = self._directory / "audit.yaml"
        path.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        return path

    def _client(self, name: str) -> tuple[str, ...]:
        path = self.kubeconfig(name)
        return tuple(f"--{use}kubeconfig={path}" for use in ("", "authentication-", "authorization-"))

    def _start_manager(self) -> None:
        self._start(
            "kube-controller-manager",
            *self._client("manager"),
            "--bind-address=127.0.0.1",
            f"--secure-port={self._manager}",
            f"--cert-dir={self._directory / 'manager'}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--root-ca-file={self.authority}",
            f"--service-account-private-key-file={self._directory / 'accounts.key'}",
            f"--controllers={','.join(self._controllers)}",
        )

    def _pair(self, certificate: str, key: str, name: str) -> tuple[str, str]:
        return f"--{certificate}={self._directory / name}.crt", f"--{key}={self._directory / name}.key"

    def kubeconfig(self, name: str) -> Path:
        """Of `admin`, a program or a node. Everything is in it, so that it may be taken elsewhere."""
        parts = {"client-certificate": f"{name}.crt", "client-key": f"{name}.key"}
        user = {f"{part}-data": self._encoded(file) for part, file in parts.items()}
        cluster = {"server": self.url, "certificate-authority-data": self._encoded("ca.crt")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self._directory / f"{name}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def _encoded(self, file: str) -> str:
        return base64.b64encode((self._directory / file).read_bytes()).decode()

    def _start(self, name: str, *arguments: str) -> None:
        """It ends with this process, however that dies."""
        prefix = self._network.prefix if self._network else ()
        argv: Sequence[str] = (*prefix, *DIES_WITH_US, str(self._programs[name]), *arguments)
        with (self._directory / f"{name}.log").open("wb") as log:
            found = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self._processes.append(found)

    def _wait(self, path: str) -> None:
        """Until it is there. Raises AssertionError with what a program has said last, if one has ended."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            for process in self._processes:
                assert process.poll() is None, self._said()
            with contextlib.suppress(URLError, OSError):
                if self.admin.call("GET", path).ok:
                    return
            time.sleep(0.1)
        raise AssertionError(f"{path} is not served: {self._said()}")

    def _said(self) -> str:
        logs = sorted(self._directory.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text('utf-8', 'replace')[-1000:]}" for log in logs)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]
