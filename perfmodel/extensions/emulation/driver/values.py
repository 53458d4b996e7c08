"""True values of integers, made on the device's own bytes.

Device memory is host memory here, so the CPU kernel of an operator can write the values that the
program will look at. An operator of the list runs on the device first (its launches are counted
and torch allocates its outputs), then once more on the CPU over the same bytes, and the outputs
are overwritten.

Floating-point inputs hold no values. Where an order is asked of them (topk, sort, argmax,
multinomial), random numbers stand in, so that a router spreads its tokens evenly.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perfmodel.extensions.emulation.device.descriptions import is_inexact, tensors_in

MOST_VALUES = 1 << 20
"""Elements of the largest call that is computed."""
_MOST_CONSTANT = 4096
_TABLE = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
"""Operators whose values are made: those that order, those that make scales and counters of any
type, comparisons, and others that make integers."""
_LEAST, _LARGEST = 1e-30, 1e30
Kernel = Callable[..., Any]


class ValueKernel:
    """The *kernel* of the operator *op*, and its values."""

    def __init__(self, name: str, op: Any, kernel: Kernel) -> None:
        self._op, self._kernel = op, kernel
        self._is_constant = name in _TABLE["constant"]
        self._is_free = name in _TABLE["ordered"] + _TABLE["compared"]

    @staticmethod
    def around(name: str, op: Any, kernel: Kernel) -> Kernel:
        """*kernel* itself, if nothing that a program decides on comes from it."""
        if name == "_local_scalar_dense":
            return lambda keys, tensor: _usable(kernel(keys, tensor))
        is_listed = any(name in names for names in _TABLE.values())
        return ValueKernel(name, op, kernel) if is_listed else kernel

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Run on the device, then on the host."""
        inputs = tensors_in([*args, *kwargs.values()])
        count = sum(one.numel() for one in inputs)
        is_constant = self._is_constant and count <= _MOST_CONSTANT
        is_wanted = is_constant or self._is_free or not inputs
        is_known = not _unknown or not any(map(_is_unknown, inputs[self._is_constant :]))
        if count > MOST_VALUES or not (is_wanted or not all(map(is_inexact, inputs))):
            return _settle(self._kernel(keys, *args, **kwargs), is_known=is_known)
        guessed: dict[Any, Tensor] | None = None if is_constant else {}
        given = [_on_host(one, guessed) for one in args]
        named = {name: _on_host(one, guessed) for name, one in kwargs.items()}
        named.pop("pin_memory", None)
        result = _settle(self._kernel(keys, *args, **kwargs), is_known=is_known)
        outputs = tensors_in(result)
        is_needed = is_constant or not all(map(is_inexact, outputs))
        if not is_needed or sum(one.numel() for one in outputs) > MOST_VALUES:
            return result
        done = []
        for output, answer in zip(outputs, tensors_in(self._op(*given, **named)), strict=False):
            made = output
            if output.shape != answer.shape:
                # The shape depends on the values.
                made = torch.empty(answer.shape, dtype=output.dtype, device=output.device)
            if is_constant or not is_inexact(made):
                same_bytes(made).copy_(answer)
            done.append(made)
        if isinstance(result, Tensor):
            return done[0]
        return done if isinstance(result, list) else tuple(done)


_unknown: set[int] = set()
"""Addresses of storages of integers that compiled kernels have written."""


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


def _usable(value: Any) -> Any:
    """A float that no kernel wrote may be anything; the program gets one that it can use."""
    is_odd = isinstance(value, float) and value != 0 and not _LEAST < abs(value) < _LARGEST
    return 1.0 if is_odd else value


def same_bytes(tensor: Tensor) -> Tensor:
    """A tensor of the host over the storage of one on the device."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    raw = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(raw, dtype=torch.uint8)
    made = torch.empty(0, dtype=tensor.dtype)
    made.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return made


def _on_host(value: Any, guessed: dict[Any, Tensor] | None) -> Any:
    if isinstance(value, Tensor) and value.is_cuda:
        if guessed is not None and is_inexact(value):
            # x != x must see one x.
            place = value.data_ptr(), value.shape, value.stride()
            return guessed.setdefault(place, torch.rand(value.shape, dtype=value.dtype))
        return same_bytes(value).clone()
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, list | tuple):
        return type(value)(_on_host(one, guessed) for one in value)
    return value
