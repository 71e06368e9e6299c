"""Hostile records: no traceback, and a record that is not as it was written deletes nothing of somebody's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from installer.host.files import RootedFiles
from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import silent
from installer.model.host import FileState, Kind
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from installer.node.record import (
    Goes,
    LoadedRecord,
    Owned,
    Record,
    RecordStatus,
    dump_record,
    load_record,
)
from tests.faults.disks.crash import Tree, build, read_tree
from tests.faults.disks.node import Node, bare_node, program
from tests.faults.disks.recorder import Careless
from tests.faults.inputs.texts import hostile_text, spoilt
from tests.faults.inputs.trial import Trial, end_of

MACHINE = "0123456789abcdef0123456789abcdef"
_MARK = b"cri-resmgr-installer"
_PROGRAM = program("one")
_ENABLED = f"/etc/systemd/system/multi-user.target.wants/{paths.PROXY_UNIT}"
_PLACES = (
    *("/etc/shadow", "/etc", "/", "", "x", "/../x", "/etc/default/../../../x", "/a\0b", "/" + "x" * 300),
    *("/run", paths.OUR_STATE, paths.RECORD, f"{paths.OBJECTS}/../../x", "/etc/default/kubelet"),
)

SAMPLE = Record(
    machine_id=MACHINE,
    hostname="node",
    owned={
        paths.FALLBACK_CONFIG: Owned(
            before=FileState(Kind.FILE, 0o640, 0, 0, 9, "a" * 64), wrote=("b" * 64,)
        ),
        paths.BINARY: Owned(wrote=("c" * 64,)),
        paths.PROXY_ENVIRONMENT: Owned(before=FileState(Kind.SYMLINK, target="/etc/default/kubelet")),
        "/opt/intel": Owned(goes=Goes.EMPTY),
        "/opt/intel/bin": Owned(goes=Goes.EMPTY),
        paths.PROXY_CACHE: Owned(goes=Goes.WHOLE),
    },
)


def damaged(record: bytes) -> Iterable[bytes]:
    """Cut off at each byte, and each byte another one."""
    for at in range(len(record)):
        yield record[:at]
        yield record[:at] + bytes([record[at] ^ (1 << at % 8)]) + record[at + 1 :]


def _check_read(content: bytes, directory: Path) -> str:
    """What is read of it is what was written, or nothing; anything else is for no one to believe."""
    files = RootedFiles(directory)
    files.make_directory(paths.OUR_STATE)
    (directory / paths.RECORD[1:]).write_bytes(content)
    found: list[LoadedRecord] = []
    wrong = end_of(lambda: found.append(load_record(files, MACHINE, "node")))
    if wrong or found[0].status not in (RecordStatus.OK, RecordStatus.FOREIGN):
        return wrong
    return "" if found[0].record == SAMPLE or b"checksum" not in content else f"believed: {found[0].record}"


@dataclass(frozen=True, slots=True)
class Installed:
    """A node on which we are installed, somebody's files replaced, and the payload it came from."""

    tree: Tree
    payload: Path

    @property
    def record(self) -> bytes:
        return self.tree[paths.RECORD].content

    def lay(self, root: Path, record: bytes | None) -> Node:
        """The node again, with another record."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        build(self.tree, root)
        place = root / paths.RECORD[1:]
        if record is None:
            place.unlink()
        else:
            place.write_bytes(record)
        (root / "run").mkdir(exist_ok=True)
        return Node(root, Careless())


@cache
def install(directory: Path) -> Installed:
    """Once for each directory."""
    root, payload = directory / "root", directory / "payload"
    binary = payload / paths.BINARY[1:]
    binary.parent.mkdir(parents=True)
    binary.write_bytes(_PROGRAM)
    binary.chmod(0o755)
    root.mkdir()
    build(bare_node(), root)
    reconcile(_request(Mode.INSTALL, payload), Node(root, Careless()).fake.host, silent)
    return Installed(read_tree(root, ("/run",)), payload)


def _request(mode: Mode, payload: Path) -> Request:
    return Request(mode, Settings(kubelet=KubeletSettings(settle_seconds=1)), payload)


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to the record at `at`."""

    what: str
    at: int
    text: str

    def do(self, record: bytes) -> bytes | None:
        at = self.at % len(record)
        text = self.text.encode("utf-8", "surrogatepass")
        if self.what == "missing":
            return None
        if self.what == "cut":
            return record[:at]
        if self.what == "flip":
            return record[:at] + bytes([record[at] ^ (1 << self.at % 8)]) + record[at + 1 :]
        if self.what == "insert":
            return record[:at] + text + record[at:]
        return self._lie(json.loads(record))

    def _lie(self, data: dict[str, Any]) -> bytes:
        """As a version without a checksum would have written it: it says what it says, and is believed."""
        place = _PLACES[self.at % len(_PLACES)]
        if self.what == "claim":
            data["owned"][place] = {"before": {"digest": self.text}, "wrote": ["x"]}
        elif self.what in ("empty", "whole"):
            data["owned"][place] = {"goes": self.what}
        elif self.what == "machine":
            data["machine_id"] = self.text
        elif self.what == "good":
            data["good"]["files"][0] |= {"path": place, "digest": self.text, "mode": self.at}
        elif self.what == "value":
            data[list(data)[self.at % len(data)]] = self.text
        del data["checksum"]
        return json.dumps(data).encode()


