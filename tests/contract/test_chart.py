"""The life of a release: the chart at a real API server (`--kubernetes DIR`), by Helm's own engine.

Controllers of Kubernetes make revisions of our DaemonSet; no kubelet runs a pod. The test runs that of the
hook itself, as a process with the rights of its ServiceAccount.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lib.charts import engine, render_chart
from tests.lib.extras import EXTENSION
from tests.lib.throwaway.controlplane import Answer, ControlPlane, find_programs
from tests.lib.throwaway.fleet import build_node

CHART = Path(__file__).parents[2] / "charts" / "cri-resmgr-installer"
NAMESPACE, NAME = "node-tools", "resmgr"
VALUES: dict[str, Any] = {
    "name": NAME,
    "images": {"installer": "registry.example.org/installer:1"},
    "hooks": {"image": "registry.example.org/operator:1"},
    "agent": {"enabled": True},
    "settings": {"removal": {"waitSeconds": 5}},
}
JOB = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{NAME}-uninstall"
DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
BINDING_OF_HOOK = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{NAME}-uninstall"
RIGHTS = (
    f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}",
    f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{NAME}",
    f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{NAME}",
    f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/{NAME}",
    f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAME}-rollout/roles/{NAME}",
    f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{NAME}-own-node",
)


class Cluster:
    """`pods_of_hooks` has what the commands in them have said, and how they have ended."""

    def __init__(self, plane: ControlPlane, kubectl: str) -> None:
        self.plane, self._kubectl = plane, kubectl
        self.pods_of_hooks: list[subprocess.CompletedProcess[str]] = []
        helm = engine()
        self.helm = helm.Config(kubeconfig_path=plane.kubeconfig("admin"), namespace=NAMESPACE)
        self.failure: type[Exception] = helm.HelmError

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, kind: str = "") -> Answer:
        return self.plane.admin.call(method, path, body, kind)

    def kubectl(self, *arguments: str) -> str:
        place = () if arguments[0] == "apply" or "-A" in arguments else ("-n", NAMESPACE)
        argv = [self._kubectl, f"--kubeconfig={self.plane.kubeconfig('admin')}", *place, *arguments]
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def install(self, policy: str) -> None:
        self.helm.install(CHART, NAME, self._values(policy), create_namespace=True, timeout=60)

    def upgrade(self, policy: str, **values: Any) -> None:
        self.helm.upgrade(CHART, NAME, self._values(policy) | values, timeout=60)

    def _values(self, policy: str) -> dict[str, Any]:
        return {**VALUES, "configs": {"fallback": f"policy: {{Active: {policy}}}\n"}}

    def policies(self) -> dict[str, str]:
        """Of the ConfigMaps with static configs that are there, by name."""
        items = self.call("GET", CONFIG_MAPS).body["items"]
        found = {each["metadata"]["name"]: each.get("data", {}).get("fallback.cfg") for each in items}
        return {name: yaml.safe_load(text)["policy"]["Active"] for name, text in found.items() if text}

    def policy_of_pods(self) -> str:
        """What a pod of the DaemonSet would be started with now."""
        pod = self.call("GET", DAEMON_SET).body["spec"]["template"]["spec"]
        (name,) = (each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "configs")
        return self.policies()[name]

    def forget_manager(self, name: str) -> None:
        """Nobody has the fields any more that it has written."""
        metadata = self.call("GET", DAEMON_SET).body["metadata"]
        rest = [each for each in metadata["managedFields"] if not each["manager"].startswith(name)]
        assert self.call("PATCH", DAEMON_SET, {"metadata": {"managedFields": rest}}).ok

    def program(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As a person runs it, who may do everything."""
        return self._run_program([*arguments, "--kubeconfig", str(self.plane.kubeconfig("admin"))])

    def revisions(self) -> int:
        found = self.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions").body["items"]
        return sum(each["metadata"]["name"].startswith(f"{NAME}-") for each in found)

    def run_jobs(self, stop: threading.Event) -> None:
        """As kubelet and the job controller would: each Job once."""
        done = set[str]()
        while not stop.wait(0.2):
            job = self.call("GET", JOB)
            if not job.ok or job.body["metadata"]["uid"] in done:
                continue
            done.add(job.body["metadata"]["uid"])
            ran = self._run(job.body["spec"]["template"]["spec"])
            self.pods_of_hooks.append(ran)
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            words = ("FailureTarget", "Failed") if ran.returncode else ("SuccessCriteriaMet", "Complete")
            status = {
                "startTime": now,
                "conditions": [{"type": each, "status": "True", "lastTransitionTime": now} for each in words],
                **({"failed": 1} if ran.returncode else {"succeeded": 1, "completionTime": now}),
            }
            answer = self.call("PATCH", f"{JOB}/status", {"status": status})
            assert answer.ok, answer

    def _run(self, pod: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{pod['serviceAccountName']}/token"
        token = self.call("POST", account, {"spec": {}}).body["status"]["token"]
        config = yaml.safe_load(self.plane.kubeconfig("admin").read_text())
        config["users"] = [{"name": "u", "user": {"token": token}}]
        own = self.plane.authority.parent / "hook.kubeconfig"
        own.write_text(json.dumps(config))
        (container,) = pod["containers"]
        assert container["command"] == ["cri-resmgr-installer"]
        return self._run_program([*container["args"], "--kubeconfig", str(own)])

    @staticmethod
    def _run_program(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "installer.cli", *arguments],
            env={**os.environ, "PYTHONPATH": f"{EXTENSION}{os.pathsep}{Path.cwd()}"},
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    programs = request.config.getoption("--kubernetes")
    if programs is None:
        pytest.skip("needs a real API server: --kubernetes DIR")
    directory = tmp_path_factory.mktemp("plane")
    with ControlPlane(find_programs(programs), directory, controllers=["daemonset-controller"]) as plane:
        yield plane


@pytest.fixture
def cluster(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Cluster]:
    programs = request.config.getoption("--kubernetes")
    kubectl = shutil.which("kubectl", path=str(programs)) or shutil.which("kubectl")
    assert kubectl, "needs kubectl, beside the API server or on the path"
    found, stop = Cluster(plane, kubectl), threading.Event()
    worker = threading.Thread(target=found.run_jobs, args=[stop])
    worker.start()
    yield found
    stop.set()
    worker.join()
    found.helm.close()


def until(ready: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_release_is_installed_changed_rolled_back_and_leaves_nothing(cluster: Cluster) -> None:
    before = leftovers(cluster)
    cluster.install("none")
    until(lambda: cluster.revisions() == 1, "no revision of the DaemonSet")
    assert cluster.policy_of_pods() == "none"

    cluster.upgrade("balloons")
    until(lambda: cluster.revisions() == 2, "no second revision")
    assert cluster.policy_of_pods() == "balloons"
    assert sorted(cluster.policies().values()) == ["balloons", "none"]

    # An undo without Helm finds what its pods start from, also with another upgrade in between.
    cluster.upgrade("topology-aware")
    until(lambda: cluster.revisions() == 3, "no third revision")
    cluster.kubectl("rollout", "undo", f"daemonset/{NAME}", "--to-revision=1")
    assert cluster.policy_of_pods() == "none"

    # Helm's own goes on from there, but not over the field that kubectl has: that takes --force-conflicts,
    # which this engine lacks. So nobody has that field now.
    with pytest.raises(cluster.failure, match="1 conflict: conflict with"):
        cluster.helm.rollback(NAME, version=2, timeout=60)
    cluster.forget_manager("kubectl")
    cluster.helm.rollback(NAME, version=2, timeout=60)
    assert cluster.policy_of_pods() == "balloons"

    # What no revision starts from any more is collected by the next upgrade.
    cluster.call("PATCH", DAEMON_SET, {"spec": {"revisionHistoryLimit": 1}})
    cluster.upgrade("static")
    until(lambda: cluster.revisions() == 2, "earlier revisions stay")
    cluster.upgrade("static", labels={"again": "true"})
    assert cluster.policy_of_pods() == "static"
    assert len(cluster.policies()) <= 3
    assert "none" not in cluster.policies().values()

    # The same values again change nothing.
    generation = cluster.call("GET", DAEMON_SET).body["metadata"]["generation"]
    cluster.upgrade("static", labels={"again": "true"})
    assert cluster.call("GET", DAEMON_SET).body["metadata"]["generation"] == generation

    cluster.helm.uninstall(NAME, timeout=120, wait="watcher")
    (hook,) = cluster.pods_of_hooks
    assert hook.returncode == 0, hook.stdout + hook.stderr
    assert cluster.helm.list(all_states=True) == []
    until(lambda: leftovers(cluster) == before, f"left: {leftovers(cluster) - before}")


def leftovers(cluster: Cluster) -> set[str]:
    """Everything with a name of ours, but the definition, which has people's objects."""
    kinds = "ds,cm,sa,svc,role,rolebinding,clusterrole,clusterrolebinding,namespace,job,lease"
    kinds += ",validatingadmissionpolicy,validatingadmissionpolicybinding"
    names = cluster.kubectl("get", kinds, "-A", "-o", "name").split()
    return {name for name in names if NAME in name or "cri-resmgr" in name}


def test_a_node_that_cannot_be_cleaned_fails_the_hook_and_keeps_the_rights(cluster: Cluster) -> None:
    cluster.install("none")
    node = build_node("n1", annotation={"state": "converged"})
    status = node.pop("status")
    assert cluster.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node}).ok
    assert cluster.call("PATCH", "/api/v1/nodes/n1/status", {"status": status}, "merge").ok
    until(lambda: cluster.call("GET", DAEMON_SET).body["status"]["desiredNumberScheduled"], "no pod")
    with pytest.raises(cluster.failure):
        cluster.helm.uninstall(NAME, timeout=120, wait="watcher")
    (hook,) = cluster.pods_of_hooks
    assert hook.returncode == 5, hook.stdout + hook.stderr
    assert "n1" in hook.stderr
    for path in (*RIGHTS, DAEMON_SET, f"{DAEMON_SET}-removal", JOB):
        assert cluster.call("GET", path).ok, path
    assert cluster.call("GET", BINDING_OF_HOOK).code == 404
    bindings = cluster.kubectl("get", "rolebindings", "-A", "-o", "name").split()
    assert not [name for name in bindings if name.endswith(f"/{NAME}-uninstall")]

    # What was in its way is mended: the same command goes on.
    assert cluster.call("DELETE", "/api/v1/nodes/n1").ok
    cluster.helm.uninstall(NAME, timeout=120, wait="watcher")
    assert [each.returncode for each in cluster.pods_of_hooks] == [5, 0]
    until(lambda: not leftovers(cluster), f"left: {leftovers(cluster)}")


