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
from installer.model.host import (
    ABSENT,
    DesiredFile,
    FileState,
    HostSnapshot,
    Kind,
    KubeletBase,
    KubeletSnapshot,
    Part,
    ProxySnapshot,
    UnitState,
    UnitText,
)
from installer.model.plan import Desired, DesiredUnit
from installer.node.record import (
    SCHEMA,
    Goes,
    LoadedRecord,
    Owned,
    Record,
    RecordStatus,
    base_claims,
    dump_record,
    is_proven,
    leftovers_of_ours,
    load_record,
    may_be_earlier,
    was_moving_kubelet,
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


@pytest.mark.parametrize(
    ("uid", "mode", "size"), [(0, 0, 0), (1000, 0o7777, 3), (0xFFFF_FFFE, 0o644, 1 << 62)]
)
def test_the_original_of_any_owner_mode_and_size_is_kept(read: Read, uid: int, mode: int, size: int) -> None:
    before = replace(THEIRS, uid=uid, gid=uid, mode=mode, size=size)
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


def test_a_record_of_0_1_0_does_not_say_that_nothing_is_ours(read: Read) -> None:
    """It has no list of what is owned, but one of claims."""

    def older(raw: bytes) -> bytes:
        return raw[: raw.index(b',\n "checksum"')].replace(b'"owned":', b'"claims":') + b"}\n"

    assert read(OWNED, damage=older).status is RecordStatus.CORRUPT


def owning(path: str = paths.FALLBACK_CONFIG, **original: object) -> Record:
    before = replace(THEIRS, **original)  # type: ignore[arg-type]
    return replace(OWNED, owned={path: replace(FALLBACK, before=before)})


@pytest.mark.parametrize(
    "record",
    [
        owning(mode=0o10000),
        owning(uid=0xFFFF_FFFF),
        owning(gid=-1),
        owning(mode=-1),
        owning(size=-1),
        owning(size=(1 << 62) + 1),
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

    assert loaded.status is RecordStatus.RENAMED
    assert list(loaded.record.owned) == ([path] if believed else [])
    assert loaded.orphans == (() if believed else (original,))
    assert loaded.unclaimed == (() if believed or found == "absent" else (path,))


# -- what is judged by it -------------------------------------------------------------------------------

PROXY = DesiredUnit(paths.PROXY_UNIT, paths.PROXY_UNIT_FILE, "e" * 16, "g")
DROP_IN = f"{DROP_INS}/{paths.DROP_IN_NAME}"


def good(*files: DesiredFile) -> Desired:
    return Desired(files, PROXY)


def host(
    files: dict[str, FileState] | None = None, unit: UnitState | None = None, text: str = "", **more: object
) -> HostSnapshot:
    base = KubeletBase(texts=(UnitText("/etc/systemd/system/kubelet.service", text),))
    proxy, kubelet = ProxySnapshot(unit or UnitState("")), KubeletSnapshot(UnitState("kubelet.service"))
    return HostSnapshot(proxy, kubelet, files or {}, base=base, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "is_judged"),
    [
        (paths.BINARY, True),
        (paths.FALLBACK_CONFIG, True),
        (paths.FORCE_CONFIG, True),
        (paths.PROXY_ENVIRONMENT, False),
    ],
)
def test_what_was_verified_is_not_tried_in_private_again(path: str, is_judged: bool) -> None:
    record = Record(good=good(DesiredFile.of(path, b"verified")))
    assert is_proven(record, record.good or Desired())
    assert is_proven(record, good(DesiredFile.of(path, b"other"))) is not is_judged
    assert is_proven(record, good()) is not is_judged
    assert is_proven(Record(), good(DesiredFile.of(path, b"other"))) is not is_judged


@pytest.mark.parametrize(
    ("before", "state", "removed", "undone"),
    [
        (ABSENT, "inactive", True, True),
        (ABSENT, "active", True, True),
        (FileState(Kind.DIRECTORY), "inactive", True, False),
        (FileState(Kind.DIRECTORY), "active", True, False),
    ],
)
def test_an_undone_change_leaves_the_state_of_cri_resmgr_that_was_there(
    before: FileState, state: str, removed: bool, undone: bool
) -> None:
    ours = Owned(goes=Goes.WHOLE, before=before)
    record = Record(owned={paths.PROXY_STATE[0]: ours, paths.FALLBACK_CONFIG: FALLBACK})
    snapshot = host(unit=UnitState(paths.PROXY_UNIT, active_state=state), leftovers=paths.PROXY_STATE[:1])
    assert bool(leftovers_of_ours(record, snapshot)) is removed
    assert bool(leftovers_of_ours(record, snapshot, undone=True)) is undone


@pytest.mark.parametrize(
    ("found", "good_digest", "composed", "moving"),
    [
        ("b" * 64, "", True, True),
        ("b" * 64, "", False, False),
        ("b" * 64, "c" * 64, True, True),
        ("b" * 64, "b" * 64, True, False),  # as verified
        ("d" * 64, "", True, False),  # someone else's
        ("", "", True, True),
        ("", "c" * 64, True, False),  # someone has deleted it
    ],
)
def test_a_run_was_moving_kubelet_if_it_wrote_what_is_not_good_yet(
    found: str, good_digest: str, composed: bool, moving: bool
) -> None:
    kept = (DesiredFile(DROP_IN, 0o644, Part.KUBELET, good_digest, 1),) if good_digest else ()
    claims = {DROP_IN: Owned(Part.KUBELET, wrote=OURS), paths.FALLBACK_CONFIG: FALLBACK}
    record = Record(owned=claims, good=good(*kept) if kept else None)
    there = FileState(Kind.FILE, digest=found) if found else ABSENT
    files = {DROP_IN: there, paths.FALLBACK_CONFIG: FileState(Kind.FILE, digest=OURS[0])}
    assert was_moving_kubelet(record, host(files, composed=composed)) is moving


LOADED = UnitState(paths.PROXY_UNIT, fragment_path=paths.PROXY_UNIT_FILE)


@pytest.mark.parametrize(
    ("record", "unit", "text", "worth_a_look"),
    [
        (Record(), None, "", False),
        (Record(), LOADED, "", True),
        (Record(owned={paths.PROXY_UNIT_FILE: Owned(wrote=OURS)}), LOADED, "", False),
        (Record(), None, f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}", True),
        (
            Record(owned={"/etc/default/kubelet": Owned(Part.KUBELET, before=THEIRS, wrote=OURS)}),
            None,
            "",
            True,
        ),
        (Record(good=Desired(proxy=replace(PROXY, generation=""))), None, "", True),
    ],
)
def test_a_closer_look_for_an_earlier_installation_is_worth_its_time(
    record: Record, unit: UnitState | None, text: str, worth_a_look: bool
) -> None:
    assert may_be_earlier(host(unit=unit, text=text), record) is worth_a_look
