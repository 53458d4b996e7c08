"""Packed files: plain or gzip, read piece by piece, never further than was agreed.

A small file can unpack to more than a machine holds. Reading stops with an
error where a file unpacks to more than *most_bytes*, or to more than
*most_ratio* times its own size once it is large enough for that to matter.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from perfmodel.base.errors import TraceError
from perfmodel.base.units import format_size

# Small pieces stay in cache: parsing 64 KiB at a time is nearly twice as fast as 1 MiB.
BATCH_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_SMALL_BYTES = 64 * 2**20


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


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Chunks:
    """Pieces of a file; damage to its compression ends it and is remembered."""

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
        self._check()
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

    def _check(self) -> None:
        most = self.limits
        if self.unpacked_bytes > most.most_bytes:
            raise TraceError(
                f"{self.path}: must hold no more than {format_size(most.most_bytes)}, holds more. "
                "Cut the recording, or raise the limits with --limits-factor."
            )
        if self.unpacker is None or self.unpacked_bytes <= _SMALL_BYTES:
            return
        if self.unpacked_bytes > most.most_ratio * max(self.packed_bytes, 1):
            raise TraceError(
                f"{self.path}: unpacks to more than {most.most_ratio:g} times its size, which no "
                "recording does. If it is one all the same, raise the limits with --limits-factor."
            )


@contextmanager
def open_chunks(path: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[Chunks]:
    """The pieces of the file at *path*."""
    try:
        is_packed = _is_packed(path)
        with path.open("rb") as stream:
            yield Chunks(path, stream, limits, _new_unpacker() if is_packed else None)
    except OSError as fault:
        raise TraceError(
            f"{path}: cannot be read ({fault.strerror or fault}). A trace is a file, plain or gzip."
        ) from None


def read_head(path: Path, size_bytes: int) -> bytes:
    """The first bytes of the file at *path*, unpacked; empty where it cannot be read."""
    try:
        with open_chunks(path) as chunks:
            return chunks.read(size_bytes)
    except TraceError:
        return b""


def _new_unpacker() -> Any:
    """An unpacker of gzip; it checks sizes and checksums itself."""
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _is_packed(path: Path) -> bool:
    if path.is_dir():
        raise TraceError(f"{path}: must be a file, but it is a directory.")
    with path.open("rb") as stream:
        magic = stream.read(2)
    if not magic:
        raise TraceError(f"{path}: must hold a trace, but it is empty.")
    return magic == _GZIP
