"""Exchange: integers that ranks really send each other, over one store.

A rank that runs alone assumes that all others hold its own values. Ranks that run at the same
time exchange what they know: integers, booleans and tensors of the host. Floats on the device have
no values, so no rank waits for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perfmodel.extensions.emulation.device.descriptions import is_inexact, script_line
from perfmodel.extensions.emulation.device.gpu import VirtualGpu
from perfmodel.extensions.emulation.device.values import MOST_KEPT
from perfmodel.extensions.emulation.workers import NEEDS_ALL_RANKS, Throttle

_UNKNOWN = b""


@dataclass(slots=True)
class PeerExchange:
    """What this rank knows of the others; *running* are those that run at the same time.

    *has_guessed* says that objects of ranks that do not run were taken to be those of this rank.
    """

    gpu: VirtualGpu
    rank: int
    running: frozenset[int]
    store: Any
    throttle: Throttle
    has_guessed: bool = False
    _counts: Counter[str] = field(default_factory=Counter)

    def carries(self, tensor: Tensor) -> bool:
        """Whether the values of tensors like *tensor* are exchanged."""
        return not tensor.is_cuda or (not is_inexact(tensor) and tensor.numel() <= MOST_KEPT)

    def gather(
        self, topic: str, members: Sequence[int], value: Tensor | None, dtype: torch.dtype
    ) -> list[Tensor | None]:
        """The value of every member; of those that do not run, this rank's."""
        number = self._next(topic)
        others = [rank for rank in members if rank in self.running and rank != self.rank]
        if others:
            self.store.set(f"{topic}/{number}/{self.rank}", _pack(value))
        sent = {rank: _unpack(self._wait(f"{topic}/{number}/{rank}"), dtype) for rank in others}
        # Objects are sent as bytes.
        self.has_guessed |= dtype is torch.uint8 and not self.running.issuperset(members)
        return [sent.get(rank, value) for rank in members]

    def from_source(
        self, topic: str, source: int, value: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        """What *source* holds, given that every member calls this; None if unknown."""
        number = self._next(topic)
        key = f"{topic}/{number}/{source}"
        if source == self.rank:
            if len(self.running) > 1:
                self.store.set(key, _pack(value))
            return value
        if source not in self.running:
            self.gpu.recorder.count_placeholder("value of a rank that is not emulated")
            return value
        return _unpack(self._wait(key), dtype)

    def send(self, topic: str, target: int, tensor: Tensor) -> None:
        """Send *tensor* to *target*."""
        self._check_peer(target)
        if self.carries(tensor):
            topic = f"{topic}/{self.rank}-{target}"
            self.store.set(f"{topic}/{self._next(topic)}", _pack(self.own(tensor)))

    def receive(self, topic: str, source: int, tensor: Tensor) -> Tensor | None:
        """What *source* sent; None if unknown."""
        self._check_peer(source)
        if not self.carries(tensor):
            return None
        topic = f"{topic}/{source}-{self.rank}"
        return _unpack(self._wait(f"{topic}/{self._next(topic)}"), tensor.dtype)

    def write(self, target: Tensor, value: Tensor | None) -> None:
        """Let *target* hold *value*."""
        if not target.is_cuda:
            if value is not None:
                target.copy_(value.reshape(target.shape))
        elif value is None or value.numel() != target.numel():
            self.gpu.values.forget(target)
        else:
            self.gpu.values.set(target, value.reshape(target.shape))

    def _wait(self, key: str) -> bytes:
        if self.store.check([key]):
            return bytes(self.store.get(key))
        with self.throttle.released():
            return bytes(self.store.get(key))

    def _check_peer(self, rank: int) -> None:
        """End this rank if it communicates with one that is not being emulated."""
        if rank not in self.running:
            note = f"rank {self.rank} communicates with rank {rank} ({script_line()})"
            self.gpu.recorder.notes[note] = None
            raise SystemExit(NEEDS_ALL_RANKS)

    def own(self, tensor: Tensor) -> Tensor | None:
        """What this rank knows of *tensor*."""
        known = self.gpu.values.known(tensor)
        return None if known is None else known.clone()

    def _next(self, topic: str) -> int:
        # Other ranks may have stopped already; none must wait for them.
        self.gpu.recorder.check_running()
        self._counts[topic] += 1
        return self._counts[topic]


def _pack(value: Tensor | None) -> bytes:
    if value is None:
        return _UNKNOWN
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else _UNKNOWN


def _unpack(content: bytes, dtype: torch.dtype) -> Tensor | None:
    if content == _UNKNOWN:
        return None
    raw = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
    return raw.view(dtype)
