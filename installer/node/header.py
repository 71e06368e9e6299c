"""The header line of our files, the digest in it, and the generation of an environment file.

A file's digest is that of its text with both digests and the generation left out,
so it can be checked on any host with nothing but the file.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

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
    """One digest over all parts, in order; where one ends counts."""
    total = sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(b"%d:" % len(raw) + raw)
    return total.hexdigest()[:_LENGTH]


@lru_cache(maxsize=16)  # most of our files are the same each time that a run looks
def with_header(content: bytes) -> tuple[bytes, str]:
    """The content with its header line and digests filled in, and the digest.

    The header goes to the place kept for it (behind a `#!` line), or in front of
    content that is not ours and otherwise stays as it is.
    """
    if not _KEPT_PLACE.match(content):
        # A byte order mark may stand at the very beginning only, so not behind our line.
        content = _PLACE + content.removeprefix(b"\xef\xbb\xbf")
    digest = digest_of(_without_digests(content))
    header = f"# {_OWNER} {digest}\n".encode()
    content = _KEPT_PLACE.sub(lambda found: (found.group(1) or b"") + header, content)
    return _UNIT_LINE.sub(rb"\g<1>" + digest.encode(), content), digest


def without_header(content: bytes) -> bytes:
    """The content as it was before `with_header` put a line in front of it."""
    return _HEADER.sub(b"", content, count=1)


def digest_within(content: bytes) -> str:
    """The digest of a text as it is now; of an edited file it is not the one that it carries."""
    return digest_of(_without_digests(_HEADER.sub(_PLACE, content, count=1)))


def _without_digests(content: bytes) -> bytes:
    """The content without its unit digest and generation."""
    return _UNIT_LINE.sub(rb"\g<1>", _GENERATION_LINE.sub(rb"\g<1>", content))


def started_from(content: bytes) -> bytes:
    """What a process of this unit or environment file was started from: neither our digests are part of it,
    nor the deadlines of a start or stop, which matter at the next one only."""
    return _without_digests(_OF_A_JOB.sub(b"", _HEADER.sub(b"", content, count=1)))


def is_pending(content: bytes) -> bool:
    """Whether a run has marked this carrier, and has not come to its end."""
    found = _GENERATION_LINE.search(content)
    return found is not None and found.group(2).startswith(PENDING.encode())


def with_generation(content: bytes, generation: str) -> bytes:
    """The carrier with another generation (`pending-...`, or the real one).

    Raises ValueError if there is no such line, or if the generation cannot stand in it.
    """
    if not re.fullmatch(r"[A-Za-z0-9-]+", generation):
        raise ValueError(f"not a generation: {generation!r}")
    changed, count = _GENERATION_LINE.subn(rb"\g<1>" + generation.encode(), content)
    if count != 1:
        raise ValueError(f"{count} generation lines, not one")
    return changed