_LIES = ("claim", "empty", "whole", "machine", "good", "value")
_KINDS = ("missing", "cut", "flip", "insert", *_LIES)
damages = st.builds(Damage, st.sampled_from(_KINDS), st.integers(0, 1 << 20), hostile_text)


def _check_removal(damage: Damage, directory: Path) -> str:
    """A removal does what node safety needs and ends as it should; nothing of somebody's is lost."""
    if not (directory / "payload").exists():
        install.cache_clear()
    first, root = install(directory), directory / "root"
    record = damage.do(first.record)
    node = first.lay(root, record)
    status = load_record(node.fake.files, MACHINE, "node").status
    before = read_tree(root, ("/run",))
    wrong = end_of(lambda: reconcile(_request(Mode.REMOVE, first.payload), node.fake.host, silent))
    if wrong or (damage.what in _LIES and status in (RecordStatus.OK, RecordStatus.FOREIGN)):
        return wrong  # what it says is believed, and may be reason to refuse
    if node.on_relay or node.proxy_runs or not node.kubelet_healthy():
        return "kubelet is not on its own endpoint, or the proxy runs"
    return _lost(before, read_tree(root, ("/run",)))


def _lost(before: Tree, after: Tree) -> str:
    """Somebody's files that are gone or others now, and contents that are nowhere any more."""
    for path, entry in before.items():
        ours = _MARK in entry.content[:512] or entry.content == _PROGRAM or path == _ENABLED
        if entry.kind == "d" or ours or path.startswith((f"{paths.OUR_STATE}/", "/var/lib/cri-resmgr/")):
            continue
        if after.get(path) != entry:
            return f"{path} was {entry} and is {after.get(path)}"
    left = {entry.content for entry in after.values()}
    for path, entry in before.items():
        kept = path.startswith(f"{paths.OBJECTS}/") and _MARK not in entry.content[:512]
        if kept and entry.content not in left and entry.content != _PROGRAM:
            return f"what somebody had in {path} is lost"
    return ""


TRIALS = (
    Trial(
        "the record, read",
        spoilt((dump_record(SAMPLE).decode(),)),
        _check_read,
        [
            *damaged(dump_record(SAMPLE)),
            b"[" * 1_000_000,
            b'{"schema": ' + b"[" * 100_000,
            b'{"schema": 1' + b"0" * 5000 + b"}",
        ],
    ),
    Trial(
        "the record, removal",
        damages,
        _check_removal,
        [Damage(kind, at, "x") for kind in _KINDS for at in range(len(_PLACES))],
    ),
)
