"""New files get the label that the host's policy says; a label that cannot be given stops nothing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from installer.host.disk import Kernel
from installer.host.files import RootedFiles
from installer.host.selinux import FilePolicy

#: Lines of Debian's and Fedora's policy, and some of an administrator.
CONTEXTS = r"""
# a comment
/.*	system_u:object_r:default_t:s0
/opt/.*	system_u:object_r:usr_t:s0
/opt	-d	system_u:object_r:usr_t:s0
/opt/(.*/)?bin(/.*)?	system_u:object_r:bin_t:s0
/etc/.*	system_u:object_r:etc_t:s0
/etc/default(/.*)?	system_u:object_r:etc_default_t:s0
/etc/(a|b)/x	system_u:object_r:ab_t:s0
/etc/ld\.so\.preload	--	system_u:object_r:exact_t:s0
/etc/ld.*	system_u:object_r:pattern_t:s0
/etc/systemd/system(/.*)?	system_u:object_r:systemd_unit_t:s0
/etc/systemd/system/[^/]+\.socket	-s	system_u:object_r:of_sockets_t:s0
/usr/lib/systemd/system(/.*)?	system_u:object_r:systemd_unit_t:s0
/var/run/.*	system_u:object_r:var_run_t:s0
/var/run/secrets	<<none>>
/proc/.*	<<none>>
/media/(?>atomic)x?	system_u:object_r:pcre_t:s0
/media/(unclosed	system_u:object_r:broken_t:s0
/odd	-q	system_u:object_r:no_kind_t:s0
"""
LOCAL = (
    "/opt/intel/bin/mine	system_u:object_r:mine_t:s0\n/etc/over(/.*)?	system_u:object_r:local_t:s0\n"
)
SUBSTITUTIONS = "/run /var/run\n/run/systemd/system /usr/lib/systemd/system\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    policy = tmp_path / "etc/selinux/special/contexts/files"
    policy.mkdir(parents=True)
    (policy / "file_contexts").write_text(CONTEXTS)
    (policy / "file_contexts.local").write_text(LOCAL)
    (policy / "file_contexts.subs").write_text("/srv/opt /opt\n")
    (policy / "file_contexts.subs_dist").write_text(SUBSTITUTIONS)
    (tmp_path / "etc/selinux/config").write_text("# SELINUXTYPE=no\nSELINUXTYPE=special\n")
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").write_text("0")
    return tmp_path


def switch_off(root: Path) -> None:
    (root / "sys/fs/selinux/enforce").unlink()


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        ("/opt/intel/bin/cri-resmgr", stat.S_IFREG, "bin_t"),
        ("/opt/intel/bin", stat.S_IFDIR, "bin_t"),
        ("/opt/intel", stat.S_IFDIR, "usr_t"),
        ("/opt", stat.S_IFDIR, "usr_t"),
        ("/opt", stat.S_IFREG, "default_t"),
        ("/opt/intel/binary", stat.S_IFREG, "usr_t"),
        ("/opt/intel/bin/mine", stat.S_IFREG, "mine_t"),
        ("/etc/default/cri-resource-manager", stat.S_IFREG, "etc_default_t"),
        ("/etc/cri-resmgr/fallback.cfg", stat.S_IFREG, "etc_t"),
        ("/etc/a/x", stat.S_IFREG, "ab_t"),
        ("/etc/ld.so.preload", stat.S_IFREG, "exact_t"),
        ("/etc/ld.so.preload", stat.S_IFDIR, "pattern_t"),
        ("/etc/ldXsoXpreload", stat.S_IFREG, "pattern_t"),
        ("/etc/over/x", stat.S_IFREG, "local_t"),
        ("/etc/systemd/system/x.socket", stat.S_IFREG, "systemd_unit_t"),
        ("/run/cri-resmgr-installer", stat.S_IFDIR, "var_run_t"),
        ("/run/systemd/system/x.service", stat.S_IFREG, "systemd_unit_t"),
        ("/running", stat.S_IFREG, "default_t"),
        ("/srv/opt/bin/x", stat.S_IFREG, "bin_t"),
        ("/odd", stat.S_IFREG, "default_t"),
        ("/media/(unclosed", stat.S_IFREG, "default_t"),
        ("/proc/x", stat.S_IFREG, ""),
        ("/run/secrets", stat.S_IFDIR, ""),
    ],
)
def test_the_label_is_the_one_of_the_last_line_that_is_most_precise(
    root: Path, path: str, kind: int, expected: str
) -> None:
    found = FilePolicy(RootedFiles(root).read).label(path, kind)
    assert found == (f"system_u:object_r:{expected}:s0" if expected else "")


def test_without_selinux_nothing_has_a_label(root: Path) -> None:
    switch_off(root)
    assert FilePolicy(RootedFiles(root).read).label("/opt/intel/bin", stat.S_IFDIR) == ""


class Labelling(Kernel):
    """Keeps labels itself: only root may set them, and not on every kernel."""

    def __init__(self) -> None:
        self.given: dict[str, bytes] = {}
        self.fails = 0

    def attribute(self, place: str | int, name: str, value: bytes) -> None:
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        assert name == "security.selinux"
        name = os.path.basename(os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place)
        self.given[name.split(".cri-resmgr-installer")[0].lstrip(".")] = value


def test_files_directories_and_links_get_their_label_before_they_are_seen(root: Path) -> None:
    kernel = Labelling()
    files = RootedFiles(root, kernel, labels=True)
    files.make_directory("/opt/intel/bin")
    files.write("/opt/intel/bin/x", b"1", 0o755, os.geteuid(), os.getegid())
    files.link("/etc/ld", "elsewhere", os.geteuid(), os.getegid())
    labels = {name: value.decode().split(":")[2] for name, value in kernel.given.items()}
    assert labels == {"opt": "usr_t", "intel": "usr_t", "bin": "bin_t", "x": "bin_t", "ld": "pattern_t"}
    assert all(value.endswith(b":s0\0") for value in kernel.given.values())
    assert not files.unlabelled


def test_an_original_gets_the_label_that_it_had(root: Path) -> None:
    kernel = Labelling()
    files = RootedFiles(root, kernel, labels=True)
    (root / "opt").mkdir()
    theirs = b"system_u:object_r:theirs_t:s0\0"
    attributes = [("security.selinux", theirs.hex())]
    files.write("/opt/x", b"1", 0o755, os.geteuid(), os.getegid(), attributes=attributes)
    assert kernel.given == {"x": theirs}


def test_a_label_that_is_refused_keeps_no_file_from_being_written(root: Path) -> None:
    kernel = Labelling()
    kernel.fails = errno.EPERM
    files = RootedFiles(root, kernel, labels=True)
    files.make_directory("/opt")
    files.write("/opt/x", b"1", 0o755, os.geteuid(), os.getegid())
    assert files.read("/opt/x") == b"1"
    assert files.unlabelled == ["/opt: Operation not permitted", "/opt/x: Operation not permitted"]


def test_a_policy_without_tables_labels_nothing(root: Path) -> None:
    (root / "etc/selinux/config").write_text("SELINUXTYPE=other\n")
    kernel = Labelling()
    RootedFiles(root, kernel, labels=True).make_directory("/opt")
    assert not kernel.given
