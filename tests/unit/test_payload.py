"""The unpacked release: found, whole, executable, and its digest not read twice."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from installer.errors import InvalidInputError
from installer.inputs.load import Request, check_inputs, load_inputs
from installer.inputs.payload import BINARY, load_payload, verify_payload
from installer.inputs.settings import Settings
from installer.model.host import Identity
from installer.model.names import Mode
from installer.model.plan import Changes
from tests.lib.fakes import FakeValidator
from tests.lib.releases import elf, unpack


def fault(directory: Path) -> str:
    with pytest.raises(InvalidInputError) as caught:
        load_payload(directory)
    assert "tar" in caught.value.hint
    (only,) = caught.value.faults
    return only


@pytest.mark.parametrize(
    ("content", "machine"),
    [
        (elf(62), "x86_64"),
        (elf(183), "aarch64"),
        (elf(243), "riscv64"),
        (elf(21), "ppc64le"),
        (elf(21, little=False), "ppc64"),
        (elf(22, little=False), "s390x"),
        (elf(3, wide=False), "i686"),
        (elf(40, wide=False), "armv7l"),
        (elf(999), "ELF machine 999"),
        (b"#!/bin/sh\nexit 0\n", ""),
    ],
)
def test_a_whole_binary_is_taken(tmp_path: Path, content: bytes, machine: str) -> None:
    payload = load_payload(unpack(tmp_path, content))
    assert payload.machine == machine
    assert payload.binary.content == tmp_path / BINARY
    assert payload.binary.size == len(content)
    assert payload.binary.digest == hashlib.sha256(content).hexdigest()
    verify_payload(payload)


@pytest.mark.parametrize("length", [0, 1, 4, 20, 63])
def test_a_header_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    said = fault(unpack(tmp_path, elf()[:length]))
    assert any(word in said for word in ("truncated", "empty", "not a program"))


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o000])
def test_a_binary_must_be_executable(tmp_path: Path, mode: int) -> None:
    assert f"not executable (mode {mode:04o})" in fault(unpack(tmp_path, elf(), mode))


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "the payload directory" in fault(tmp_path / "nowhere")
    assert "missing; the payload is empty" in fault(tmp_path)
    (tmp_path / "cri-resource-manager-0.9.2").mkdir()
    assert "missing; the payload has cri-resource-manager-0.9.2" in fault(tmp_path)


def test_a_payload_that_cannot_be_looked_at_is_bad_input(tmp_path: Path) -> None:
    assert "cri-resmgr: File name too long" in fault(tmp_path / ("x" * 300))


def test_no_program_is_refused(tmp_path: Path) -> None:
    assert "not a program" in fault(unpack(tmp_path, b"<html>404 Not Found</html>"))


def test_the_payloads_own_digest_saves_reading_and_is_checked_before_a_write(tmp_path: Path) -> None:
    unpack(tmp_path, elf())
    right = hashlib.sha256(elf()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  etc/x\n{right} *./{BINARY}\n")
    verify_payload(load_payload(tmp_path))
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {BINARY}\n")
    payload = load_payload(tmp_path, lambda _path, _identity: pytest.fail("asked although it is listed"))
    assert payload.binary.digest == "0" * 64
    with pytest.raises(InvalidInputError, match=f"its sha256 is {right}, expected 0000") as caught:
        verify_payload(payload)
    assert "unpack it again" in caught.value.hint


@pytest.mark.parametrize("digest", ["", "xyz", "0" * 63])
def test_a_listed_digest_must_be_one(tmp_path: Path, digest: str) -> None:
    unpack(tmp_path, elf())
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  {BINARY}\n")
    assert "SHA256SUMS:1: not a sha256 digest" in fault(tmp_path)


def test_a_digest_known_by_identity_saves_reading(tmp_path: Path) -> None:
    unpack(tmp_path, elf())
    status = (tmp_path / BINARY).stat()
    asked: list[tuple[str, Identity]] = []

    def known(path: str, identity: Identity) -> str:
        asked.append((path, identity))
        return "known"

    assert load_payload(tmp_path, known).binary.digest == "known"
    ((path, identity),) = asked
    assert path == str(tmp_path / BINARY)
    assert identity == Identity.of(status)
    whole = load_payload(tmp_path, lambda _path, _identity: None)
    assert whole.binary.digest == hashlib.sha256(elf()).hexdigest()


def test_a_payload_that_vanishes_is_bad_input(tmp_path: Path) -> None:
    payload = load_payload(unpack(tmp_path, elf()))
    (tmp_path / BINARY).unlink()
    with pytest.raises(InvalidInputError, match="missing; the payload has opt"):
        verify_payload(payload)


def test_a_payload_that_may_not_be_started_lies_on_a_wrong_file_system(tmp_path: Path) -> None:
    request = Request(Mode.INSTALL, Settings(), unpack(tmp_path, elf()))
    validator = FakeValidator("unshare: failed to execute /tmp/x: Permission denied")
    with pytest.raises(InvalidInputError, match="failed to execute") as refused:
        check_inputs(load_inputs(request, lambda *_: None), Changes(), validator, proven=False)
    assert "noexec" in refused.value.hint


def test_the_version_is_what_the_payload_says(tmp_path: Path) -> None:
    unpack(tmp_path, elf())
    assert load_payload(tmp_path).version == ""
    (tmp_path / "opt/intel/share/doc/cri-resource-manager").mkdir(parents=True)
    assert load_payload(tmp_path).version == ""
    (tmp_path / "opt/intel/share/doc/cri-resource-manager-0.9.2").mkdir()
    assert load_payload(tmp_path).version == "0.9.2"
    (tmp_path / "VERSION").write_text("v0.9.3\n")
    assert load_payload(tmp_path).version == "v0.9.3"
