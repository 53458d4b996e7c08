"""Chakra execution traces: one rank's operations with what each waits for.

A file is a row of messages: first the metadata, then one message an operation;
as protobuf each stands behind its length, as JSON they stand one behind the
other. The descriptors are made at run time from the public field numbers
(MLCommons Chakra schema 0.0.4), so no generated code is needed.
"""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from perfmodel.base.errors import TraceError
from perfmodel.base.writing import write_file
from traces.execution_trace import Argument
from traces.packed import BATCH_BYTES, DEFAULT_LIMITS, Chunks, Limits, open_chunks

SCHEMA_VERSION = "0.0.4"
_MAX_MESSAGE_BYTES = 16 * 2**20
_MAX_DURATION_US = 10**12
_MAX_WORDS = 64 * 1024
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
AttributeValue = int | float | bool | str | bytes | tuple[Any, ...]


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
    inputs: tuple[Argument, ...] = ()
    outputs: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class ChakraTrace:
    """The operations of one rank, in the order of the file."""

    document: str
    version: str
    operations: tuple[ChakraOperation, ...]
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def load_chakra(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> ChakraTrace:
    """Read the Chakra trace at *path*, protobuf or JSON, plain or gzip."""
    path = Path(path)
    with open_chunks(path, limits) as chunks:
        first = chunks.next()
        is_text = first.lstrip()[:1] == b"{"
        messages = _split_text(chunks, first) if is_text else _split(chunks, first)
        parse = _parse_text if is_text else _parse_bytes
        try:
            head = parse("GlobalMetadata", next(messages, b""))
            operations: dict[int, ChakraOperation] = {}
            for item in messages:
                found = _operation(parse("Node", item))
                _check_count(path, len(operations), limits)
                _check_own(path, found, operations)
                operations[found.number] = found
        except (DecodeError, ValueError, json_format.ParseError) as fault:
            raise TraceError(
                f"{path}: must hold Chakra messages, but one does not decode ({fault!s:.200}). "
                "Give a file written by a Chakra converter."
            ) from None
        if chunks.fault:
            raise TraceError(f"{path}: the compressed file is damaged ({chunks.fault}).")
    if not operations:
        raise TraceError(f"{path}: must hold at least one operation, holds none.")
    faults = _check_waits(operations)
    attributes = _attributes(head.attr)
    return ChakraTrace(str(path), head.version, tuple(operations.values()), attributes, faults)


def _check_own(path: Path, found: ChakraOperation, known: dict[int, ChakraOperation]) -> None:
    if found.number in known:
        raise TraceError(
            f"{path}: every operation must have an id of its own; "
            f"{found.number} must not stand twice."
        )


def _check_count(path: Path, count: int, limits: Limits) -> None:
    if count > limits.most_objects:
        raise TraceError(
            f"{path}: must hold at most {limits.most_objects} operations, holds more. Cut the "
            "recording, or raise the limits with --limits-factor."
        )


def is_chakra(head: bytes) -> bool:
    """Whether a file that begins with *head* is a Chakra trace, protobuf or JSON."""
    if head.lstrip()[:1] == b"{":
        words = (b'"ctrlDeps"', b'"dataDeps"', b'"durationMicros"', b'_NODE"')
        return any(word in head for word in words)
    try:
        size, start = _varint(head, 0, Path(), 0)
        message = _MESSAGES["GlobalMetadata"].FromString(head[start : start + size])
        if start + size >= len(head) > size:
            return bool(message.version or message.attr)
        size, start = _varint(head, start + size, Path(), 0)
        if start + size > len(head):
            return bool(message.version or message.attr)
        first = _MESSAGES["Node"].FromString(head[start : start + size])
    except (TraceError, DecodeError):
        return False
    return bool(first.name or first.id or first.attr)


def write_chakra(trace: ChakraTrace, path: Path | str) -> None:
    """Write *trace* to *path*; a name that ends in .gz is compressed."""
    path = Path(path)
    head = _MESSAGES["GlobalMetadata"](version=trace.version)
    _set_attributes(head.attr, trace.attributes)
    pieces = [_framed(head)]
    pieces.extend(_framed(_message(operation)) for operation in trace.operations)
    content = b"".join(pieces)
    # Without a stamp in it the same trace gives the same bytes.
    write_file(path, gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)


def _check_waits(operations: dict[int, ChakraOperation]) -> tuple[str, ...]:
    """Say how many wait for something absent: converters do leave out operations."""
    lost = [
        (operation.number, number)
        for operation in operations.values()
        for number in (*operation.control, *operation.data)
        # Converters let roots wait for a number 0 that nobody has.
        if number not in operations and number
    ]
    if not lost:
        return ()
    first, number = lost[0]
    return (
        (
            f"{len(lost)} waits are for operations that are not in the file "
            f"(operation {first} waits for {number})"
        ),
    )


def _split(chunks: Chunks, text: bytes) -> Iterator[bytes]:
    """Messages behind their lengths."""
    offset = place = 0
    while True:
        if len(text) - place < _LONGEST_LENGTH_BYTES:
            offset, text, place = offset + place, text[place:] + chunks.read(BATCH_BYTES), 0
        if place == len(text):
            return
        size, start = _varint(text, place, chunks.path, offset)
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


def _varint(text: bytes, place: int, path: Path, offset: int) -> tuple[int, int]:
    value = 0
    for digit in range(_LONGEST_LENGTH_BYTES):
        if place + digit >= len(text):
            break
        letter = text[place + digit]
        value |= (letter & 0x7F) << (7 * digit)
        if letter < 0x80:
            return value, place + digit + 1
    raise TraceError(f"{path}: no message length at byte {offset + place}. It is no Chakra trace.")


def _split_text(chunks: Chunks, first: bytes) -> Iterator[bytes]:
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


def _parse_bytes(kind: str, item: bytes) -> Any:
    return _MESSAGES[kind].FromString(item)


def _parse_text(kind: str, item: bytes) -> Any:
    return json_format.Parse(_with_numbers(item), _MESSAGES[kind](), ignore_unknown_fields=True)


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


def _framed(message: Any) -> bytes:
    content: bytes = message.SerializeToString(deterministic=True)
    size, head = len(content), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


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


def _arguments(message: Any) -> tuple[Argument, ...]:
    """Tensors and values, which stand as text; none where the text is not what it should be."""
    shapes, kinds, values = (
        _list_of(text) for text in (message.shapes, message.types, message.values)
    )
    if len(shapes) != len(kinds):
        return ()
    padded = [*values, *[None] * (len(shapes) - len(values))]
    return tuple(
        Argument(value, shape, str(kind))
        for value, shape, kind in zip(padded, shapes, kinds, strict=False)
    )


def _list_of(text: str) -> list[Any]:
    if not text or len(text) > _MAX_WORDS:
        return []
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return found if isinstance(found, list) else []


def _message(operation: ChakraOperation) -> Any:
    message = _MESSAGES["Node"](
        id=operation.number,
        name=operation.name,
        type=int(operation.kind),
        ctrl_deps=operation.control,
        data_deps=operation.data,
        start_time_micros=operation.start_us,
        duration_micros=operation.duration_us,
    )
    _set_attributes(message.attr, operation.attributes)
    return message


def _attributes(items: Iterable[Any]) -> dict[str, AttributeValue]:
    values: dict[str, AttributeValue] = {}
    for item in items:
        word = item.WhichOneof("value")
        if word is not None:
            value = getattr(item, word)
            values[item.name] = tuple(value.values) if word.endswith("_list") else value
    return values


def _set_attributes(target: Any, values: dict[str, AttributeValue]) -> None:
    for name, value in values.items():
        item = target.add(name=name)
        if isinstance(value, tuple):
            word = _word_of(value[0]) if value else "int64"
            getattr(item, f"{word}_list").values.extend(value)
            if not value:
                getattr(item, f"{word}_list").SetInParent()
        else:
            setattr(item, f"{_word_of(value)}_val", value)


def _word_of(value: object) -> str:
    words = {bool: "bool", int: "int64", float: "double", str: "string", bytes: "bytes"}
    return words[type(value)]


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


_MESSAGES = _message_classes()
