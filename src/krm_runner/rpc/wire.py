"""The two messages of the evaluator protocol, read and written by hand.

A resource list of megabytes is only passed on, so no message object is made for it: the request is read in place, and
the response is joined once (docs/adr/0001). The format is that of proto/evaluator.proto; tests hold it against the
generated classes.
"""

from __future__ import annotations

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_RESOURCE_LIST, _IMAGE, _LOG = 1, 2, 2
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """The bytes are no such message."""


def decode_request(message: bytes) -> tuple[str, memoryview]:
    """Image and resource list of an EvaluateFunctionRequest."""
    fields = _bytes_fields(message)
    try:
        image = str(fields.get(_IMAGE, b""), "utf-8")
    except UnicodeDecodeError as error:
        raise WireError("the image is not UTF-8 text") from error
    return image, fields.get(_RESOURCE_LIST, memoryview(b""))


def decode_response(message: bytes) -> tuple[memoryview, memoryview]:
    """Resource list and log of an EvaluateFunctionResponse."""
    fields = _bytes_fields(message)
    return fields.get(_RESOURCE_LIST, memoryview(b"")), fields.get(_LOG, memoryview(b""))


def encode_request(image: str, resource_list: bytes | memoryview) -> bytes:
    """An EvaluateFunctionRequest."""
    return b"".join((*_bytes_field(_RESOURCE_LIST, resource_list), *_bytes_field(_IMAGE, image.encode())))


def encode_response(resource_list: bytes | memoryview, log: bytes) -> bytes:
    """An EvaluateFunctionResponse."""
    return b"".join((*_bytes_field(_RESOURCE_LIST, resource_list), *_bytes_field(_LOG, log)))


def field_overhead(size: int) -> int:
    """How many bytes a field of `size` bytes takes on top of its content."""
    return 1 + len(_varint(size))


def _bytes_fields(message: bytes) -> dict[int, memoryview]:
    """The length-delimited fields by number, in place; of a field that stands twice the last one counts."""
    view = memoryview(message)
    fields: dict[int, memoryview] = {}
    position = 0
    while position < len(view):
        tag, position = _read_varint(view, position)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        start, position = _field_extent(view, position, wire_type)
        if wire_type == _LENGTH_DELIMITED:
            fields[number] = view[start:position]
    return fields


def _bytes_field(number: int, content: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    if not content:
        return b"", b""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)), content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(view):
            raise WireError("it ends in the middle of a field")
        byte = view[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise WireError("a number is too long")


def _field_extent(view: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    """Where the content of a field begins and ends."""
    if wire_type == _VARINT:
        start, end = position, _read_varint(view, position)[1]
    elif wire_type == _LENGTH_DELIMITED:
        size, start = _read_varint(view, position)
        end = start + size
    elif wire_type in (_FIXED64, _FIXED32):
        start, end = position, position + (8 if wire_type == _FIXED64 else 4)
    else:
        raise WireError(f"a field has the unknown wire type {wire_type}")
    if end > len(view):
        raise WireError("it ends in the middle of a field")
    return start, end
