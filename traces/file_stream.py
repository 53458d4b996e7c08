"""File stream: trace files, plain or gzip, read in pieces within limits.

A small file can unpack to more than a machine holds. Reading stops with an error if a file
unpacks to more than *most_bytes*, or to more than *most_ratio* times its own size once it is large
enough for that to matter.

Large JSON documents hold one long array of objects. The array is cut between objects, so memory is
bounded by one batch however long the file is, and the rest of the document comes back as one small
document. A file that was cut while it was written still gives all its objects, and a fault.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from perfmodel.base.errors import TraceError
from perfmodel.base.units import format_size

# Small pieces stay in cache: parsing 64 KiB at a time is nearly twice as fast as 1 MiB.
BATCH_BYTES = 64 * 1024
_SMALL_BYTES = 64 * 2**20
MAX_OBJECT_BYTES = 16 * 2**20
"""No object of a recording is this long; text without an end is damage."""
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_BARE_WORD = re.compile(rb"(?<=[:,\[\s])(-?)(inf|nan)(?=[,\]}\s])", re.IGNORECASE)
Places = np.ndarray[Any, np.dtype[np.int64]]
_BETWEEN = b" \t\r\n,"
_QUOTE, _OPEN, _CLOSE, _END = b'"{}]'


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a file may unpack to, how many times its own size, and how many objects it holds."""

    most_bytes: int = 4 * 2**30
    most_ratio: float = 200.0
    most_objects: int = 500_000

    def scaled(self, factor: float) -> Limits:
        """Limits *factor* times as high."""
        return Limits(
            round(self.most_bytes * factor),
            self.most_ratio * factor,
            round(self.most_objects * factor),
        )

    def check_size(self, path: Path, size_bytes: int) -> None:
        """Refuse a file that is, or unpacks to, more than is allowed."""
        if size_bytes > self.most_bytes:
            raise TraceError(
                f"{path}: must hold no more than {format_size(self.most_bytes)}, holds more. "
                "Cut the recording, or raise the limits with --limits-factor."
            )

    def check_count(self, path: Path, count: int, word: str) -> None:
        """Refuse more than the allowed number of objects, which *word* names."""
        if count > self.most_objects:
            raise TraceError(
                f"{path}: must hold at most {self.most_objects} {word}, holds more. Cut the "
                "recording, or raise the limits with --limits-factor."
            )


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Chunks:
    """Pieces of a file; damaged compression ends it and is remembered in *fault*."""

    path: Path
    stream: IO[bytes]
    limits: Limits
    unpacker: Any = None
    waiting: bytes = b""
    fault: str = ""
    unpacked_bytes: int = 0
    packed_bytes: int = 0

    def next(self) -> bytes:
        """The next piece, empty at the end."""
        if self.fault:
            return b""
        try:
            piece = self.stream.read(BATCH_BYTES) if self.unpacker is None else self._unpack()
        except zlib.error as fault:
            self.fault = str(fault)
            return b""
        self.unpacked_bytes += len(piece)
        most = self.limits
        most.check_size(self.path, self.unpacked_bytes)
        most_bytes = max(most.most_ratio * max(self.packed_bytes, 1), _SMALL_BYTES)
        if self.unpacker is not None and self.unpacked_bytes > most_bytes:
            raise TraceError(
                f"{self.path}: unpacks to more than {most.most_ratio:g} times its size, which no "
                "recording does. If it is a recording, raise the limits with --limits-factor."
            )
        return piece

    def read(self, wanted_bytes: int) -> bytes:
        """As many pieces as give *wanted_bytes*, fewer at the end."""
        pieces, length = [], 0
        while length < wanted_bytes and (piece := self.next()):
            pieces.append(piece)
            length += len(piece)
        return b"".join(pieces)

    def _unpack(self) -> bytes:
        while True:
            packed = self.waiting or self.stream.read(BATCH_BYTES)
            if not self.waiting:
                self.packed_bytes += len(packed)
            if not packed:
                if not self.unpacker.eof:
                    self.fault = "the compressed data ends early"
                return b""
            if self.unpacker.eof:
                self.unpacker = _new_unpacker()
            piece: bytes = self.unpacker.decompress(packed, BATCH_BYTES)
            self.waiting = self.unpacker.unconsumed_tail or self.unpacker.unused_data.lstrip(b"\0")
            if piece:
                return piece


def _new_unpacker() -> Any:
    """An unpacker of gzip; it checks sizes and checksums itself."""
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


