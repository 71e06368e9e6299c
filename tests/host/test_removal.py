"""R6 and the record: what was there comes back; without a usable record, node safety first."""

import json
import os
import re
import shlex
import struct
import subprocess
from pathlib import Path

import pytest

from tests.host.command import REAL_POLICY, execute, untouched
from tests.host.node import (
    BINARY,
    DROP_IN,
    FALLBACK,
    KUBELET_ENVIRONMENT,
    OURS,
    PROXY,
    PROXY_UNIT,
    STATE,
    Node,
)
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT
from tests.lib.throwaway.snapshot import snapshot

RECORD = f"{STATE}/record.json"
NOBODY = 0xFFFFFFFF
FOREIGN_UNIT = """[Unit]
Description=somebody else's way to run cri-resmgr
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target graphical.target
"""
#: As setcap cap_net_bind_service=ep and setfacl user:12:rw write them: linux/capability.h, posix_acl_xattr.h.
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
ACL = struct.pack("<I" + "HHI" * 5, 2, *(1, 6, NOBODY, 2, 6, 12, 4, 4, NOBODY, 16, 6, NOBODY, 32, 0, NOBODY))


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


def put(node: Node, path: str, content: str, mode: int = 0o640, owner: int = 12) -> None:
    file = node.path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(mode)
    os.chown(file, owner, owner)


@rule("R6")
@pytest.mark.matrix("exactness")
def test_r6_files_links_and_units_of_somebody_else_come_back(node: Node) -> None:
    """Whatever of ours has come and gone in between."""
    for path in (BINARY, "/etc/default/cri-resource-manager", KUBELET_ENVIRONMENT):
        put(node, path, f"somebody else's {path}\n")
        os.setxattr(node.path(path), "trusted.somebody", path.encode() + b"\0\xff")
    os.setxattr(node.path(BINARY), "security.capability", CAPABILITY)
    os.setxattr(node.path(KUBELET_ENVIRONMENT), "system.posix_acl_access", ACL)
    put(node, "/opt/intel/bin/other-tool", "not ours\n")
    put(node, "/etc/cri-resmgr/notes", "not ours\n")
    node.path(FALLBACK).symlink_to("notes")
    put(node, "/var/lib/cri-resmgr/notes", "somebody else's\n")
    put(node, PROXY_UNIT, FOREIGN_UNIT, 0o644, 0)
    node.host.systemctl("daemon-reload")
    node.host.systemctl("enable", PROXY)
    node.path("/etc/cri-resmgr").chmod(0o2750)
    node.path(DROP_IN).parent.mkdir(0o700)
    os.chown(node.path(DROP_IN).parent, 0, 12)
    node.before = snapshot(node.host)
    node.run("install")
    node.expect_good()
    assert not node.path(
        "/etc/systemd/system/graphical.target.wants/cri-resource-manager.service"
    ).is_symlink()
    force = node.command.configs / "force.cfg"
    force.write_text("policy:\n  Active: none\n")
    node.upgrade()
    node.run("install")
    force.unlink()
    (node.command.configs / "EXTRA_OPTIONS.cfg").write_text('EXTRA_OPTIONS="--metrics-interval 30s"\n')
    node.command.set(kubelet={"strategy": "exec-start"})
    node.run("install")
    node.expect_good()
    said = node.run("plan", "--mode=remove", code=3).out
    assert f"restore {FALLBACK}" in said
    node.run("remove")
    assert node.host.systemctl("is-enabled", PROXY) == "enabled"
    assert node.path("/var/lib/cri-resmgr/notes").exists()
    node.expect_untraced(allowed="/var/lib/cri-resmgr")


@rule("R5")
def test_r5_a_linked_directory_is_written_through_and_kept(node: Node) -> None:
    node.path("/srv/elsewhere").mkdir(parents=True)
    node.path("/etc/cri-resmgr").symlink_to("/srv/elsewhere")
    node.before = snapshot(node.host)
    node.run("install")
    assert node.path("/srv/elsewhere/fallback.cfg").exists()
    node.expect_good()
    node.run("remove")
    assert not list(node.path("/srv/elsewhere").iterdir())
    node.expect_untraced()


