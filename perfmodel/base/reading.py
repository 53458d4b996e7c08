"""Reading: untrusted files, read whole and within bounds.

A pipe without a writer would block forever, a device never ends, and a few kilobytes of gzip unpack
to gigabytes: all three are refused.
"""

from __future__ import annotations

import csv
import io
import json
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfmodel.base.errors import OutputError, PerfModelError
from perfmodel.base.units import format_size

MOST_TABLE_BYTES = 256 * 2**20
"""What a table may hold, unpacked: a few million rows."""
_GZIP = b"\x1f\x8b"
_SHOWN = 60
_NOTHING: Mapping[tuple[int, int], str] = MappingProxyType({})
_written = ContextVar("written", default=_NOTHING)


def refuse_to_read(targets: Mapping[str, Path]) -> Callable[[], None]:
    """Refuse to read files that will be written, by option, until what is returned is called.

    A file that another one names is an input too.
    """
    files = {
        (found.st_dev, found.st_ino): option
        for option, path in targets.items()
        if path.is_file()
        for found in [path.stat()]
    }
    token = _written.set(files)
    return partial(_written.reset, token)


def read_bytes(path: Path, error_type: type[PerfModelError], most_bytes: int) -> bytes:
    """The content of the file at *path*, unless it is not a plain file or exceeds *most_bytes*."""
    check_plain_file(path, error_type)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > most_bytes:
            raise _too_large(path, error_type, most_bytes, f"is {format_size(size_bytes)}")
        return path.read_bytes()
    except OSError as fault:
        raise error_type(f"{path}: cannot be read ({fault.strerror or fault}).") from None


def check_plain_file(path: Path, error_type: type[PerfModelError]) -> None:
    """Raise unless there is a plain file at *path*."""
    try:
        found = path.stat()
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or fault
        raise error_type(f"{path}: cannot be read ({reason}).") from None
    mode = found.st_mode
    if option := _written.get().get((found.st_dev, found.st_ino)):
        raise OutputError(
            f"{path}: is read, and {option} would write over it. Name another file for {option}."
        )
    if stat.S_ISDIR(mode):
        raise error_type(f"{path}: must be a file, but it is a directory.")
    if not stat.S_ISREG(mode):
        raise error_type(f"{path}: must be a plain file, but it is a pipe or a device.")


def read_text(path: Path, error_type: type[PerfModelError], most_bytes: int) -> str:
    """What the text file at *path* says."""
    return _decode(read_bytes(path, error_type, most_bytes), path, error_type)


def read_packed_text(
    path: Path, error_type: type[PerfModelError], most_bytes: int = MOST_TABLE_BYTES
) -> str:
    """What the text file at *path* says, which may be compressed with gzip."""
    data = read_bytes(path, error_type, most_bytes)
    if data[:2] == _GZIP:
        # The checksum detects a cut file, as the last line break does elsewhere.
        data = _unpack(data, path, error_type, most_bytes).rstrip(b"\r\n") + b"\n"
    return _decode(data, path, error_type)


def _unpack(data: bytes, path: Path, error_type: type[PerfModelError], most_bytes: int) -> bytes:
    pieces, room_bytes = [], most_bytes
    try:
        while data:
            unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            pieces.append(unpacker.decompress(data, room_bytes + 1))
            room_bytes -= len(pieces[-1])
            if room_bytes < 0:
                raise _too_large(path, error_type, most_bytes, "unpacks to more")
            if not unpacker.eof:
                raise error_type(f"{path}: cannot be read (the compressed data ends early).")
            data = unpacker.unused_data.lstrip(b"\0")
    except zlib.error:
        raise error_type(f"{path}: cannot be read (not a complete gzip file).") from None
    return b"".join(pieces)


def _decode(data: bytes, path: Path, error_type: type[PerfModelError]) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error_type(f"{path}: must be text (UTF-8), but it holds binary data.") from None


def _too_large(
    path: Path, error_type: type[PerfModelError], most_bytes: int, what: str
) -> PerfModelError:
    return error_type(f"{path}: must be at most {format_size(most_bytes)}, {what}.")


def quote(value: Any) -> str:
    """*value* as an error message shows it: never more than a line of it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def is_json(path: Path) -> bool:
    """Whether the file at *path* begins as a JSON document; a missing one is judged by its name."""
    try:
        with path.open("rb") as file:
            return file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    except OSError:
        return path.suffix == ".json"


def parse_json(
    text: str, *, document: str, error_type: type[PerfModelError], is_strict: bool = True
) -> Any:
    """What the JSON in *text* says; repeated keys are refused, and NaN where it *is_strict*."""

    def refuse(word: str) -> float:
        found = re.search(rf"[\[:,\s]{word}\b", text)
        line = 1 + text.count("\n", 0, found.end() if found else 0)
        raise ValueError(f"line {line}: {word} is not a number")

    constant: Callable[[str], float] = refuse if is_strict else float
    try:
        return json.loads(text, object_pairs_hook=_mapping, parse_constant=constant)
    except RecursionError:
        raise error_type(f"{document}: not valid JSON (nested too deep).") from None
    except ValueError as fault:
        raise error_type(f"{document}: not valid JSON ({fault}).") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in content if names.count(key) > 1)
        raise ValueError(f"key {quote(twice)} occurs twice")
    return content


def load_rows(
    path: Path, error_type: type[PerfModelError], needed: Sequence[str] = ()
) -> list[dict[str, str]]:
    """The rows of the table at *path*, CSV and perhaps gzip, which must have columns *needed*."""
    return parse_rows(
        read_packed_text(path, error_type),
        document=str(path),
        error_type=error_type,
        needed=needed,
    )


def parse_rows(
    text: str, *, document: str, error_type: type[PerfModelError], needed: Sequence[str] = ()
) -> list[dict[str, str]]:
    """The rows of the table in *text*; every one has as many cells as the heading."""
    lines = iter_even_lines(text, document=document, error_type=error_type)
    names = next(lines, [])
    missing = [name for name in needed if name not in names]
    if missing:
        raise error_type(
            f"{document}: must have the columns {', '.join(needed)}; missing {', '.join(missing)}."
        )
    return [dict(zip(names, cells, strict=True)) for cells in lines]


def iter_even_lines(
    text: str, *, document: str, error_type: type[PerfModelError]
) -> Iterator[list[str]]:
    """The heading of the table in *text* and its rows, which have as many cells."""
    names: list[str] = []
    for number, cells in enumerate(iter_lines(text, document=document, error_type=error_type), -1):
        names = names or cells
        if len(cells) != len(names):
            raise error_type(f"{document}, row {number}: must have as many cells as the heading.")
        yield cells


def iter_lines(
    text: str, *, document: str, error_type: type[PerfModelError]
) -> Iterator[list[str]]:
    """The heading of the table in *text* and its rows, however many cells they have."""
    check_end(text, document=document, error_type=error_type)
    reader = (cells for cells in csv.reader(io.StringIO(text, newline=""), strict=True) if cells)
    try:
        names = next(reader, [])
        if len(set(names)) < len(names):
            raise error_type(f"{document}: a column occurs twice in the heading.")
        yield from ([names] if names else [])
        yield from reader
    except csv.Error as fault:
        raise error_type(f"{document}: cannot be read as a table ({fault}).") from None


def check_end(text: str, *, document: str, error_type: type[PerfModelError]) -> None:
    """Raise if the last line of a table has no end: half a number is a number, too."""
    if text and text[-1] not in "\r\n":
        raise error_type(
            f"{document}: must end with a line break, but ends with {quote(text[-20:])}: it may "
            "have been cut. Add a line break if nothing is missing."
        )
