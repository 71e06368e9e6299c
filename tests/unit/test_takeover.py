"""Another installer's work: how kubelet's files are repaired. `tests/faults/disks` has the takeovers."""

from __future__ import annotations

import pytest

from installer.model.host import KubeletBase, UnitText
from installer.node.takeover import Repaired, repair_base, sources_of
from tests.lib.kubelet_trees import FLAVOURS
from tests.lib.throwaway.earlier import cut

RUNTIME = "unix:///run/containerd/containerd.sock"
GARDENER = FLAVOURS / "gardener-set/etc/systemd/system/kubelet.service"
UNIT_FILE = "/etc/systemd/system/kubelet.service"


def repair(text: str, path: str = UNIT_FILE) -> tuple[str, Repaired]:
    base = KubeletBase(texts=(UnitText(path, text),))
    found = repair_base(base, RUNTIME)
    return found.texts.get(path, text), found


def test_what_was_deleted_is_named() -> None:
    text, found = repair(
        cut("[Unit]\nAfter=containerd.service\n[Service]\nExecStart=/bin/k $KUBELET_EXTRA_ARGS\n")
    )
    command = "/bin/k \\\n    --container-runtime-endpoint=unix:///run/containerd/containerd.sock \\\n"
    assert text == f"[Unit]\n[Service]\nExecStart={command}    $KUBELET_EXTRA_ARGS\n"
    assert found.lost == (
        "After=containerd.service",
        "Wants=containerd.service",
        "--runtime-cgroups=/system.slice/containerd.service",
    )


def test_gardeners_unit_has_all_but_what_was_deleted() -> None:
    original = GARDENER.read_text()
    edited = cut(original)
    assert "containerd" not in edited
    text, found = repair(edited)
    missing = [line.strip(" \\") for line in original.splitlines() if line not in text.splitlines()]
    assert missing == list(found.lost)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "ExecStart=/bin/k --container-runtime-endpoint /run/cri-resmgr/cri-resmgr.sock --v=2\n",
            f"ExecStart=/bin/k --container-runtime-endpoint {RUNTIME} --v=2\n",
        ),
        (
            "containerRuntimeEndpoint: unix:///var/run/cri-resmgr/cri-resmgr.sock\n",
            f"containerRuntimeEndpoint: {RUNTIME}\n",
        ),
        (
            '{"imageServiceEndpoint": "unix:///var/run/cri-resmgr/cri-resmgr.sock"}\n',
            f'{{"imageServiceEndpoint": "{RUNTIME}"}}\n',
        ),
        (
            "ExecStartPre=/usr/bin/test -S /var/run/cri-resmgr/cri-resmgr.sock\n",
            "ExecStartPre=/usr/bin/test -S /run/containerd/containerd.sock\n",
        ),
        (
            "Requires=cri-resource-manager.service\nAfter=network.target cri-resource-manager.service\n",
            "After=network.target\n",
        ),
        ("# was /run/cri-resmgr/cri-resmgr.sock\n", "# was /run/cri-resmgr/cri-resmgr.sock\n"),
        ("--x=/run/cri-resmgr/cri-resmgr.sock.old\n", "--x=/run/cri-resmgr/cri-resmgr.sock.old\n"),
    ],
)
def test_the_runtime_takes_the_relays_place(before: str, after: str) -> None:
    assert repair(before)[0] == after
    assert not sources_of(KubeletBase(texts=(UnitText(UNIT_FILE, after),)))