@rule("R6")
@pytest.mark.parametrize("damage", ["missing", "corrupt", "future"])
def test_without_a_usable_record_what_is_evidently_ours_goes(node: Node, damage: str) -> None:
    node.run("install")
    record = node.path(RECORD)
    if damage == "missing":
        node.host.run("rm", "-r", STATE)
    elif damage == "corrupt":
        record.write_text(record.read_text()[:200])
    else:
        record.write_text(json.dumps({**json.loads(record.read_text()), "schema": 99}))
    node.path(FALLBACK).write_text("policy:\n  Active: none\n")
    ended = node.run("remove", code=4)
    assert FALLBACK in ended.err
    assert "--without-record" in ended.err
    assert not node.on_relay()
    for path in OURS:
        assert node.path(path).exists() == (path == FALLBACK)
    assert "/var/lib/cri-resmgr" in ended.err
    (typed,) = re.findall(r"`cri-resmgr-installer ([^`]* remove --without-record)`", ended.err)
    again = execute(*shlex.split(typed))  # as the hint has it, with the options of this command
    assert again.code == 0, again.said
    node.expect_untraced()


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
def test_an_install_begins_a_new_record_and_nothing_restarts(node: Node, damage: str) -> None:
    node.run("install")
    if damage == "missing":
        node.host.run("rm", "-r", STATE)
    else:
        node.path(RECORD).write_text("{")
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    assert json.loads(node.path(RECORD).read_text())["good"]
    node.expect_good()


def test_a_record_of_a_newer_installer_is_refused_not_overwritten(node: Node) -> None:
    node.run("install")
    record = node.path(RECORD)
    record.write_text(json.dumps({**json.loads(record.read_text()), "schema": 99}))
    node.path(DROP_IN).unlink()
    with untouched(node.host):
        assert "newer installer" in node.run("install", code=4).err


@rule("R6")
@pytest.mark.parametrize(
    ("file", "insists"), [("/etc/machine-id", False), ("/etc/hostname", False), ("/etc/machine-id", True)]
)
def test_on_a_cloned_disk_only_what_is_really_ours_is_believed(node: Node, file: str, insists: bool) -> None:
    """Unless the operator says that all of it is."""
    node.run("install")
    node.path(file).write_text("0123456789abcdef0123456789abcdef\n")
    node.path(FALLBACK).write_text("somebody else's now\n")
    if not insists:
        ended = node.run("remove", code=4)
        assert f"nothing proves that these files are ours:\n    {FALLBACK}\n" in ended.err
        assert node.path(FALLBACK).read_text() == "somebody else's now\n"
        assert not node.on_relay()
        assert not node.path(BINARY).exists()
    node.run("remove", "--without-record")
    assert not node.on_relay()
    assert not any(node.path(path).exists() for path in OURS)


@rule("R6")
def test_a_removal_that_could_not_delete_a_file_is_refused(node: Node) -> None:
    """It would move kubelet off the proxy, fail, and move it back."""
    node.run("install")
    node.host.run("mount", "--bind", "/opt", "/opt")
    node.host.run("mount", "-o", "remount,ro,bind", "/opt")
    with untouched(node.host):
        refused = node.run("remove", code=4).err
    assert "/opt/intel/bin is not writable: its file system is mounted read-only" in refused
    node.host.run("umount", "/opt")
    fixed = node.path(FALLBACK)
    subprocess.run(["chattr", "+i", str(fixed)], check=True)
    try:
        with untouched(node.host):
            refused = node.run("remove", code=4).err
            assert f"{FALLBACK} is not writable: it is immutable (chattr +i)" in refused
            assert "`chattr -i` it; meanwhile" in refused
            node.run("install")  # which has nothing to do there
            node.fallback(REAL_POLICY)
            assert FALLBACK in node.run("install", code=4).err
    finally:
        subprocess.run(["chattr", "-i", str(fixed)], check=True)
    node.run("remove")
    node.expect_untraced()


@rule("R8")
def test_a_kubelet_that_was_not_healthy_before_is_not_judged_by_its_healthz(node: Node) -> None:
    """A removal that waited for it would move kubelet three times, and leave it held."""
    node.run("install")
    node.command.set(kubelet={"startTimeoutSeconds": 1})
    node.fault("kubelet", '{"healthz": false}')
    removed = node.run("remove")
    assert removed.out.count("restart kubelet.service") == 1
    assert "kubelet.service is not healthy, nor was it before this run" in removed.out
    node.fault("kubelet", "")
    node.expect_untraced()


