"""Chakra files, written as a converter would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.base.writing import write_file
from traces.chakra import MESSAGES, ChakraOperation, ChakraTrace

_SCALAR_OF: dict[type, str] = {bool: "bool", int: "int64", float: "double", str: "string"}


def write_chakra(trace: ChakraTrace, path: Path | str) -> None:
    """Write *trace* to *path*."""
    head = MESSAGES["GlobalMetadata"](version=trace.version)
    messages = [head, *map(_message, trace.operations)]
    write_file(Path(path), b"".join(map(_framed, messages)))


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
    for name, value in operation.attributes.items():
        setattr(message.attr.add(name=name), f"{_SCALAR_OF[type(value)]}_val", value)
    return message


def _framed(message: Any) -> bytes:
    """*message* after its length."""
    content: bytes = message.SerializeToString(deterministic=True)
    size, head = len(content), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content
