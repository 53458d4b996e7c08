"""Chakra execution traces: one rank's operations with what each waits for.

A file is a sequence of messages: first the metadata, then one message per operation; as protobuf
each follows its length, as JSON they follow each other. The descriptors are made at run time from
the public field numbers (MLCommons Chakra schema 0.0.4), so no generated code is needed.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from perfmodel.base.errors import TraceError
from traces.execution_trace import TraceArgument, pair_arguments
from traces.file_stream import BATCH_BYTES, DEFAULT_LIMITS, Chunks, Limits, open_chunks

SCHEMA_VERSION = "0.0.4"
_MAX_DURATION_US = 10**12
_MAX_TEXT = 64 * 1024
_MAX_MESSAGE_BYTES = 16 * 2**20
_LONGEST_LENGTH_BYTES = 10
AttributeValue = int | float | bool | str | bytes | tuple[Any, ...]


class ChakraKind(IntEnum):
    """The kind of an operation."""

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


_KIND_WORDS = (
    "INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL",
    "STORAGE", "BATCH", "CHECKPOINT",
)  # fmt: skip
"""Names of the kinds in JSON, in the order of their numbers; each ends in _NODE."""


@dataclass(frozen=True, slots=True)
class ChakraOperation:
    """One operation; it starts when everything in *control* and *data* has ended."""

    number: int
    name: str
    kind: ChakraKind
    control: tuple[int, ...] = ()
    data: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    inputs: tuple[TraceArgument, ...] = ()
    outputs: tuple[TraceArgument, ...] = ()


@dataclass(frozen=True, slots=True)
class ChakraTrace:
    """The operations of one rank, in the order of the file."""

    document: str
    version: str
    operations: tuple[ChakraOperation, ...]
    faults: tuple[str, ...] = ()


def load_chakra(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> ChakraTrace:
    """Read the Chakra trace at *path*, protobuf or JSON, plain or gzip."""
    path = Path(path)
    with open_chunks(path, limits) as chunks:
        first = chunks.next()
        is_text = first.lstrip()[:1] == b"{"
        messages = split_text(chunks, first) if is_text else split_bytes(chunks, first)
        parse = _parse_text if is_text else _parse_bytes
        operations: dict[int, ChakraOperation] = {}
        try:
            head = parse("GlobalMetadata", next(messages, b""))
            for item in messages:
                found = _operation(parse("Node", item))
                limits.check_count(path, len(operations), "operations")
                if operations.setdefault(found.number, found) is not found:
                    raise TraceError(
                        f"{path}: every operation must have a unique id; "
                        f"{found.number} is used twice."
                    )
        except (DecodeError, ValueError, json_format.ParseError) as fault:
            raise TraceError(
                f"{path}: must hold Chakra messages, but one does not decode ({fault!s:.200}). "
                "Give a file written by a Chakra converter."
            ) from None
        if chunks.fault:
            raise TraceError(f"{path}: the compressed file is damaged ({chunks.fault}).")
    if not operations:
        raise TraceError(f"{path}: must hold at least one operation, holds none.")
    # Converters leave out operations, and let roots wait for a number 0 that none has.
    lost = [
        (operation.number, number)
        for operation in operations.values()
        for number in (*operation.control, *operation.data)
        if number and number not in operations
    ]
    faults = tuple(
        f"{len(lost)} waits are for operations that are not in the file "
        f"(operation {operation} waits for {number})"
        for operation, number in lost[:1]
    )
    return ChakraTrace(str(path), head.version, tuple(operations.values()), faults)


def is_chakra(head: bytes) -> bool:
    """Whether a file that begins with *head* is a Chakra trace, protobuf or JSON."""
    if head.lstrip()[:1] == b"{":
        words = (b'"ctrlDeps"', b'"dataDeps"', b'"durationMicros"', b'_NODE"')
        return any(word in head for word in words)
    try:
        size, start = _read_length(head, 0, Path(), 0)
        message = MESSAGES["GlobalMetadata"].FromString(head[start : start + size])
        if start + size >= len(head) > size:
            return bool(message.version or message.attr)
        size, start = _read_length(head, start + size, Path(), 0)
        if start + size > len(head):
            return bool(message.version or message.attr)
        first = MESSAGES["Node"].FromString(head[start : start + size])
    except (TraceError, DecodeError):
        return False
    return bool(first.name or first.id or first.attr)


def split_bytes(chunks: Chunks, text: bytes) -> Iterator[bytes]:
    """Protobuf messages, each after its length."""
    offset = place = 0
    while True:
        if len(text) - place < _LONGEST_LENGTH_BYTES:
            offset, text, place = offset + place, text[place:] + chunks.read(BATCH_BYTES), 0
        if place == len(text):
            return
        size, start = _read_length(text, place, chunks.path, offset)
        begin = offset + place
        if start + size > len(text) and size <= _MAX_MESSAGE_BYTES:
            offset, start, text, place = begin, start - place, text[place:], 0
            text += chunks.read(start + size - len(text))
        if start + size > len(text) or size > _MAX_MESSAGE_BYTES:
            left = f"but only {len(text) - start} bytes are left"
            left = "longer than any operation" if size > _MAX_MESSAGE_BYTES else left
            damage = f" ({chunks.fault})" if chunks.fault else ""
            raise TraceError(
                f"{chunks.path}: the message at byte {begin} must be {size} bytes long, "
                f"{left}{damage}. The file ends early or is not a Chakra trace."
            )
        yield text[start : start + size]
        place = start + size


def _read_length(text: bytes, place: int, path: Path, offset: int) -> tuple[int, int]:
    """The length of the message at *place* of *text*, and where it begins."""
    value = 0
    for digit, letter in enumerate(text[place : place + _LONGEST_LENGTH_BYTES]):
        value |= (letter & 0x7F) << (7 * digit)
        if letter < 0x80:
            return value, place + digit + 1
    raise TraceError(
        f"{path}: no message length at byte {offset + place}. It is not a Chakra trace."
    )


def split_text(chunks: Chunks, first: bytes) -> Iterator[bytes]:
    """JSON objects that follow each other; text without an end is read twice as far each time."""
    decoder, text = json.JSONDecoder(), first.decode("utf-8", errors="replace")
    while True:
        text = text.lstrip(" \t\r\n,")
        try:
            found, end = decoder.raw_decode(text) if text else (None, 0)
        except (json.JSONDecodeError, RecursionError) as fault:
            more = chunks.read(max(len(text), BATCH_BYTES))
            if not more or len(text) > _MAX_MESSAGE_BYTES:
                raise TraceError(
                    f"{chunks.path}: must hold JSON objects one after the other; the last has no "
                    f"end or is damaged ({fault!s:.80})."
                ) from None
            text += more.decode("utf-8", errors="replace")
            continue
        if not text:
            return
        if isinstance(found, dict):
            yield json.dumps(found).encode()
        text = text[end:] or chunks.read(BATCH_BYTES).decode("utf-8", errors="replace")


def _parse_bytes(kind: str, item: bytes) -> Any:
    return MESSAGES[kind].FromString(item)


def _parse_text(kind: str, item: bytes) -> Any:
    words = json.loads(item)
    # Our descriptors have no names for the kinds of operations, only numbers.
    stated = words.get("type")
    if isinstance(stated, str):
        word = stated.removesuffix("_NODE")
        if not stated.endswith("_NODE") or word not in _KIND_WORDS:
            raise ValueError(f"type {stated!r:.40} is not a kind of operation")
        words["type"] = _KIND_WORDS.index(word)
    return json_format.ParseDict(words, MESSAGES[kind](), ignore_unknown_fields=True)


def _operation(message: Any) -> ChakraOperation:
    if message.duration_micros > _MAX_DURATION_US:
        raise ValueError(f"operation {message.id} takes longer than eleven days")
    return ChakraOperation(
        number=message.id,
        name=message.name,
        kind=ChakraKind(message.type),
        control=tuple(message.ctrl_deps),
        data=tuple(message.data_deps),
        start_us=message.start_time_micros,
        duration_us=message.duration_micros,
        attributes=_attributes(message.attr),
        inputs=_arguments(message.inputs) if message.HasField("inputs") else (),
        outputs=_arguments(message.outputs) if message.HasField("outputs") else (),
    )


def _arguments(message: Any) -> tuple[TraceArgument, ...]:
    """Tensors and values, which are stored as text; none if the text is damaged."""
    texts = (message.shapes, message.types, message.values)
    shapes, kinds, values = (_list_of(text) for text in texts)
    return pair_arguments(values, shapes, kinds) if len(shapes) == len(kinds) else ()


def _list_of(text: str) -> list[Any]:
    if not text or len(text) > _MAX_TEXT:
        return []
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return found if isinstance(found, list) else []


def _attributes(items: Iterable[Any]) -> dict[str, AttributeValue]:
    values: dict[str, AttributeValue] = {}
    for item in items:
        word = item.WhichOneof("value")
        if word is not None:
            value = getattr(item, word)
            values[item.name] = tuple(value.values) if word.endswith("_list") else value
    return values


_PACKAGE = "perfmodel.chakra"
# In the order of the schema: each takes two field numbers, for one value and for a list.
_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_SCHEMA = {
    "AttributeProto": "name:string doc_string:string "
    + " ".join(f"{word}_val:{word} {word}_list:{word.capitalize()}List" for word in _SCALARS),
    **{f"{word.capitalize()}List": f"values:{word}*" for word in _SCALARS},
    "GlobalMetadata": "version:string attr:AttributeProto*",
    "IOInfo": "values:string shapes:string types:string",
    "Node": (
        "id:uint64 name:string type:int32 ctrl_deps:uint64* data_deps:uint64* "
        "start_time_micros:uint64 duration_micros:uint64 inputs:IOInfo outputs:IOInfo "
        "attr:AttributeProto*"
    ),
}
"""Fields of every message in the order of their public numbers, from 1; * means repeated."""


def _message_classes() -> dict[str, Any]:
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="perfmodel_chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    for word, fields in _SCHEMA.items():
        message = file.message_type.add(name=word)
        if word == "AttributeProto":
            message.oneof_decl.add(name="value")
        for number, entry in enumerate(fields.split(), start=1):
            name, kind = entry.rstrip("*").split(":")
            label = proto.LABEL_REPEATED if entry.endswith("*") else proto.LABEL_OPTIONAL
            added = message.field.add(name=name, number=number, label=label)
            if kind in _SCHEMA:
                added.type, added.type_name = proto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(proto, f"TYPE_{kind.upper()}")
            if word == "AttributeProto" and number > 2:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        word: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{word}"))
        for word in ("GlobalMetadata", "Node")
    }


MESSAGES = _message_classes()
"""By name, the classes of the two kinds of messages that a file holds."""