def test_without_the_hook_the_nodes_keep_what_they_need(cluster: Cluster) -> None:
    cluster.install("none")
    cluster.upgrade("none", hooks={"uninstall": False})
    cluster.helm.uninstall(NAME, timeout=120)
    assert cluster.pods_of_hooks == []
    assert not cluster.call("GET", DAEMON_SET).ok
    for path in RIGHTS:
        assert cluster.call("GET", path).ok, path

    # The same release takes them back, and leaves nothing.
    cluster.install("none")
    cluster.helm.uninstall(NAME, timeout=120, wait="watcher")
    until(lambda: not leftovers(cluster), f"left: {leftovers(cluster)}")


@pytest.fixture
def rendered(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """What `helm template` prints: the hooks are plain objects in it. In the end, nothing of it is left."""
    before = leftovers(cluster)
    values = {**VALUES, "configs": {"fallback": "policy: {Active: none}\n"}}
    path = tmp_path / "rendered.yaml"
    path.write_text(yaml.safe_dump_all(render_chart(CHART, values, NAMESPACE, NAME)))
    yield path
    hooks = "app.kubernetes.io/name=cri-resmgr-installer-hooks"
    cluster.kubectl("delete", "job,pod,sa,role,rolebinding,clusterrole,clusterrolebinding", "-A", "-l", hooks)
    assert cluster.program("uninstall", "--yes").returncode == 0
    until(lambda: leftovers(cluster) == before, f"left: {leftovers(cluster) - before}")


def test_rendered_and_applied_it_uninstalls_nothing(cluster: Cluster, rendered: Path) -> None:
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    cluster.kubectl("apply", "-f", str(rendered))
    until(lambda: cluster.pods_of_hooks, "the Job has not run")
    (hook,) = cluster.pods_of_hooks
    assert hook.returncode == 0, hook.stderr
    assert "does nothing" in hook.stdout
    assert cluster.call("GET", DAEMON_SET).ok
    assert not cluster.call("GET", f"{DAEMON_SET}-removal").ok


def test_moved_from_helm_to_a_pipeline_it_uninstalls_nothing(cluster: Cluster, rendered: Path) -> None:
    """Helm's annotations are still on what is applied then."""
    cluster.install("none")
    cluster.kubectl("apply", "-f", str(rendered))
    until(lambda: cluster.pods_of_hooks, "the Job has not run")
    (hook,) = cluster.pods_of_hooks
    assert hook.returncode == 2, hook.stdout
    assert f"kubectl-client-side-apply has applied {NAME} since" in hook.stderr
    assert cluster.call("GET", DAEMON_SET).ok
    assert not cluster.call("GET", f"{DAEMON_SET}-removal").ok
    # As the hint says.
    hint = hook.stderr.partition("`cri-resmgr-installer ")[2].partition("`")[0]
    assert hint.startswith(f"uninstall --name {NAME} --namespace {NAMESPACE}")
    # The fixture types it; this engine has no --no-hooks for the release that is left.
    cluster.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/sh.helm.release.v1.{NAME}.v1")


def test_pods_that_pod_security_refuses_are_named_with_its_words(cluster: Cluster, rendered: Path) -> None:
    """The DaemonSet's controller says so in Events, and nobody else does."""
    enforced = {"pod-security.kubernetes.io/enforce": "baseline"}
    space = f"/api/v1/namespaces/{NAMESPACE}"
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    assert cluster.call("PATCH", space, {"metadata": {"labels": enforced}}).ok
    node = build_node("n1", annotation=None)
    status = node.pop("status")
    assert cluster.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node}).ok
    try:
        assert cluster.call("PATCH", "/api/v1/nodes/n1/status", {"status": status}, "merge").ok
        cluster.kubectl("apply", "-f", str(rendered))
        until(lambda: "violates PodSecurity" in cluster.program("report").stdout, "nothing is said")
    finally:
        assert cluster.call("DELETE", "/api/v1/nodes/n1").ok
        cluster.call("PATCH", space, {"metadata": {"labels": dict.fromkeys(enforced)}})


