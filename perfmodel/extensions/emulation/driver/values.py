"""True values of integers, made on the device's own bytes.

Device memory is host memory here, so the CPU kernel of an operator can write the values that the
program will look at. An operator of the list runs on the device first (its launches are counted
and torch allocates its outputs), then once more on the CPU over the same bytes, and the outputs
are overwritten.

Floats have values where the host wrote them, as scales and counters. Others read as 1. Where an
order is asked of them (topk, sort, argmax, multinomial), random numbers stand in, so that a router
spreads its tokens evenly.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perfmodel.extensions.emulation.driver.descriptions import is_inexact, tensors_in

MOST_VALUES = 1 << 20
"""Elements of the largest call that is computed."""
_MOST_CONSTANT = 4096
MOST_KEPT = 1 << 24
"""Integers that are carried from one compiled region to another."""
_TABLE = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
"""Operators whose values are made: those that order, those that make scales and counters of any
type, comparisons, and others that make integers."""
CONSTANT = frozenset(_TABLE["constant"])
Kernel = Callable[..., Any]


class ValueKernel:
    """The *kernel* of the operator *op*, and its values; *count* is told of placeholders."""

    def __init__(self, name: str, op: Any, kernel: Kernel, count: Callable[[str], None]) -> None:
        self._op, self._kernel, self._count = op, kernel, count
        self._is_constant = name in CONSTANT
        self._is_free = name in _TABLE["ordered"] + _TABLE["compared"]
        self._is_sized = name in _TABLE["sized"]
        self._is_distinct = "unique" in name

    @staticmethod
    def around(name: str, op: Any, kernel: Kernel, count: Callable[[str], None]) -> Kernel:
        """*kernel* itself, if nothing that a program decides on comes from it."""
        is_listed = any(name in names for names in _TABLE.values())
        return ValueKernel(name, op, kernel, count) if is_listed else kernel

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Run on the device, then on the host."""
        inputs = tensors_in([*args, *kwargs.values()])
        if self._is_sized:
            return self._sized(inputs[0].device, args, kwargs)
        count = sum(one.numel() for one in inputs)
        is_constant = self._is_constant and count <= _MOST_CONSTANT
        is_wanted = is_constant or self._is_free or not inputs
        is_known = not any(map(_is_unknown, inputs[self._is_constant :]))
        if is_constant:
            is_known = is_known and all(not one.is_cuda or is_written(one) for one in inputs[1:])
        if count > MOST_VALUES or not (is_wanted or not all(map(is_inexact, inputs))):
            return _settle(self._kernel(keys, *args, **kwargs), is_known=is_known)
        guessed: dict[Any, Tensor] | None = None if is_constant else {}
        given, named = _all_on_host(args, kwargs, guessed)
        result = _settle(self._kernel(keys, *args, **kwargs), is_known=is_known)
        outputs = tensors_in(result)
        is_needed = is_constant or not all(map(is_inexact, outputs))
        if not is_needed or sum(one.numel() for one in outputs) > MOST_VALUES:
            return result
        for output, answer in zip(outputs, tensors_in(self._op(*given, **named)), strict=False):
            if is_constant or not is_inexact(output):
                same_bytes(output).copy_(answer)
            if is_constant and is_known:
                _written.add(output.data_ptr())
        return result

    def _sized(self, device: torch.device, args: Any, kwargs: Any) -> Any:
        """Run on the host alone: on the device, sizes would be read from memory without values.

        What is unknown counts as true, as one, or as all different.
        """
        given, named = _all_on_host(args, kwargs, {})
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        deciding = [one for one in tensors if not is_inexact(one)]
        if self._is_distinct or any(map(_is_unknown, deciding)):
            unknown = [one for one in tensors if _is_unknown(one) or is_inexact(one)]
            for place, one in enumerate(args):
                if any(one is other for other in unknown):
                    self._count("shape that depends on values")
                    made = torch.arange if self._is_distinct else torch.ones
                    size = one.numel() if self._is_distinct else one.shape
                    given[place] = made(size, dtype=one.dtype, device="cpu").view(one.shape)
                    total = named.get("output_size")
                    if total is not None:
                        # Repeated as often as the script says in all, as evenly as can be.
                        ends = torch.arange(one.numel() + 1, device="cpu") * total
                        given[place] = (ends // max(one.numel(), 1)).diff().to(one.dtype)
        found = self._op(*given, **named)
        outputs = []
        for answer in tensors_in(found):
            # Filling stands for the kernel.
            output = torch.empty(answer.shape, dtype=answer.dtype, device=device).zero_()
            if not is_inexact(output):
                same_bytes(output).copy_(answer)
            outputs.append(output)
        return outputs[0] if isinstance(found, Tensor) else tuple(outputs)


def _all_on_host(args: Any, kwargs: Any, guessed: dict[Any, Tensor] | None) -> Any:
    named = {name: _on_host(one, guessed) for name, one in kwargs.items()}
    named.pop("pin_memory", None)
    return [_on_host(one, guessed) for one in args], named


_unknown: set[int] = set()
"""Addresses of storages of integers that compiled kernels have written."""


_written: set[int] = set()
"""Where floats begin that the host wrote."""


def is_written(tensor: Tensor) -> bool:
    """Whether the values of *tensor* were written by the host."""
    return not is_inexact(tensor) or tensor.data_ptr() in _written


def forget_floats(result: Any) -> None:
    """Note that a kernel has written *result*."""
    for one in tensors_in(result):
        if is_inexact(one) and one.layout == torch.strided:
            _written.discard(one.data_ptr())


def _is_unknown(tensor: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _unknown


def _settle(result: Any, *, is_known: bool) -> Any:
    """Note whether the values of *result* are known."""
    if _unknown or not is_known:
        for one in tensors_in(result):
            (_unknown.discard if is_known else _unknown.add)(one.untyped_storage().data_ptr())
    return result


class KnownValues:
    """What compiled code asks about integers of the device, and what it says of them."""

    def known(self, tensor: Tensor) -> Tensor | None:
        """A copy of *tensor* on the host, if its values mean anything."""
        if is_inexact(tensor) or _is_unknown(tensor):
            return None
        return same_bytes(tensor).clone()

    def set(self, tensor: Tensor, value: Tensor) -> None:
        """Give *tensor* a value."""
        same_bytes(tensor).copy_(value)
        _settle(tensor, is_known=True)

    def forget(self, tensor: Tensor) -> None:
        """Note that a kernel has written *tensor*."""
        if not is_inexact(tensor):
            _settle(tensor, is_known=False)


def same_bytes(tensor: Tensor) -> Tensor:
    """A tensor of the host over the storage of one on the device."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    raw = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(raw, dtype=torch.uint8)
    made = torch.empty(0, dtype=tensor.dtype, device="cpu")
    made.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return made


def _on_host(value: Any, guessed: dict[Any, Tensor] | None) -> Any:
    if isinstance(value, Tensor) and value.is_cuda:
        if guessed is not None and is_inexact(value):
            # x != x must see one x.
            place = value.data_ptr(), value.shape, value.stride()
            return guessed.setdefault(
                place, torch.rand(value.shape, dtype=value.dtype, device="cpu")
            )
        return same_bytes(value).clone()
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, list | tuple):
        return type(value)(_on_host(one, guessed) for one in value)
    return value