@contextmanager
def open_chunks(path: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[Chunks]:
    """The pieces of the file at *path*."""
    try:
        if path.is_dir():
            raise TraceError(f"{path}: must be a file, but it is a directory.")
        with path.open("rb") as stream:
            magic = stream.read(2)
            if not magic:
                raise TraceError(f"{path}: must hold a trace, but it is empty.")
            stream.seek(0)
            yield Chunks(path, stream, limits, _new_unpacker() if magic == b"\x1f\x8b" else None)
    except OSError as fault:
        raise TraceError(
            f"{path}: cannot be read ({fault.strerror or fault}). A trace is a file, plain or gzip."
        ) from None


def read_head(path: Path, size_bytes: int) -> bytes:
    """The first bytes of the file at *path*, unpacked; empty if it cannot be read."""
    try:
        with open_chunks(path) as chunks:
            return chunks.read(size_bytes)
    except TraceError:
        return b""


@dataclass(slots=True)
class StreamFaults:
    """Faults of a text, counted, with the first place of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def add(self, fault: str, place: str, count: int = 1) -> None:
        """Count a *fault* seen at *place*."""
        self.counts[fault] = self.counts.get(fault, 0) + count
        self.places.setdefault(fault, place)

    def sentences(self) -> tuple[str, ...]:
        """One sentence per kind of fault."""
        return tuple(
            f"{fault} ({count} time{'s' if count > 1 else ''}, first at {self.places[fault]})"
            for fault, count in self.counts.items()
        )


@dataclass(slots=True)
class ObjectStream:
    """The objects of the array under *key* of the document at *path*.

    *mark* is the key that objects usually begin with; it makes cutting quicker. `surroundings`,
    the rest of the document, is filled once `batches` is used up.
    """

    path: Path
    key: str
    mark: bytes | None = None
    limits: Limits = DEFAULT_LIMITS
    faults: StreamFaults = field(default_factory=StreamFaults)
    surroundings: dict[str, Any] = field(default_factory=dict)

    def batches(self) -> Iterator[list[Any]]:
        """Yield the objects in order, a list at a time."""
        with open_chunks(self.path, self.limits) as chunks:
            yield from self._batches_of(chunks)

    def _batches_of(self, chunks: Chunks) -> Iterator[list[Any]]:
        head, rest = self._find_array(chunks)
        offset = len(head)
        tail = b""
        while True:
            before_bytes = len(rest)
            end, objects = self._parse_quickly(rest)
            is_quick = end > 0
            if not is_quick:
                ends = _object_ends(rest)
                end = int(ends[-1]) + 1 if len(ends) else 0
                objects = self._parse(rest[:end], offset) if end else []
            if end:
                yield objects
                offset += end
                rest = rest[end:]
            if not is_quick and rest.lstrip(_BETWEEN)[:1] == b"]":
                tail = rest[rest.index(_END) :] + chunks.read(MAX_OBJECT_BYTES)
                break
            if not is_quick and len(rest) > MAX_OBJECT_BYTES:
                raise TraceError(
                    f"{self.path}: the object at byte {offset} has no end within "
                    f"{MAX_OBJECT_BYTES} bytes. The file is damaged there; record it again."
                )
            # Text without an end is searched again only when there is twice as much of it.
            is_stuck = len(rest) == before_bytes
            more = chunks.read(max(len(rest), BATCH_BYTES)) if is_stuck else chunks.next()
            if not more and not is_quick:
                lost = f"{len(rest.strip())} bytes of an unfinished object left out"
                self.faults.add(f"file ends early; {lost}", f"byte {offset}")
                break
            rest += more
        if chunks.fault:
            self.faults.add(f"compressed file is damaged: {chunks.fault}", f"byte {offset}")
        self.surroundings = self._parse_surroundings(head, tail)

    def _parse_quickly(self, text: bytes) -> tuple[int, list[Any]]:
        """Where the last object of *text* begins, and the objects before it if they parse at once.

        A cut that is not between two objects leaves brackets or quotes open, and then nothing
        parses; so text that parses was cut correctly.
        """
        begin = text.rfind(b"{", 0, max(text.rfind(self.mark), 0)) if self.mark else -1
        first = text.find(b"{")
        if begin <= first:
            return 0, []
        try:
            return begin, orjson.loads(b"[" + text[first:begin].rstrip(_BETWEEN) + b"]")
        except orjson.JSONDecodeError:
            return 0, []

    def _find_array(self, chunks: Chunks) -> tuple[bytes, bytes]:
        key = self.key.encode()
        pattern = re.compile(rb'"' + key + rb'"\s*:\s*\[')
        text = chunks.next()
        if text.lstrip()[:1] == b"[":
            return b'{"%s":[' % key, text[text.index(b"[") + 1 :]
        seen_bytes = 0
        while True:
            match = pattern.search(text, max(seen_bytes - BATCH_BYTES, 0))
            if match:
                return text[: match.end()], text[match.end() :]
            seen_bytes = len(text)
            more = chunks.read(max(seen_bytes, BATCH_BYTES))
            if not more or seen_bytes > MAX_OBJECT_BYTES:
                break
            text += more
        if chunks.fault and not text:
            raise TraceError(
                f"{self.path}: the compressed file is damaged ({chunks.fault}). Copy it again."
            )
        raise TraceError(
            f"{self.path}: must hold an array {self.key!r}, found none in {len(text)} bytes that "
            f"start with {text[:40].decode('utf-8', errors='replace')!r}. Give a trace written by "
            "torch.profiler (export_chrome_trace)."
        )

    def _parse(self, text: bytes, offset: int) -> list[Any]:
        """All complete objects of *text*: at once or, if that fails, one by one."""
        try:
            return list(orjson.loads(b"[" + text[text.find(b"{") :] + b"]"))
        except orjson.JSONDecodeError:
            pass
        objects, begin = [], 0
        for end in _object_ends(text):
            piece = text[begin : end + 1]
            start, place = piece.find(b"{"), f"byte {offset + begin}"
            # Only white space and a comma may separate objects.
            if piece[:start].strip(_BETWEEN):
                self.faults.add("stray text between objects", place)
            try:
                objects.append(orjson.loads(piece[start:]))
            except orjson.JSONDecodeError:
                objects += self._repair(piece[start:], place)
            begin = end + 1
        return objects

    def _repair(self, piece: bytes, place: str) -> list[Any]:
        """The object of a damaged *piece*, if it can be repaired."""
        try:
            piece.decode("utf-8")
        except UnicodeDecodeError:
            self.faults.add("text is not UTF-8 and was replaced by marks", place)
            piece = piece.decode("utf-8", errors="replace").encode()
        if _BARE_WORD.search(piece):
            self.faults.add("inf or nan instead of a number; read as absent", place)
            piece = _BARE_WORD.sub(b"null", piece)
        try:
            return [orjson.loads(piece)]
        except orjson.JSONDecodeError:
            self.faults.add("object is not valid JSON and was left out", place)
            return []

    def _parse_surroundings(self, head: bytes, tail: bytes) -> dict[str, Any]:
        if not tail:
            tail = b"]}"
        elif not head.lstrip().startswith(b"{") or head.startswith(b'{"%s":[' % self.key.encode()):
            tail = tail if tail.rstrip().endswith(b"}") else tail + b"}"
        try:
            document = json.loads((head + tail).decode("utf-8", errors="replace"))
        except (json.JSONDecodeError, RecursionError, ValueError):
            document = None
        if not isinstance(document, dict):
            self.faults.add(
                "the document around the array is not valid JSON and was left out",
                "the head or the end of the file",
            )
            return {}
        document.pop(self.key, None)
        return document


def _object_ends(text: bytes) -> Places:
    """Positions of the closing braces of complete objects; *text* starts between objects."""
    if b"\\" in text:
        text = _ESCAPED.sub(b"__", text)
    letters = np.frombuffer(text, dtype=np.uint8)
    places = np.flatnonzero((letters == _QUOTE) | (letters == _OPEN) | (letters == _CLOSE))
    marks = letters[places]
    is_quote = marks == _QUOTE
    is_outside = np.bitwise_xor.accumulate(is_quote.view(np.uint8)) == 0
    is_brace = is_outside & ~is_quote
    places = places[is_brace]
    depth = np.cumsum(np.where(marks[is_brace] == _OPEN, 1, -1))
    closed = np.flatnonzero(depth < 0)
    if len(closed):
        # The brace that ends the whole document: nothing after it belongs to the array.
        depth = depth[: closed[0]]
    ends: Places = places[np.flatnonzero(depth == 0)]
    starts: Places = places[np.flatnonzero(np.diff(depth, prepend=0) * depth == 1)]
    # Only objects before the bracket that ends the array count.
    brackets = np.flatnonzero(letters == _END)
    gaps = min(len(ends), len(starts) - 1)
    if gaps <= 0 or not len(brackets):
        return ends
    before = np.searchsorted(brackets, ends[:gaps])
    after = np.searchsorted(brackets, starts[1 : gaps + 1])
    closing = np.flatnonzero(after > before)
    return ends[: int(closing[0]) + 1] if len(closing) else ends
