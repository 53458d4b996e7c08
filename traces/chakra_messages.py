"""Chakra messages: a file as a row of messages, protobuf or JSON, and back.

The descriptors are made at run time from the public field numbers (MLCommons
Chakra schema 0.0.4), so no generated code is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from perfmodel.base.errors import TraceError
from traces.packed import BATCH_BYTES, Chunks

_MAX_MESSAGE_BYTES = 16 * 2**20
_LONGEST_LENGTH_BYTES = 10
# In the order of the schema: each takes two field numbers, for one value and for a list.
_SCALARS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)


class ChakraKind(IntEnum):
    """What an operation is."""

    INVALID = 0
    METADATA = 1
    MEMORY_LOAD = 2
    MEMORY_STORE = 3
    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7
    STORAGE = 8
    BATCH = 9
    CHECKPOINT = 10


def split_bytes(chunks: Chunks, text: bytes) -> Iterator[bytes]:
    """Messages behind their lengths."""
    offset = place = 0
    while True:
        if len(text) - place < _LONGEST_LENGTH_BYTES:
            offset, text, place = offset + place, text[place:] + chunks.read(BATCH_BYTES), 0
        if place == len(text):
            return
        size, start = read_length(text, place, chunks.path, offset)
        if size > _MAX_MESSAGE_BYTES:
            raise TraceError(_early_end(chunks, offset + place, size, "which no operation is"))
        if start + size > len(text):
            offset, start, text, place = offset + place, start - place, text[place:], 0
            text += chunks.read(start + size - len(text))
        if start + size > len(text):
            left = f"but only {len(text) - start} bytes are left"
            raise TraceError(_early_end(chunks, offset, size, left))
        yield text[start : start + size]
        place = start + size


def _early_end(chunks: Chunks, offset: int, size: int, left: str) -> str:
    damage = f" ({chunks.fault})" if chunks.fault else ""
    return (
        f"{chunks.path}: the message at byte {offset} must be {size} bytes long, {left}{damage}. "
        "The file ends early or is no Chakra trace."
    )


def read_length(text: bytes, place: int, path: Path, offset: int) -> tuple[int, int]:
    """The length of the message at *place* of *text*, and where it begins."""
    value = 0
    for digit in range(_LONGEST_LENGTH_BYTES):
        if place + digit >= len(text):
            break
        letter = text[place + digit]
        value |= (letter & 0x7F) << (7 * digit)
        if letter < 0x80:
            return value, place + digit + 1
    raise TraceError(f"{path}: no message length at byte {offset + place}. It is no Chakra trace.")


def split_text(chunks: Chunks, first: bytes) -> Iterator[bytes]:
    """JSON objects one behind the other; text without an end is read twice as far each time."""
    decoder, text = json.JSONDecoder(), first.decode("utf-8", errors="replace")
    while True:
        text = text.lstrip(" \t\r\n,")
        try:
            found, end = decoder.raw_decode(text) if text else (None, 0)
        except (json.JSONDecodeError, RecursionError) as fault:
            more = chunks.read(max(len(text), BATCH_BYTES))
            if not more or len(text) > _MAX_MESSAGE_BYTES:
                raise TraceError(
                    f"{chunks.path}: must hold JSON objects one behind the other; the last has no "
                    f"end or is damaged ({fault!s:.80})."
                ) from None
            text += more.decode("utf-8", errors="replace")
            continue
        if not text:
            return
        if isinstance(found, dict):
            yield json.dumps(found).encode()
        text = text[end:] or chunks.read(BATCH_BYTES).decode("utf-8", errors="replace")


def parse_bytes(kind: str, item: bytes) -> Any:
    """A message of *kind* from protobuf."""
    return MESSAGES[kind].FromString(item)


def parse_text(kind: str, item: bytes) -> Any:
    """A message of *kind* from JSON."""
    return json_format.Parse(_with_numbers(item), MESSAGES[kind](), ignore_unknown_fields=True)


def _with_numbers(item: bytes) -> str:
    """Kinds of operations as numbers: our descriptors do not know their names."""
    words = json.loads(item)
    kind = words.get("type")
    if isinstance(kind, str):
        if kind not in _KIND_WORDS:
            raise ValueError(f"type {kind!r:.40} is no kind of operation")
        words["type"] = int(_KIND_WORDS[kind])
    return json.dumps(words)


_KIND_WORDS = {
    "INVALID_NODE": ChakraKind.INVALID,
    "METADATA_NODE": ChakraKind.METADATA,
    "MEM_LOAD_NODE": ChakraKind.MEMORY_LOAD,
    "MEM_STORE_NODE": ChakraKind.MEMORY_STORE,
    "COMP_NODE": ChakraKind.COMPUTE,
    "COMM_SEND_NODE": ChakraKind.SEND,
    "COMM_RECV_NODE": ChakraKind.RECEIVE,
    "COMM_COLL_NODE": ChakraKind.COLLECTIVE,
    "STORAGE_NODE": ChakraKind.STORAGE,
    "BATCH_NODE": ChakraKind.BATCH,
    "CHECKPOINT_NODE": ChakraKind.CHECKPOINT,
}


def frame_message(message: Any) -> bytes:
    """*message* behind its length."""
    content: bytes = message.SerializeToString(deterministic=True)
    size, head = len(content), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def _schema() -> Any:
    """The file descriptor: field numbers are the public ones of the Chakra schema."""
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="perfmodel_chakra.proto", package="perfmodel.chakra", syntax="proto3"
    )

    def add(message: Any, name: str, number: int, kind: str, **more: Any) -> None:
        many = more.pop("many", False)
        label = proto.LABEL_REPEATED if many else proto.LABEL_OPTIONAL
        is_message = kind.startswith(".")
        code = proto.TYPE_MESSAGE if is_message else getattr(proto, f"TYPE_{kind.upper()}")
        added = message.field.add(name=name, number=number, type=code, label=label, **more)
        if is_message:
            added.type_name = kind

    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    for place, scalar in enumerate(_SCALARS):
        values = file.message_type.add(name=f"{scalar.capitalize()}List")
        add(values, "values", 1, scalar, many=True)
        add(attribute, f"{scalar}_val", 3 + 2 * place, scalar, oneof_index=0)
        kind = f".perfmodel.chakra.{scalar.capitalize()}List"
        add(attribute, f"{scalar}_list", 4 + 2 * place, kind, oneof_index=0)
    head = file.message_type.add(name="GlobalMetadata")
    add(head, "version", 1, "string")
    add(head, "attr", 2, ".perfmodel.chakra.AttributeProto", many=True)
    tensors = file.message_type.add(name="IOInfo")
    for number, word in enumerate(("values", "shapes", "types"), start=1):
        add(tensors, word, number, "string")
    operation = file.message_type.add(name="Node")
    add(operation, "id", 1, "uint64")
    add(operation, "name", 2, "string")
    add(operation, "type", 3, "int32")
    add(operation, "ctrl_deps", 4, "uint64", many=True)
    add(operation, "data_deps", 5, "uint64", many=True)
    add(operation, "start_time_micros", 6, "uint64")
    add(operation, "duration_micros", 7, "uint64")
    add(operation, "inputs", 8, ".perfmodel.chakra.IOInfo")
    add(operation, "outputs", 9, ".perfmodel.chakra.IOInfo")
    add(operation, "attr", 10, ".perfmodel.chakra.AttributeProto", many=True)
    return file


def _message_classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_schema())
    return {
        word: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"perfmodel.chakra.{word}")
        )
        for word in ("GlobalMetadata", "Node")
    }


MESSAGES = _message_classes()
"""By name, the classes of the two kinds of messages that a file holds."""
