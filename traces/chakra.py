"""Chakra execution traces: one rank's operations with what each waits for.

A file is a row of messages: first the metadata, then one message an operation;
as protobuf each stands behind its length, as JSON they stand one behind the
other.
"""

from __future__ import annotations

import ast
import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from perfmodel.base.errors import TraceError
from perfmodel.base.writing import write_file
from traces.chakra_messages import (
    MESSAGES,
    ChakraKind,
    frame_message,
    parse_bytes,
    parse_text,
    read_length,
    split_bytes,
    split_text,
)
from traces.execution_trace import Argument
from traces.packed import DEFAULT_LIMITS, Limits, open_chunks

SCHEMA_VERSION = "0.0.4"
_MAX_DURATION_US = 10**12
_MAX_WORDS = 64 * 1024
AttributeValue = int | float | bool | str | bytes | tuple[Any, ...]


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
        messages = split_text(chunks, first) if is_text else split_bytes(chunks, first)
        parse = parse_text if is_text else parse_bytes
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
        size, start = read_length(head, 0, Path(), 0)
        message = MESSAGES["GlobalMetadata"].FromString(head[start : start + size])
        if start + size >= len(head) > size:
            return bool(message.version or message.attr)
        size, start = read_length(head, start + size, Path(), 0)
        if start + size > len(head):
            return bool(message.version or message.attr)
        first = MESSAGES["Node"].FromString(head[start : start + size])
    except (TraceError, DecodeError):
        return False
    return bool(first.name or first.id or first.attr)


def write_chakra(trace: ChakraTrace, path: Path | str) -> None:
    """Write *trace* to *path*; a name that ends in .gz is compressed."""
    path = Path(path)
    head = MESSAGES["GlobalMetadata"](version=trace.version)
    _set_attributes(head.attr, trace.attributes)
    pieces = [frame_message(head)]
    pieces.extend(frame_message(_message(operation)) for operation in trace.operations)
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
    message = MESSAGES["Node"](
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
