"""A real control plane, for whoever has its programs: etcd, kube-apiserver and kube-controller-manager, each
a process of this machine that listens on 127.0.0.1, with certificates of its own. No node, no kubelet, no
scheduler: what an API server and the controllers beside it do with objects, and for whom.

`--kubernetes DIR` names the directory of the programs, as an unpacked release of Kubernetes for servers has
them; etcd is there, too, or on the path.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.error import HTTPError, URLError

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "etcd")
_SECONDS = 300.0  # until it serves, on a machine that has much else to do
_CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "validatingadmissionpolicy-status-controller",
)

Object = dict[str, Any]


def find_programs(directory: Path) -> dict[str, Path]:
    """By their names. Raises ValueError, in words for whoever has named the directory."""
    found = {name: directory / name for name in PROGRAMS if (directory / name).is_file()}
    if "etcd" not in found and (etcd := shutil.which("etcd")):
        found["etcd"] = Path(etcd)
    if missing := [name for name in PROGRAMS if name not in found]:
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
    """Who asks an API server: by a token, or by the certificate that is in `context`."""

    def __init__(self, url: str, context: ssl.SSLContext, token: str = "") -> None:
        self._url, self._context, self._token = url, context, token

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str = "") -> Answer:
        """`kind` is that of a patch: merge (the default), strategic-merge, json or apply."""
        content = {"apply": "apply-patch+yaml"}.get(kind, f"{kind or 'merge'}-patch+json")
        headers = {"Content-Type": f"application/{content if method == 'PATCH' else 'json'}"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._context) as reply:
                return Answer(reply.status, _parsed(reply.read()))
        except HTTPError as error:
            with error:
                return Answer(error.code, _parsed(error.read()))


def _parsed(raw: bytes) -> Object:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": raw.decode("utf-8", "replace")}


class ControlPlane:
    """`with ControlPlane(find_programs(where), directory) as plane:` serves at `plane.url`; `plane.admin` may
    do everything. The directory is its own: certificates, the data of etcd, and a log of each program."""

    def __init__(self, programs: Mapping[str, Path], directory: Path) -> None:
        self._programs, self._directory = programs, directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._etcd, self._peer, self.port, self._manager = _free_ports(4)
        self.url = f"https://127.0.0.1:{self.port}"
        self.authority = directory / "ca.crt"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._issue_certificates()
        try:
            self._start_etcd()
            self._start_apiserver()
            self._wait("/readyz")
            self._start_manager()
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
        return Caller(self.url, context)

    @property
    def kubeconfig(self) -> Path:
        """Of `admin`."""
        return self._kubeconfig("admin")

    def bearer(self, token: str) -> Caller:
        return Caller(self.url, ssl.create_default_context(cafile=str(self.authority)), token)

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

        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        people = {
            "apiserver": ("kube-apiserver", None),
            "admin": ("kubernetes-admin", "system:masters"),
            "manager": ("system:kube-controller-manager", None),
            "accounts": ("service-accounts", None),
        }
        for name, (person, group) in people.items():
            issued = authority.issue_cert(
                "127.0.0.1", "localhost", common_name=person, organization_name=group
            )
            issued.cert_chain_pems[0].write_to_path(str(self._directory / f"{name}.crt"))
            issued.private_key_pem.write_to_path(str(self._directory / f"{name}.key"))

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
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            f"--cert-dir={self._directory}",
            *self._pair("tls-cert-file", "tls-private-key-file", "apiserver"),
            f"--client-ca-file={self.authority}",
            "--service-account-issuer=https://kubernetes.default.svc",
            *self._pair("service-account-key-file", "service-account-signing-key-file", "accounts"),
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
        )

    def _start_manager(self) -> None:
        kubeconfig = self._kubeconfig("manager")
        self._start(
            "kube-controller-manager",
            *(f"--{use}kubeconfig={kubeconfig}" for use in ("", "authentication-", "authorization-")),
            "--bind-address=127.0.0.1",
            f"--secure-port={self._manager}",
            f"--cert-dir={self._directory / 'manager'}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--root-ca-file={self.authority}",
            f"--service-account-private-key-file={self._directory / 'accounts.key'}",
            f"--controllers={','.join(_CONTROLLERS)}",
        )

    def _pair(self, certificate: str, key: str, name: str) -> tuple[str, str]:
        return f"--{certificate}={self._directory / name}.crt", f"--{key}={self._directory / name}.key"

    def _kubeconfig(self, name: str) -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        parts = {"client-certificate": "crt", "client-key": "key"}
        user = {part: str(self._directory / f"{name}.{end}") for part, end in parts.items()}
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

    def _start(self, name: str, *arguments: str) -> None:
        """It ends with this process, however that dies."""
        argv: Sequence[str] = ("setpriv", "--pdeathsig", "KILL", "--", str(self._programs[name]), *arguments)
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


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]
