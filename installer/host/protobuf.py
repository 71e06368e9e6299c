"""The protobuf wire format, as far as a few CRI messages need it. No schema, no code generation.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

Fields = dict[int, list[int | bytes]]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:  # a number of a million bytes would take minutes
            raise ValueError("protobuf: a number is longer than ten bytes")


def _walk(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"protobuf: wire type {kind} is not used by CRI")
        if at + size > len(data):
            raise ValueError("protobuf: the message is cut short")
        yield key >> 3, data[at : at + size]
        at += size


def decode(data: bytes) -> Fields:
    """Field number -> its values in order: int for varints, bytes for everything else.

    Raises ValueError for anything that is not a message.
    """
    fields: Fields = {}
    try:
        for number, value in _walk(data):
            fields.setdefault(number, []).append(value)
    except IndexError:
        raise ValueError("protobuf: the message is cut short") from None
    return fields


def encode(number: int, value: int | bytes) -> bytes:
    """One field: a varint, or bytes (a string, an embedded message)."""
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(fields: Fields, number: int) -> Fields:
    """The embedded message `number`; empty if it is not there."""
    return decode(last_bytes(fields, number))


def messages(fields: Fields, number: int) -> list[Fields]:
    """All embedded messages `number`."""
    return [decode(value) for value in fields.get(number, []) if isinstance(value, bytes)]


def text(fields: Fields, number: int) -> str:
    """The string `number`; empty if it is not there."""
    return last_bytes(fields, number).decode("utf-8", "replace")


def integer(fields: Fields, number: int) -> int:
    """The varint `number`; 0 if it is not there."""
    value = fields.get(number, [0])[-1]
    return value if isinstance(value, int) else 0


def mapping(fields: Fields, number: int) -> dict[str, str]:
    """The map<string, string> `number`."""
    return {text(entry, 1): text(entry, 2) for entry in messages(fields, number)}


def last_bytes(fields: Fields, number: int) -> bytes:
    """The bytes `number`; empty if they are not there."""
    value = fields.get(number, [b""])[-1]
    return value if isinstance(value, bytes) else b""
