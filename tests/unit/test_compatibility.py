"""Which kubelets, proxies and runtimes go together, and the warnings about those that do so only in part."""

from __future__ import annotations

import pytest

from installer.model.plan import Severity
from installer.node.kubelet_command import kubelet_program
from installer.node.preflight_proxy import check_versions


@pytest.mark.parametrize(
    ("kubelet", "proxy", "codes"),
    [
        ("1.26.15", "v0.9.2", []),
        ("1.29.14", "v0.8.0", []),
        ("1.30.1", "v0.9.2", ["newer-cri"]),
        ("1.32.9", "v0.9.2", ["newer-cri"]),
        ("1.33.1", "v0.9.2", ["in-place-resize", "newer-cri"]),
        ("1.34.9-eks-7", "v0.9.2", ["in-place-resize", "newer-cri"]),
        ("1.35.0", "v0.8.4", ["in-place-resize", "newer-cri"]),
        ("1.37.3", "v0.8.4", ["in-place-resize", "newer-cri"]),
        ("1.38.0-alpha.1", "v0.8.4", ["kubelet-too-new", "in-place-resize", "newer-cri"]),
        ("1.38.0", "v0.9.2", ["in-place-resize", "newer-cri"]),
        ("1.40.0", "0.10.0", ["in-place-resize", "newer-cri"]),
        ("1.38.0", "", ["in-place-resize", "newer-cri"]),
        ("", "v0.8.0", []),
        ("2.0.0", "v0.8.0", []),
    ],
)
def test_versions(kubelet: str, proxy: str, codes: list[str]) -> None:
    found = list(check_versions(kubelet, proxy, restarts=True, moves=True))
    assert [one.code for one in found] == codes
    assert all((one.severity is Severity.REFUSE) == (one.code == "kubelet-too-new") for one in found)


def test_a_kubelet_that_is_on_the_relay_already_is_warned_of_nothing() -> None:
    assert not list(check_versions("1.36.2", "v0.9.2", restarts=True, moves=False))
    assert not list(check_versions("1.38.0", "v0.8.0", restarts=False, moves=False)), "it runs"
    (refused,) = check_versions("1.38.0", "v0.8.0", restarts=True, moves=False)
    assert refused.code == "kubelet-too-new"


def test_what_this_runtime_says_in_vain_is_named_before_kubelet_moves() -> None:
    said = ("runtime handlers", "features")
    (newer,) = check_versions("1.32.1", "v0.9.2", said, restarts=True, moves=True)
    assert newer.message.endswith("here the runtime's runtime handlers and features")
    assert not list(check_versions("1.29.14", "v0.9.2", said, restarts=True, moves=True)), "it knows neither"


@pytest.mark.parametrize(
    ("words", "executable", "program"),
    [
        (("/usr/bin/kubelet", "--v=2"), "/opt/bin/kubelet (deleted)", "/opt/bin/kubelet"),
        (("/usr/bin/kubelet", "--v=2"), "/usr/bin/python3", "/usr/bin/kubelet"),
        (("/usr/bin/nice", "/usr/bin/kubelet"), "", "/usr/bin/kubelet"),
        (("/opt/start-kubelet",), "/usr/bin/kubelet", "/usr/bin/kubelet"),
        (("/opt/start-kubelet",), "", ""),
        (("/bin/sh", "-c", "exec /usr/bin/kubelet"), "/bin/dash", ""),
        ((), "", ""),
    ],
)
def test_which_program_is_asked(words: tuple[str, ...], executable: str, program: str) -> None:
    assert kubelet_program(words, executable) == program


def test_pods_whose_requests_an_autoscaler_sets_are_named_where_kubelet_resizes_in_place() -> None:
    pods = [f"default/{number}" for number in range(7)]
    (found, _newer) = check_versions("1.33.1", "v0.9.2", autoscaled=pods, restarts=True, moves=True)
    named = "a VerticalPodAutoscaler sets the requests of default/0, default/1"
    assert named in found.message
    assert found.message.endswith(" and 2 more")
    (found,) = check_versions("1.32.1", "v0.9.2", autoscaled=pods, restarts=True, moves=True)
    assert named not in found.message
    assert (
        "VerticalPodAutoscaler sets"
        not in next(iter(check_versions("1.33.1", "v0.9.2", restarts=True, moves=True))).message
    )
