"""Device memory: tensors without storage, and how many bytes they would take.

A tensor is made from a DLPack capsule with an address that is never read and never reused, so that
an address identifies a storage. Sizes are rounded as the caching allocator of torch rounds blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from perfmodel.extensions.emulation.device.base import keep_for_ever
from perfmodel.extensions.emulation.device.native import NativeDevice
from perfmodel.extensions.emulation.device.native_code import RING_ENTRIES

BLOCK_BYTES = 512
"""What the caching allocator of torch rounds a block up to."""
_FIRST_ADDRESS = 0x7F00_0000_0000
_DEVICE_SHIFT = 56

_CODES = {
    torch.int64: 0, torch.int32: 0, torch.int16: 0, torch.int8: 0,
    torch.uint8: 1, torch.uint16: 1, torch.uint32: 1, torch.uint64: 1,
    torch.float64: 2, torch.float32: 2, torch.float16: 2, torch.bfloat16: 4,
    torch.complex64: 5, torch.complex128: 5, torch.bool: 6,
    torch.float8_e4m3fn: 10, torch.float8_e5m2: 12,
}  # fmt: skip
"""DLPack's code of every format."""

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_from_dlpack: Callable[[Any], torch.Tensor] = torch._C._from_dlpack


class DeviceMemory:
    """Makes tensors on virtual devices and counts what they take.

    *on_peak* is called whenever a device holds more than any ever did, *on_full* with the wanted
    bytes and the device before an allocation that does not fit; it raises. *on_free* is called
    with every freed address. Scripts may reset *peak_bytes*, but not *most_bytes*.
    """

    def __init__(
        self,
        native: NativeDevice,
        *,
        device_count: int,
        capacity_bytes: int,
        on_peak: Callable[[], None],
        on_full: Callable[[int, int], None],
        on_free: Callable[[int], None],
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.peak_bytes = [0] * device_count
        self.most_bytes = 0
        self._on_peak, self._on_full, self._on_free = on_peak, on_full, on_free
        self._native = native
        self._allocated = [0] * device_count
        self._next_address = _FIRST_ADDRESS
        self._seen = 0
        # Native code reads these structures until the deleter has run.
        self._live: dict[int, tuple[Any, int]] = {}
        self._structure_of: dict[int, int] = {}
        self._resized: dict[int, int] = {}
        self._array_types: dict[int, Any] = {}
        keep_for_ever(self._live)

    def allocated_bytes(self, device: int) -> int:
        """Bytes of the tensors on *device* now."""
        return self._allocated[device] - int(self._native.freed_bytes[device])

    def reset_peak(self, device: int) -> None:
        """Forget how much *device* held so far."""
        self.peak_bytes[device] = self.allocated_bytes(device)

    def empty(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: int
    ) -> torch.Tensor:
        """A tensor on *device* with a storage of its own."""
        size_bytes = _extent(size, stride) * dtype.itemsize
        block_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        if self._native.freed_count.value != self._seen:
            self._notice_freed()
        self._take(block_bytes, device)
        address = self._next_address
        self._next_address = address + (block_bytes or BLOCK_BYTES)
        return self._tensor(address if size_bytes else 0, block_bytes, size, stride, dtype, device)

    def storage_bytes(self, address: int, otherwise: int) -> int:
        """The size of the storage at *address*, which may have been resized."""
        return self._resized.get(address, otherwise)

    def resize_storage(self, address: int, device: int, *, now: int, wanted: int) -> None:
        """Let the storage at *address* take *wanted* bytes instead of *now*."""
        block_bytes = -(-wanted // BLOCK_BYTES) * BLOCK_BYTES
        structure = self._structure_of.get(address)
        if structure is None:
            raise RuntimeError("virtual device: a storage without bytes cannot be resized.")
        words, _ = self._live[structure]
        held_bytes = words[6] & (1 << _DEVICE_SHIFT) - 1
        if wanted > now:
            self._take(block_bytes - held_bytes, device)
        else:
            self._allocated[device] -= held_bytes - block_bytes
        words[6] = block_bytes | device << _DEVICE_SHIFT
        self._resized[address] = wanted

    def _take(self, block_bytes: int, device: int) -> None:
        allocated = self._allocated[device] + block_bytes
        held = allocated - self._native.freed_bytes[device]
        if held > self.peak_bytes[device]:
            if held > self.capacity_bytes:
                self._on_full(block_bytes, device)
            self.peak_bytes[device] = held
            if held > self.most_bytes:
                self.most_bytes = held
                self._on_peak()
        self._allocated[device] = allocated

    def _tensor(
        self,
        address: int,
        block_bytes: int,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: int,
    ) -> torch.Tensor:
        rank = len(size)
        if rank not in self._array_types:
            self._array_types[rank] = ctypes.c_int64 * (8 + 2 * rank)
        code, bits = _CODES[dtype], 8 * dtype.itemsize
        # DLManagedTensor: data, device, rank and dtype, shape, strides, offset, context, deleter;
        # after it the shape and strides it points to.
        words = self._array_types[rank](
            address, 2 | device << 32, rank | code << 32 | bits << 40 | 1 << 48, 0, 0, 0,
            block_bytes | device << _DEVICE_SHIFT, self._native.delete_tensor, *size, *stride,
        )  # fmt: skip
        structure = ctypes.addressof(words)
        words[3] = structure + 64
        words[4] = structure + 64 + 8 * rank
        self._live[structure] = (words, address)
        self._structure_of[address] = structure
        return _from_dlpack(_new_capsule(structure, b"dltensor", None))

    def _notice_freed(self) -> None:
        freed = self._native.freed
        for number in range(self._seen, self._native.freed_count.value):
            place = number % RING_ENTRIES
            structure = freed[place]
            if not structure:
                # Another thread has reserved the entry and not filled it yet.
                break
            freed[place] = 0
            self._seen = number + 1
            gone = self._live.pop(structure, None)
            if gone is not None:
                address = gone[1]
                self._structure_of.pop(address, None)
                self._resized.pop(address, None)
                self._on_free(address)


def contiguous_stride(size: Sequence[int]) -> list[int]:
    """Strides of a dense tensor of *size*."""
    lengths = (max(length, 1) for length in reversed(size[1:]))
    return list(accumulate(lengths, mul, initial=1))[::-1] if size else []


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Numbers from the first element to the last."""
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
