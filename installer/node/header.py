"""The header line of our files, its digest, and the generation in an environment file.

A file's digest covers its text without both digests and the generation. So it can be checked on any host with
nothing but the file.
"""

from __future__ import annotations

import re
from functools import lru_cache

from installer.model.jsontext import sha256_hex
from installer.model.paths import GENERATION_VARIABLE, PENDING, UNIT_VARIABLE

_LENGTH = 16  # hex digits
_PLACE = b"# @HEADER@\n"
_OWNER = "Managed by cri-resmgr-installer, changes to this file do not last. Digest:"
_HEADER = re.compile(rb"^# Managed by [^\n]* Digest: [0-9a-f]{%d}\n" % _LENGTH, re.M)
_KEPT_PLACE = re.compile(rb"\A(#!.*\n)?" + _PLACE)
_UNIT_LINE = re.compile(
    rb"^(Environment=" + UNIT_VARIABLE.encode() + rb"=)(?:[0-9a-f]{%d}|@DIGEST@)$" % _LENGTH, re.M
)
_DEADLINES = rb"CRI_RESMGR_GUARD_SECONDS|TimeoutStartSec|TimeoutStopSec|JobRunningTimeoutSec"
_OF_A_JOB = re.compile(rb"^(?:" + _DEADLINES + rb")=.*\n", re.M)
_GENERATION_LINE = re.compile(rb"^(" + GENERATION_VARIABLE.encode() + rb"=)([A-Za-z0-9-]*)$", re.M)


def digest_of(*parts: str | bytes) -> str:
    """One digest over all parts, in order. Where one part ends and the next begins counts."""
    raw = [part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part for part in parts]
    return sha256_hex(b"".join(b"%d:" % len(each) + each for each in raw))[:_LENGTH]


@lru_cache(maxsize=16)  # most of our files stay the same during a run
def with_header(content: bytes) -> tuple[bytes, str]:
    """The content with its header line and digests filled in, and the digest.

    The header goes to its placeholder (after a `#!` line), or in front of content that is not ours and
    otherwise stays unchanged.
    """
    if not _KEPT_PLACE.match(content):
        # A byte order mark is valid only at the very beginning, so not after our line.
        content = _PLACE + content.removeprefix(b"\xef\xbb\xbf")
    digest = digest_of(_without_digests(content))
    header = f"# {_OWNER} {digest}\n".encode()
    content = _KEPT_PLACE.sub(lambda found: (found.group(1) or b"") + header, content)
    return _UNIT_LINE.sub(rb"\g<1>" + digest.encode(), content), digest


def without_header(content: bytes) -> bytes:
    """The content as it was before `with_header` added a line in front of it."""
    return _HEADER.sub(b"", content, count=1)


def digest_within(content: bytes) -> str:
    """The digest of a text as it is now. If the file was edited, it differs from the one in its header."""
    return digest_of(_without_digests(_HEADER.sub(_PLACE, content, count=1)))


def _without_digests(content: bytes) -> bytes:
    """The content without its unit digest and generation."""
    return _UNIT_LINE.sub(rb"\g<1>", _GENERATION_LINE.sub(rb"\g<1>", content))


def started_from(content: bytes) -> bytes:
    """What a process of this unit or environment file was started from: the content without our digests and
    without the deadlines of a start or stop, which matter only at the next one."""
    return _without_digests(_OF_A_JOB.sub(b"", _HEADER.sub(b"", content, count=1)))


def is_pending(content: bytes) -> bool:
    """Whether a run has marked this carrier and has not finished."""
    found = _GENERATION_LINE.search(content)
    return found is not None and found.group(2).startswith(PENDING.encode())


def with_generation(content: bytes, generation: str) -> bytes:
    """The carrier with another generation (`pending-...`, or the real one).

    Raises ValueError if there is no generation line, or the generation is malformed.
    """
    if not re.fullmatch(r"[A-Za-z0-9-]+", generation):
        raise ValueError(f"not a generation: {generation!r}")
    changed, count = _GENERATION_LINE.subn(rb"\g<1>" + generation.encode(), content)
    if count != 1:
        raise ValueError(f"{count} generation lines, not one")
    return changed
