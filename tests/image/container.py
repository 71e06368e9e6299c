"""Runs a pod of a DaemonSet on a throwaway host as kubelet and containerd would: from its template.

No API server and no CRI: the template's fields become arguments of ctr. What is not understood is
refused, so that a template cannot seem to work because a field was left out.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lib.throwaway.containers import container_pid, ctr
from tests.lib.throwaway.host import HostError, ThrowawayHost

#: Where kubelet would have /var/lib/kubelet/pods; gone with the pod.
PODS = "/run/pods"

#: Where a pod finds the API server's authority and its token.
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

#: What containerd gives a container by default.
USUAL_CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
PROPAGATION = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
END_SECONDS = 60.0

Document = Mapping[str, Any]

# What a template may say; of the rest of a pod kubelet or the scheduler makes use, not the container.
POD_FIELDS = {
    *("containers", "volumes", "hostNetwork", "hostPID", "terminationGracePeriodSeconds"),
    *("affinity", "automountServiceAccountToken", "dnsPolicy", "enableServiceLinks", "nodeSelector"),
    *("priorityClassName", "restartPolicy", "securityContext", "serviceAccountName", "tolerations"),
    "topologySpreadConstraints",
}
CONTAINER_FIELDS = {
    *("name", "image", "command", "args", "env", "volumeMounts", "securityContext", "resources"),
    *("imagePullPolicy", "livenessProbe", "ports", "readinessProbe", "startupProbe"),
    *("terminationMessagePath", "terminationMessagePolicy"),
}
SECURITY_FIELDS = {
    *("privileged", "capabilities", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "runAsUser"),
    *("runAsGroup", "runAsNonRoot", "seccompProfile", "appArmorProfile", "seLinuxOptions"),
}


@dataclass(frozen=True, slots=True)
class Probed:
    """How a command in the container ended. `said` is for people: of a command that ends at once, ctr may
    lose the output."""

    code: int
    said: str


def import_archive(host: ThrowawayHost, archive: Path) -> str:
    """Loads an image archive into the host's runtime and returns the image's name."""
    with archive.open("rb") as stream:
        done = subprocess.run(
            [
                *("nsenter", "--target", str(host.leader), "--all", "--"),
                *("ctr", "--address", host.runtime_socket, "--namespace", "k8s.io", "images", "import", "-"),
            ],
            stdin=stream,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    found = re.search(r"^unpacking (\S+) ", done.stdout, re.MULTILINE)
    if done.returncode != 0 or found is None:
        raise HostError(f"the image was not imported:\n{done.stdout}{done.stderr}")
    return found[1]


def refuse_unknown(what: str, given: Iterable[str], known: set[str]) -> None:
    """Raises ValueError for a field that this would silently leave out."""
    unknown = set(given) - known
    if unknown:
        raise ValueError(f"{what}: not understood here: {', '.join(sorted(unknown))}")


class Pod:
    """One pod with one container, for as long as the `with` block lasts.

    `template` is a pod template as a DaemonSet has it; `objects` are the ConfigMaps that it refers to;
    `account` has the files of its service account, `owner` is the name of the DaemonSet.
    Entering the block starts the container; leaving it kills what is left of it and removes its files.
    """

    def __init__(
        self,
        host: ThrowawayHost,
        template: Document,
        objects: Iterable[Document] = (),
        node: str = "node-1",
        uid: str = "",
        environment: Mapping[str, str] | None = None,
        account: Path | None = None,
        owner: str = "",
    ) -> None:
        self.host = host
        self.spec: Document = template["spec"]
        (self.container,) = self.spec["containers"]
        refuse_unknown("pod", self.spec, POD_FIELDS)
        refuse_unknown("container", self.container, CONTAINER_FIELDS)
        self.uid = uid or str(uuid.uuid4())
        self.name = f"{self.container['name']}-{uuid.uuid4().hex[:8]}"
        self._node, self._owner = node, owner or self.container["name"]
        self._objects = {one["metadata"]["name"]: one for one in objects}
        self._environment = dict(environment or {})
        self._account = account
        self._numbers = itertools.count()
        self._starts = 0
        self.directory = f"{PODS}/{self.name}"

    def __enter__(self) -> Self:
        try:
            self.place.mkdir(parents=True)
            for volume in self.spec.get("volumes", ()):
                self._make_volume(volume)
            if self._account:
                shutil.copytree(self._account, self.place / "account")
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"{self.name} said:\n{self.log()}")
        self.remove()

    @property
    def place(self) -> Path:
        """The pod's directory on the host, as this machine reaches it."""
        return self.host.root / self.directory[1:]

    # -- its life -------------------------------------------------------------------------

    def start(self) -> None:
        """Creates the container and starts it, as kubelet does also after it has ended."""
        command = [*self.container.get("command", ()), *self.container.get("args", ())]
        if "command" not in self.container:
            command = [*self._entrypoint(), *command]
        environment = self._variables()
        command = [_expanded(word, environment) for word in command]
        arguments = ["--detach", "--log-uri", f"file://{self.directory}/{self._next_log()}"]
        arguments += [f"--env={name}={value}" for name, value in environment.items()]
        arguments += [*self._namespaces(), *self._security(), *self._limits(), *self._mounts()]
        ctr(self.host, "run", *arguments, self.container["image"], self.name, *command)

    def _next_log(self) -> str:
        self._starts += 1
        return f"log-{self._starts}"

    def signal(self, name: str) -> None:
        ctr(self.host, "tasks", "kill", "--signal", name, self.name)

    def terminate(self, timeout: float = END_SECONDS) -> int:
        """SIGTERM, as at the end of a pod; returns the exit code. Raises HostError when it goes on."""
        self.signal("SIGTERM")
        return self.wait(timeout)

    def kill(self) -> int:
        """As when memory runs out, or after a grace period."""
        self.signal("SIGKILL")
        return self.wait(END_SECONDS)

    def destroy(self) -> None:
        """As kubelet does with a pod that it no longer admits: SIGTERM, then SIGKILL for all that is in its
        container, which goes with its file system and its volumes."""
        self.signal("SIGTERM")
        ctr(self.host, "tasks", "kill", "--all", "--signal", "SIGKILL", self.name)
        self.wait(END_SECONDS)
        self.remove()

    def wait(self, timeout: float) -> int:
        """Waits for the end of the container and removes it; its log and its volumes stay."""
        self.until(lambda: self.pid is None, timeout, "it goes on")
        done = self._ctr("tasks", "delete", self.name)
        ctr(self.host, "containers", "delete", self.name)
        code = re.search(r"exit with non-zero exit code (\d+)", done.stderr)
        return int(code[1]) if code else 0

    def remove(self) -> None:
        """Ends the container at once, and removes all that there is of it. Nothing there is fine."""
        self._ctr("tasks", "delete", "--force", self.name)
        self._ctr("containers", "delete", self.name)
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """Its first process as the host counts; None when it does not run."""
        return container_pid(self.host, self.name)

    # -- what it says ---------------------------------------------------------------------

    def log(self) -> str:
        """All that its last container has written to standard output and error."""
        try:
            return (self.place / f"log-{self._starts}").read_text(errors="replace")
        except OSError:
            return ""

    def events(self) -> list[dict[str, Any]]:
        """Its log as JSON lines; a line that is none fails the test that reads it. The last one may be at its
        beginning."""
        return [json.loads(line) for line in self.log().rpartition("\n")[0].splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events() if event["kind"] == kind]

    def phase(self) -> str:
        states = self.of("state")
        return str(states[-1]["phase"]) if states else ""

    def execute(self, *argv: str, timeout: float = 120.0, user: int = 0) -> Probed:
        """Runs a command in the container, as `kubectl exec` and probes do."""
        exec_id = f"probe-{next(self._numbers)}"
        whose = ("--user", str(user)) if user else ()
        done = self._ctr("tasks", "exec", "--exec-id", exec_id, *whose, self.name, *argv, timeout=timeout)
        return Probed(done.returncode, done.stdout + done.stderr)

    def probe(self, kind: str) -> Probed:
        """Runs the command of a probe (`readinessProbe`, ...) that the template has."""
        return self.execute(*self.container[kind]["exec"]["command"])

    def ready(self) -> bool:
        return self.pid is not None and self.probe("readinessProbe").code == 0

    def wait_ready(self, timeout: float = 120.0) -> float:
        """Returns how long it took. Raises HostError when it ends or takes too long."""

        def done() -> bool:
            if self.pid is None:
                raise HostError(f"{self.name} has ended:\n{self.log()}")
            return self.ready()

        return self.until(done, timeout, "it is not ready")

    def until(self, true: Callable[[], bool], timeout: float, what: str) -> float:
        """Waits until something is so. Raises HostError, with the log, when it takes too long."""
        started = time.monotonic()
        while not true():
            if time.monotonic() - started > timeout:
                raise HostError(f"{self.name}: {what} within {timeout} s:\n{self.log()}")
            time.sleep(0.02)
        return time.monotonic() - started

    def memory(self) -> dict[str, int]:
        """Rss and Pss of its first process, in kilobytes."""
        text = (self.host.root / f"proc/{self.pid}/smaps_rollup").read_text()
        return {name: int(value) for name, value in re.findall(r"^(Rss|Pss): +(\d+)", text, re.MULTILINE)}

    def capabilities(self) -> int:
        """The effective capabilities of its first process, as a mask."""
        status = (self.host.root / f"proc/{self.pid}/status").read_text()
        return int(status.split("CapEff:")[1].split()[0], 16)

    # -- its files ------------------------------------------------------------------------

    def set_config(self, volume: str, data: Mapping[str, str]) -> None:
        """Other content for a ConfigMap volume, swapped by a link as kubelet does it."""
        directory = self.place / "volumes" / volume
        content = directory / f"..{uuid.uuid4().hex}"
        content.mkdir(parents=True)
        for name, text in data.items():
            (content / name).write_text(text)
            if not (directory / name).is_symlink():
                (directory / name).symlink_to(f"..data/{name}")
        before = directory / "..data"
        old = before.resolve() if before.exists() else None
        (directory / "..new").symlink_to(content.name)
        (directory / "..new").rename(before)
        if old is not None:
            shutil.rmtree(old)

    def _make_volume(self, volume: Document) -> None:
        name = volume["name"]
        refuse_unknown(f"volume {name}", volume, {"name", "hostPath", "configMap", "emptyDir"})
        if "emptyDir" in volume:
            (self.place / "volumes" / name).mkdir(parents=True)
            (self.place / "volumes" / name).chmod(0o777)
        elif "configMap" in volume:
            source = volume["configMap"]
            refuse_unknown(f"volume {name}", source, {"name", "optional", "defaultMode"})
            if source["name"] in self._objects or not source.get("optional"):
                self.set_config(name, self._objects[source["name"]]["data"])
            else:
                (self.place / "volumes" / name).mkdir(parents=True)
        else:
            _check_host_path(self.host, volume["hostPath"])

    def _mounts(self) -> Iterable[str]:
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", ())}
        for mount in self.container.get("volumeMounts", ()):
            refuse_unknown(
                "volumeMount", mount, {"name", "mountPath", "readOnly", "mountPropagation", "subPath"}
            )
            volume = volumes[mount["name"]]
            source = volume.get("hostPath", {}).get("path") or f"{self.directory}/volumes/{mount['name']}"
            options = ["rbind", PROPAGATION[mount.get("mountPropagation", "None")]]
            options.append("ro" if mount.get("readOnly") or "configMap" in volume else "rw")
            source = os.path.join(source, mount.get("subPath", "")).rstrip("/") or "/"
            target = mount["mountPath"].rstrip("/")
            yield f"--mount=type=bind,src={source},dst={target},options={':'.join(options)}"
        if self._account:
            yield f"--mount=type=bind,src={self.directory}/account,dst={ACCOUNT},options=rbind:ro"

    # -- ctr's arguments ------------------------------------------------------------------

    def _entrypoint(self) -> list[str]:
        """Of the image: ctr leaves it out as soon as there are words behind the name."""
        manifest = json.loads(self._content(self._digest()))
        config = json.loads(self._content(manifest["config"]["digest"]))["config"]
        return list(config.get("Entrypoint") or ())

    def _digest(self) -> str:
        listed = ctr(self.host, "images", "list", f"name=={self.container['image']}").splitlines()
        if len(listed) < 2:
            raise HostError(f"the host has no image {self.container['image']}")
        return listed[1].split()[2]

    def _content(self, digest: str) -> str:
        return ctr(self.host, "content", "get", digest)

    def _variables(self) -> dict[str, str]:
        fields = {
            "spec.nodeName": self._node,
            "metadata.uid": self.uid,
            "metadata.name": f"{self._owner}-{self.name[-5:]}",  # as its controller names it
            "metadata.namespace": "kube-system",
            "status.hostIP": "127.0.0.1",
            "status.podIP": "127.0.0.1",
        }
        found: dict[str, str] = {}
        for variable in self.container.get("env", ()):
            if "valueFrom" in variable:
                found[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                found[variable["name"]] = _expanded(variable.get("value", ""), found)
        return found | self._environment

    def _namespaces(self) -> Iterable[str]:
        if self.spec.get("hostPID"):
            yield "--with-ns=pid:/proc/1/ns/pid"
        if self.spec.get("hostNetwork"):
            yield "--net-host"

    def _security(self) -> Iterable[str]:
        given = dict(self.container.get("securityContext", {}))
        refuse_unknown("securityContext", given, SECURITY_FIELDS)
        if given.get("readOnlyRootFilesystem"):
            yield "--read-only"
        if given.get("privileged"):
            yield from ("--privileged", "--allow-new-privs")
            return
        if given.get("allowPrivilegeEscalation", True):
            yield "--allow-new-privs"
        if given.get("seccompProfile", {}).get("type") == "RuntimeDefault":
            yield "--seccomp"
        changed = given.get("capabilities", {})
        dropped = changed.get("drop", ())
        dropped = USUAL_CAPABILITIES if "ALL" in dropped else dropped
        yield from (f"--cap-drop=CAP_{name}" for name in dropped if name not in changed.get("add", ()))
        yield from (f"--cap-add=CAP_{name}" for name in changed.get("add", ()))

    def _limits(self) -> Iterable[str]:
        limit = self.container.get("resources", {}).get("limits", {}).get("memory")
        if limit:
            yield f"--memory-limit={_bytes(str(limit))}"

    def _ctr(self, *argv: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        runtime = ("--address", self.host.runtime_socket, "--namespace", "k8s.io")
        return self.host.run("ctr", *runtime, *argv, check=False, timeout=timeout)


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` as kubelet replaces it."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), word)


def _bytes(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", quantity)
    if match is None:
        raise ValueError(f"not understood here: {quantity}")
    return int(match[1]) * UNITS.get(match[2] or "", 1)


def _check_host_path(host: ThrowawayHost, source: Document) -> None:
    """As kubelet checks a hostPath before the start; it makes what is to be made."""
    path = host.root / source["path"].lstrip("/")
    kind = source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = {"Directory": path.is_dir, "File": path.is_file, "Socket": path.is_socket}.get(kind, path.exists)
    if not found():
        raise HostError(f"hostPath {source['path']}: not a {kind or 'path'} on the host")
