"""Chakra execution traces: one rank's operations with what each waits for, as protobuf.

A file is a row of messages, each behind its length: first the metadata, then
one message an operation. The descriptors are made at run time from the public
field numbers (MLCommons Chakra schema 0.0.4), so no generated code is needed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from perfmodel.base.errors import TraceError
from perfmodel.base.writing import write_file

SCHEMA_VERSION = "0.0.4"
_MAX_MESSAGE_BYTES = 64 * 2**20
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


@dataclass(frozen=True, slots=True)
class ChakraTrace:
    """The operations of one rank, in the order of the file."""

    document: str
    version: str
    operations: tuple[ChakraOperation, ...]
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def load_chakra(path: Path | str) -> ChakraTrace:
    """Read the Chakra trace at *path*, plain or gzip."""
    path = Path(path)
    text = _read(path)
    messages = _split(text, path)
    try:
        head = _MESSAGES["GlobalMetadata"].FromString(next(messages, b""))
        operations = tuple(_operation(_MESSAGES["Node"].FromString(item)) for item in messages)
    except (DecodeError, ValueError) as fault:
        raise TraceError(
            f"{path}: must hold Chakra messages, but one does not decode ({fault}). "
            "Give a file written by a Chakra converter."
        ) from None
    if not operations:
        raise TraceError(f"{path}: must hold at least one operation, holds none.")
    faults = _check_numbers(path, operations)
    return ChakraTrace(str(path), head.version, operations, _attributes(head.attr), faults)


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


def _check_numbers(path: Path, operations: tuple[ChakraOperation, ...]) -> tuple[str, ...]:
    """Refuse ids that stand twice; converters do leave out operations that others wait for."""
    known = {operation.number for operation in operations}
    if len(known) < len(operations):
        raise TraceError(f"{path}: every operation must have an id of its own; some stand twice.")
    return tuple(
        f"operation {operation.number} waits for {number}, which is not in the file"
        for operation in operations
        for number in (*operation.control, *operation.data)
        if number not in known
    )


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError) as fault:
        raise TraceError(f"{path}: cannot be read ({fault}).") from None


def _split(text: bytes, path: Path) -> Iterator[bytes]:
    place = 0
    while place < len(text):
        size, start = _varint(text, place, path)
        if size > _MAX_MESSAGE_BYTES or start + size > len(text):
            raise TraceError(
                f"{path}: the message at byte {place} must be {size} bytes long, but only "
                f"{len(text) - start} are left. The file ends early or is no Chakra trace."
            )
        yield text[start : start + size]
        place = start + size


def _varint(text: bytes, place: int, path: Path) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(text):
            break
        letter = text[place]
        place += 1
        value |= (letter & 0x7F) << shift
        if letter < 0x80:
            return value, place
    raise TraceError(f"{path}: no message length at byte {place}. It is no Chakra trace.")


def _framed(message: Any) -> bytes:
    content: bytes = message.SerializeToString(deterministic=True)
    size, head = len(content), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def _operation(message: Any) -> ChakraOperation:
    return ChakraOperation(
        number=message.id,
        name=message.name,
        kind=ChakraKind(message.type),
        control=tuple(message.ctrl_deps),
        data=tuple(message.data_deps),
        start_us=message.start_time_micros,
        duration_us=message.duration_micros,
        attributes=_attributes(message.attr),
    )


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
