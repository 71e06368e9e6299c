"""What the record's claims mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from installer.host.files import RootedFiles
from installer.model import paths
from installer.model.controls import Control
from installer.model.host import ABSENT, FileState, Kind, Part
from installer.node.record import (
    SCHEMA,
    Goes,
    LoadedRecord,
    Owned,
    Record,
    RecordStatus,
    base_claims,
    dump_record,
    load_record,
)

THEIRS = FileState(Kind.FILE, 0o644, 0, 0, 3, "a" * 64)
OURS = ("b" * 64,)
DROP_INS = "/etc/systemd/system/kubelet.service.d"


@pytest.mark.parametrize(
    ("path", "claim", "is_base"),
    [
        (f"{DROP_INS}/10-kubeadm.conf", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), True),
        ("/usr/lib/systemd/system/kubelet.service", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), True),
        ("/etc/default/kubelet", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), True),
        (f"{DROP_INS}/{paths.DROP_IN_NAME}", Owned(Part.KUBELET, before=THEIRS, wrote=OURS), False),
        (paths.KUBELET_ENVIRONMENT, Owned(Part.KUBELET, before=THEIRS, wrote=OURS), False),
        (f"{DROP_INS}/10-kubeadm.conf", Owned(Part.KUBELET, before=ABSENT, wrote=OURS), False),
        (paths.FALLBACK_CONFIG, Owned(Part.PROXY, before=THEIRS, wrote=OURS), False),
    ],
)
def test_which_claims_are_kubelets_own_files_that_a_takeover_repairs(
    path: str, claim: Owned, is_base: bool
) -> None:
    assert list(base_claims(Record(owned={path: claim}))) == ([path] if is_base else [])


# -- what is read again -------------------------------------------------------------------------------


Read = Callable[..., LoadedRecord]
FALLBACK = Owned(Part.PROXY, before=THEIRS, wrote=OURS)
OWNED = Record(machine_id="m", hostname="node", owned={paths.FALLBACK_CONFIG: FALLBACK})


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes a record, and reads it on a machine with this ID."""

    def read(record: Record, machine_id: str = "m", damage: Callable[[bytes], bytes] = bytes) -> LoadedRecord:
        files = RootedFiles(tmp_path)
        files.make_directory(paths.OUR_STATE)
        files.write(paths.RECORD, damage(dump_record(record)), 0o600)
        return load_record(files, machine_id, "node")

    return read


def test_the_next_version_may_have_written_it_and_no_later_one(read: Read) -> None:
    for ahead, status in ((0, RecordStatus.OK), (1, RecordStatus.OK), (2, RecordStatus.FUTURE)):
        assert read(replace(OWNED, schema=SCHEMA + ahead)).status is status


@pytest.mark.parametrize(("uid", "mode"), [(0, 0o600), (1000, 0o7777), (0xFFFF_FFFE, 0o644)])
def test_the_original_of_any_owner_and_mode_is_kept(read: Read, uid: int, mode: int) -> None:
    before = replace(THEIRS, uid=uid, gid=uid, mode=mode)
    owned = {path: replace(each, before=before) for path, each in OWNED.owned.items()}
    assert read(replace(OWNED, owned=owned)).record.owned == owned


@pytest.mark.parametrize("machine_id", ["a", "z"])
def test_the_record_of_another_machine_is_foreign(read: Read, machine_id: str) -> None:
    assert read(OWNED, machine_id).status is RecordStatus.FOREIGN


@pytest.mark.parametrize("digit", [b"0", b"f"])
def test_a_record_that_is_not_as_it_was_written_is_corrupt(read: Read, digit: bytes) -> None:
    def damage(raw: bytes) -> bytes:
        """Of the file's own digest, the first digit that is another one."""
        at = raw.rindex(b'"', 0, raw.rindex(b'"')) + 1
        return raw[:at] + (digit * 64) + raw[at + 64 :]

    assert read(OWNED, damage=damage).status is RecordStatus.CORRUPT


def test_a_record_whose_checksum_cannot_be_read_is_corrupt(read: Read) -> None:
    """Twice damaged: in what it says, and in its last line."""

    def damage(raw: bytes) -> bytes:
        return raw.replace(OURS[0].encode(), b"0" * 64).replace(b',\n "checksum"', b', "checksum"')

    assert read(OWNED, damage=damage).status is RecordStatus.CORRUPT


def owning(path: str = paths.FALLBACK_CONFIG, **original: object) -> Record:
    before = replace(THEIRS, **original)  # type: ignore[arg-type]
    return replace(OWNED, owned={path: replace(FALLBACK, before=before)})


@pytest.mark.parametrize(
    "record",
    [
        owning(mode=0o10000),
        owning(uid=0xFFFF_FFFF),
        owning(gid=-1),
        owning(size=-1),
        owning(digest="../../etc/passwd"),
        owning("/etc/../etc/shadow"),
        replace(OWNED, owned={"/etc": Owned(goes=Goes.WHOLE)}),
        replace(OWNED, controls={Control.RESCTRL: {"/etc/passwd": "x"}}),
        replace(OWNED, controls={Control.RESCTRL: {"/sys/../etc/passwd": "x"}}),
    ],
)
def test_a_record_that_we_cannot_have_written_is_corrupt_although_its_checksum_is_right(
    read: Read, record: Record
) -> None:
    """It decides what is deleted, and what is written to."""
    assert read(record).status is RecordStatus.CORRUPT


ENVIRONMENT = paths.KUBELET_ENVIRONMENT


@pytest.mark.parametrize(
    ("path", "part", "found", "believed"),
    [
        (paths.FALLBACK_CONFIG, Part.PROXY, "as we wrote it", True),
        (paths.FALLBACK_CONFIG, Part.PROXY, "with our header", True),
        (paths.FALLBACK_CONFIG, Part.PROXY, "edited", False),
        (paths.FALLBACK_CONFIG, Part.PROXY, "absent", False),
        # An edited drop-in must not keep the kubelet of a renamed machine on the relay.
        (ENVIRONMENT, Part.KUBELET, "edited", True),
        (ENVIRONMENT, Part.KUBELET, "a link", False),
        (ENVIRONMENT, Part.KUBELET, "absent", False),
    ],
)
def test_on_a_renamed_machine_only_what_is_certainly_ours_stays_ours(
    read: Read, tmp_path: Path, path: str, part: Part, found: str, believed: bool
) -> None:
    ours, original = b"ours\n", "c" * 64
    files = RootedFiles(tmp_path)
    files.make_directory(str(Path(path).parent))
    if found == "a link":
        (tmp_path / path.removeprefix("/")).symlink_to("/dev/null")
    elif found != "absent":
        content = {
            "as we wrote it": ours,
            "with our header": b"# Managed by cri-resmgr-installer.\nnewer\n",
            "edited": b"theirs\n",
        }
        files.write(path, content[found], 0o644)
    claim = Owned(part, before=replace(THEIRS, digest=original), wrote=(sha256(ours).hexdigest(),))

    loaded = read(Record(machine_id="m", hostname="old name", owned={path: claim}))

    assert loaded.status is RecordStatus.FOREIGN
    assert list(loaded.record.owned) == ([path] if believed else [])
    assert loaded.orphans == (() if believed else (original,))