def test_with_argo_cd_the_deletion_of_the_application_cleans_first(cluster: Cluster, tmp_path: Path) -> None:
    """Argo CD applies what is no hook at a sync; when the Application is deleted, it creates what is
    annotated with PreDelete in the order of the waves, waits for the Job, and then deletes the rest."""
    before = leftovers(cluster)
    hooks = {**VALUES["hooks"], "uninstall": "argocd"}
    values = {**VALUES, "configs": {"fallback": "policy: {Active: none}\n"}, "hooks": hooks}
    objects = render_chart(CHART, values, NAMESPACE, NAME)
    annotations = [each["metadata"].get("annotations", {}) for each in objects]
    wave = "argocd.argoproj.io/sync-wave"
    hooked = [
        (int(given[wave]), each)
        for each, given in zip(objects, annotations, strict=True)
        if given.get("argocd.argoproj.io/hook") == "PreDelete"
    ]
    synced = [
        each
        for each, given in zip(objects, annotations, strict=True)
        if not {"argocd.argoproj.io/hook", "helm.sh/hook"} & set(given)
    ]
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    (tmp_path / "synced.yaml").write_text(yaml.safe_dump_all(synced))
    cluster.kubectl("apply", "--field-manager", "argocd-controller", "-f", str(tmp_path / "synced.yaml"))
    assert cluster.call("GET", DAEMON_SET).ok
    assert not cluster.call("GET", JOB).ok
    for at, (_, each) in enumerate(sorted(hooked, key=lambda pair: pair[0])):
        path = tmp_path / f"hook-{at}.yaml"
        path.write_text(yaml.safe_dump(each))
        cluster.kubectl("apply", "-f", str(path))
    until(lambda: cluster.pods_of_hooks, "the Job has not run")
    (hook,) = cluster.pods_of_hooks
    assert hook.returncode == 0, hook.stdout + hook.stderr
    for _, each in hooked:  # HookSucceeded
        place = ("-n", each["metadata"]["namespace"]) if "namespace" in each["metadata"] else ()
        cluster.kubectl("delete", each["kind"], each["metadata"]["name"], *place)
    until(lambda: leftovers(cluster) == before, f"left: {leftovers(cluster) - before}")
