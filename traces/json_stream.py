"""Streaming of large JSON documents that hold one long array of objects.

The array is cut between objects, so memory is bounded by one batch however
long the file is. What stands around the array comes back as one small document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from perfmodel.base.errors import TraceError
from traces.packed import BATCH_BYTES, DEFAULT_LIMITS, Chunks, Limits, open_chunks

# A file that was cut while it was written still gives all it holds; that it was
# cut is remembered.


MAX_OBJECT_BYTES = 16 * 2**20
"""No object of a recording is this long; text without an end is damage."""


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_BARE_WORD = re.compile(rb"(?<=[:,\[\s])(-?)(inf|nan)(?=[,\]}\s])", re.IGNORECASE)
Places = np.ndarray[Any, np.dtype[np.int64]]
Letters = np.ndarray[Any, np.dtype[np.uint8]]
_BETWEEN = b" \t\r\n,"
_QUOTE, _OPEN, _CLOSE, _END = b'"{}]'


@dataclass(slots=True)
class StreamFaults:
    """What was wrong with the text, counted, with the first place of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def add(self, fault: str, place: str, count: int = 1) -> None:
        """Count a *fault* seen at *place*."""
        self.counts[fault] = self.counts.get(fault, 0) + count
        self.places.setdefault(fault, place)

    def sentences(self) -> tuple[str, ...]:
        """One sentence a kind of fault."""
        return tuple(
            f"{fault} ({count} time{'s' if count > 1 else ''}, first at {self.places[fault]})"
            for fault, count in self.counts.items()
        )


@dataclass(slots=True)
class ObjectStream:
    """The objects of the array under *key* of the document at *path*.

    *mark* is the key that objects usually begin with; it makes cutting quicker.
    `surroundings` is filled once `batches` is used up.
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
            quick = self._parse_quickly(rest)
            if quick is not None:
                offset += quick.end
                rest = rest[quick.end :]
                yield quick.objects
            else:
                cut = _cut_objects(rest)
                if cut.end:
                    yield self._parse(rest[: cut.end], offset)
                    offset += cut.end
                    rest = rest[cut.end :]
                if cut.is_closed:
                    tail = rest[rest.index(_END) :] + chunks.read(MAX_OBJECT_BYTES)
                    break
                self._check_length(rest, offset)
            # Text without an end is looked through again only when there is twice as much of it.
            is_stuck = len(rest) == before_bytes
            more = chunks.read(max(len(rest), BATCH_BYTES)) if is_stuck else chunks.next()
            if not more and quick is None:
                self._note_truncation(rest, offset)
                break
            rest += more
        self._truncated_gzip(chunks, offset)
        self.surroundings = self._parse_surroundings(head, tail)

    def _parse_quickly(self, text: bytes) -> _Parsed | None:
        """The objects before the last one that begins in *text*, if they parse at once.

        A cut that is not between two objects leaves brackets or quotes open, and
        then nothing parses; so what parses was cut rightly.
        """
        if self.mark is None:
            return None
        begin = text.rfind(b"{", 0, max(text.rfind(self.mark), 0))
        first = text.find(b"{")
        if begin <= first:
            return None
        try:
            return _Parsed(begin, orjson.loads(b"[" + text[first:begin].rstrip(_BETWEEN) + b"]"))
        except orjson.JSONDecodeError:
            return None

    def _check_length(self, rest: bytes, offset: int) -> None:
        if len(rest) > MAX_OBJECT_BYTES:
            raise TraceError(
                f"{self.path}: the object at byte {offset} has no end within "
                f"{MAX_OBJECT_BYTES} bytes. The file is damaged there; record it again."
            )

    def _find_array(self, chunks: Chunks) -> tuple[bytes, bytes]:
        pattern = re.compile(rb'"' + self.key.encode() + rb'"\s*:\s*\[')
        text = chunks.next()
        if text.lstrip()[:1] == b"[":
            start = text.index(b"[") + 1
            return b'{"%s":[' % self.key.encode(), text[start:]
        seen_bytes = 0
        while True:
            match = pattern.search(text, max(seen_bytes - BATCH_BYTES, 0))
            if match:
                return text[: match.end()], text[match.end() :]
            seen_bytes = len(text)
            more = chunks.read(max(seen_bytes, BATCH_BYTES))
            if not more or seen_bytes > MAX_OBJECT_BYTES:
                raise TraceError(_no_array_message(self.path, self.key, text, chunks.fault))
            text += more

    def _parse(self, text: bytes, offset: int) -> list[Any]:
        start = text.find(b"{")
        try:
            return list(orjson.loads(b"[" + text[start:] + b"]"))
        except orjson.JSONDecodeError:
            return list(self._parse_one_by_one(text, offset))

    def _parse_one_by_one(self, text: bytes, offset: int) -> Iterator[Any]:
        begin = 0
        for end in _object_ends(text):
            piece = text[begin : end + 1]
            start = piece.find(b"{")
            # What stands between objects may only be white space and a comma.
            if piece[:start].strip(_BETWEEN):
                self.faults.add("stray text between objects", f"byte {offset + begin}")
            yield from self._parse_piece(piece[start:], offset + begin)
            begin = end + 1

    def _parse_piece(self, piece: bytes, offset: int) -> Iterator[Any]:
        try:
            yield orjson.loads(piece)
        except orjson.JSONDecodeError:
            repaired = self._repaired(piece, offset)
            try:
                yield orjson.loads(repaired)
            except orjson.JSONDecodeError:
                self.faults.add("object is not valid JSON and was left out", f"byte {offset}")

    def _repaired(self, piece: bytes, offset: int) -> bytes:
        try:
            piece.decode("utf-8")
        except UnicodeDecodeError:
            self.faults.add("text is not UTF-8 and was replaced by marks", f"byte {offset}")
            piece = piece.decode("utf-8", errors="replace").encode()
        if _BARE_WORD.search(piece):
            self.faults.add(
                "inf or nan where a number must stand; read as absent", f"byte {offset}"
            )
            piece = _BARE_WORD.sub(b"null", piece)
        return piece

    def _note_truncation(self, rest: bytes, offset: int) -> None:
        lost = len(rest.strip())
        self.faults.add(
            f"file ends early; {lost} bytes of an unfinished object left out", f"byte {offset}"
        )

    def _truncated_gzip(self, chunks: Chunks, offset: int) -> None:
        if chunks.fault:
            self.faults.add(f"compressed file is damaged: {chunks.fault}", f"byte {offset}")

    def _parse_surroundings(self, head: bytes, tail: bytes) -> dict[str, Any]:
        if not tail:
            tail = b"]}"
        elif not head.lstrip().startswith(b"{") or head.startswith(b'{"%s":[' % self.key.encode()):
            tail = tail if tail.rstrip().endswith(b"}") else tail + b"}"
        text = (head + tail).decode("utf-8", errors="replace")
        try:
            document = json.loads(text)
        except (json.JSONDecodeError, RecursionError, ValueError):
            document = None
        if not isinstance(document, dict):
            self.faults.add(
                "what stands around the array is not valid JSON and was left out",
                "the head or the end of the file",
            )
            return {}
        document.pop(self.key, None)
        return document


@dataclass(frozen=True, slots=True)
class _Parsed:
    """Objects, and where the text behind them begins."""

    end: int
    objects: list[Any]


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where the last complete object ends, and whether the array ends behind it."""

    end: int
    is_closed: bool