def test_a_machine_that_was_renamed_keeps_running(node: Node) -> None:
    node.run("install")
    node.path("/etc/hostname").write_text("renamed\n")
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    with untouched(node.host):
        assert node.run("install").out == "nothing to do\n"
    node.run("remove")
    node.path("/etc/hostname").unlink()
    node.expect_untraced()


def test_removal_of_a_stopped_kubelet_does_not_start_it(node: Node) -> None:
    node.run("install")
    node.host.systemctl("stop", "kubelet")
    node.run("remove")
    assert node.host.systemctl("is-active", "kubelet", check=False) == "inactive"
    node.host.systemctl("start", "kubelet")
    node.expect_untraced()


_WANTED = f"/run/systemd/system/{UNIT}.d/10-somebody.conf"


@rule("R6")
@pytest.mark.parametrize("how", ["add-wants", "add-requires", "add-wants --runtime", "a drop-in", "no unit"])
def test_a_stopped_proxy_that_kubelet_starts_for_somebody_is_gone_after_a_removal(
    node: Node, how: str
) -> None:
    """Kubelet restarts to leave the relay. A link that goes with us has no effect any more by then."""
    node.run("install")
    node.host.systemctl("stop", PROXY)
    if how == "a drop-in":
        put(node, _WANTED, f"[Unit]\nWants={PROXY}\n")
    elif how == "no unit":
        node.path(PROXY_UNIT).unlink()
    else:
        node.host.systemctl(*how.split(), UNIT, PROXY)
    node.host.systemctl("daemon-reload")
    node.run("remove")
    started = 2 if how in ("add-wants --runtime", "a drop-in") else 1
    assert node.host.journal(PROXY).count("up and running") == started
    node.host.run("rm", "-rf", f"/run/systemd/system/{UNIT}.wants", str(Path(_WANTED).parent))
    node.host.systemctl("daemon-reload")
    node.expect_untraced()


@rule("R6")
@pytest.mark.parametrize("runtime", [False, True])
def test_what_somebody_has_masked_is_removed_with_its_enablement(node: Node, runtime: bool) -> None:
    """Systemd itself leaves the link of a masked unit."""
    node.run("install")
    node.path(PROXY_UNIT).unlink()
    node.host.systemctl("mask", *(["--runtime"] if runtime else []), PROXY)
    assert "is masked" in node.run("install", code=4).err
    node.run("remove")
    node.host.systemctl("unmask", "--runtime", PROXY)
    node.expect_untraced()
    assert node.run("remove").out == "nothing to do\n"


def test_a_masked_kubelet_is_not_taken_from_the_proxy_before_it_may_restart(node: Node) -> None:
    node.run("install")
    node.host.systemctl("mask", UNIT)
    with untouched(node.host):
        assert "would have to restart to leave the proxy" in node.run("remove", code=4).err
    node.host.systemctl("unmask", UNIT)
    node.run("remove")
    node.expect_untraced()


@rule("R4", "R8")
def test_while_the_runtime_is_down_a_kubelet_that_runs_is_left_alone(node: Node) -> None:
    """It would not come up on the runtime's own endpoint."""
    node.run("install")
    node.host.systemctl("stop", "containerd.service")
    with node.restarts(kubelet=False, proxy=False), untouched(node.host):
        said = node.run("remove", code=4).err
        assert "refused" in node.run("plan", "--mode", "remove", code=4).out
    assert "run/containerd/containerd.sock: no socket" in said
    assert "so the running kubelet is left alone" in said
    node.host.systemctl("start", "containerd.service")
    node.run("remove")
    node.expect_untraced()


@rule("R6")
def test_a_node_on_which_no_plugin_could_follow_is_not_left(node: Node) -> None:
    missing = "no NRI plugin could follow cri-resmgr: nothing listens at /var/run/nri/nri.sock"
    node.run("install")
    node.command.set(removal={"successor": "nri"})
    with untouched(node.host):
        converged = json.loads(node.run("--output=json", "install").out.splitlines()[-1])
        assert converged["data"]["remarks"].startswith(missing)  # which the Node then says
        assert missing in node.run("remove", code=4).said
    assert "successor-not-ready" in node.run("--output=json", "plan", "--mode=remove", code=4).out
    listener = ["--unit=nri", "--socket-property=ListenStream=/var/run/nri/nri.sock", "/bin/true"]
    node.host.run("systemd-run", *listener)
    node.run("remove")
    assert not node.path(RECORD).exists()
