"""The stand-in kubelet and the pods of its node: as hard to please as the real one."""

import json
from collections.abc import Iterator

import pytest

from tests.host.daemon import SOON, within
from tests.lib.throwaway.containers import Pod, container_pid, create_container, run_pod
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, install_kubelet, wait_healthy
from tests.lib.throwaway.pods import Assigned, available_since, fetch, pod_object

pytestmark = pytest.mark.long

FAULTS = "/etc/standin-kubelet.json"
LABEL = {"served": "yes"}


@pytest.fixture(scope="module")
def booted() -> Iterator[ThrowawayHost]:
    with ThrowawayHost() as host:
        install_kubelet(host, "kubeadm")
        yield host


@pytest.fixture
def assigned(booted: ThrowawayHost) -> Iterator[Assigned]:
    told = Assigned(booted, dict(LABEL))
    told.forget()
    restart(booted)
    yield told
    told.forget()
    (booted.root / FAULTS[1:]).unlink(missing_ok=True)


def restart(host: ThrowawayHost) -> None:
    host.systemctl("restart", UNIT)
    wait_healthy(host)


def started(host: ThrowawayHost, name: str) -> tuple[Pod, str]:
    """A pod with a container that runs."""
    pod = run_pod(host, host.runtime_socket, name)
    return pod, create_container(host, host.runtime_socket, name, pod=pod)


def test_it_lists_its_pods_with_their_requests_to_those_who_may_read_them(assigned: Assigned) -> None:
    host = assigned.host
    pod, identity = started(host, "listed")
    assigned.pods = [pod_object(pod, {"cpu": "30m", "memory": "64Mi"})]
    assigned.tokens = {"good": ["nodes/pods"], "proxy": ["nodes/proxy"], "other": ["nodes/metrics"]}
    assigned.tell()
    within(SOON, lambda: assigned.is_ready(pod))
    assert fetch(host, "/pods", "unknown")[0] == 401
    assert fetch(host, "/pods", "other")[0] == 403
    assert fetch(host, "/pods", "proxy")[0] == 200
    status, body = fetch(host, "/pods", "good")
    (item,) = json.loads(body)["items"]
    assert (status, item["metadata"]["uid"]) == (200, pod.uid)
    (container,) = item["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "30m", "memory": "64Mi"}
    assert item["status"]["containerStatuses"][0]["containerID"] == f"containerd://{identity}"
    with pytest.raises(Exception, match="refused"):
        fetch(host, "/pods")  # kubeadm's configuration opens no port for everybody


def test_the_read_only_port_is_where_a_configuration_opens_it(assigned: Assigned) -> None:
    config = assigned.host.root / "var/lib/kubelet/config.yaml"
    was = config.read_text()
    config.write_text(f"{was}readOnlyPort: 10255\n")
    try:
        restart(assigned.host)
        assert json.loads(fetch(assigned.host, "/pods/")[1])["kind"] == "PodList"
    finally:
        config.write_text(was)
        restart(assigned.host)


def test_a_restarted_kubelet_calls_a_young_container_ready_that_it_has_not_probed(assigned: Assigned) -> None:
    host = assigned.host
    pod, _ = started(host, "young")
    assigned.pods = [pod_object(pod, probe=["/bin/false"], period=1)]
    assigned.tell()
    within(SOON, lambda: bool(assigned.history(pod)) and not assigned.is_ready(pod))
    before = len(assigned.history(pod))
    write(host.root / FAULTS[1:], '{"graceSeconds": 600}')  # young it is, however slow this machine
    restart(host)
    within(SOON, lambda: len(assigned.history(pod)) == before + 2)
    assert [ready for _, ready in assigned.history(pod)[before:]] == [True, False]


def test_what_is_known_of_an_old_container_outlives_a_restart_of_kubelet(assigned: Assigned) -> None:
    host = assigned.host
    write(host.root / FAULTS[1:], '{"graceSeconds": 0}')
    restart(host)
    pods = [started(host, name)[0] for name in ("ready", "unready")]
    probes = (["/bin/true"], ["/bin/false"])
    assigned.pods = [pod_object(pod, probe=probe, period=1) for pod, probe in zip(pods, probes, strict=True)]
    assigned.tell()
    within(SOON, lambda: assigned.is_ready(pods[0]) and bool(assigned.history(pods[1])))
    before = [assigned.history(pod) for pod in pods]
    restart(host)
    words = ("journalctl", f"_SYSTEMD_INVOCATION_ID={host.show(UNIT, 'InvocationID')}")
    within(SOON, lambda: host.run(*words).stdout.count('"Probed"') == 2)
    assert [assigned.history(pod) for pod in pods] == before


def test_a_probe_is_run_in_the_container_again_and_again(assigned: Assigned) -> None:
    pod, identity = started(assigned.host, "probed")
    assigned.pods = [pod_object(pod, probe=["/bin/sh", "-c", "test -e /tmp/ready"], period=1)]
    assigned.tell()
    within(SOON, lambda: bool(assigned.history(pod)) and not assigned.is_ready(pod))
    inside = assigned.host.root / f"proc/{container_pid(assigned.host, identity)}/root/tmp/ready"
    inside.touch()
    within(SOON, lambda: assigned.is_ready(pod))
    inside.unlink()
    within(SOON, lambda: not assigned.is_ready(pod))


def test_a_restarted_kubelet_refuses_a_pod_whose_node_has_lost_its_label(assigned: Assigned) -> None:
    host = assigned.host
    (selected, doomed), (other, spared) = started(host, "selected"), started(host, "other")
    assigned.pods = [pod_object(selected, selector=LABEL), pod_object(other)]
    assigned.tell()
    within(SOON, lambda: assigned.is_ready(selected) and assigned.is_ready(other))
    assigned.labels.clear()
    assigned.tell()
    restart(host)
    within(SOON, lambda: container_pid(host, doomed) is None)
    assert container_pid(host, spared) is not None
    assert not assigned.is_ready(selected)
    assert 'reason="NodeAffinity"' in host.journal(UNIT)


def test_a_pod_is_available_once_it_was_ready_for_long_enough_without_a_break() -> None:
    lied = [(1.0, False), (10.0, True), (10.6, False), (19.0, True)]
    assert available_since(lied, 0) == 10.0
    assert available_since(lied, 6) == 25.0
    assert available_since([*lied, (20.0, False)], 6) is None