def _cut_objects(text: bytes) -> _Cut:
    ends = _object_ends(text)
    end = int(ends[-1]) + 1 if len(ends) else 0
    behind = text[end:].lstrip(_BETWEEN)
    return _Cut(end=end, is_closed=behind[:1] == b"]")


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
        # The brace that ends the whole document: nothing behind it belongs to the array.
        depth = depth[: closed[0]]
    ends: Places = places[np.flatnonzero(depth == 0)]
    starts: Places = places[np.flatnonzero(np.diff(depth, prepend=0) * depth == 1)]
    return ends[: _objects_in_array(letters, starts, ends)]


def _objects_in_array(letters: Letters, starts: Places, ends: Places) -> int:
    """How many objects stand before the bracket that ends the array."""
    brackets = np.flatnonzero(letters == _END)
    gaps = min(len(ends), len(starts) - 1)
    if gaps <= 0 or not len(brackets):
        return len(ends)
    before = np.searchsorted(brackets, ends[:gaps])
    behind = np.searchsorted(brackets, starts[1 : gaps + 1])
    closing = np.flatnonzero(behind > before)
    return int(closing[0]) + 1 if len(closing) else len(ends)


def _no_array_message(path: Path, key: str, text: bytes, fault: str) -> str:
    if fault and not text:
        return f"{path}: the compressed file is damaged ({fault}). Copy it again."
    first = text[:40].decode("utf-8", errors="replace")
    return (
        f"{path}: must hold an array {key!r}, found none in {len(text)} bytes that start with "
        f"{first!r}. Give a trace written by torch.profiler (export_chrome_trace)."
    )
