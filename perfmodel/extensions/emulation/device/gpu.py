"""VirtualGpu: the parts of the device that kernels need, made once per process.

C++ refuses some functions of storages in a CPU build, so these are replaced in Python. A size is
kept outside the storage, because FSDP frees parameters by resizing them to nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from perfmodel.extensions.emulation.device.base import Gpu
from perfmodel.extensions.emulation.device.descriptions import Kwargs, script_line
from perfmodel.extensions.emulation.device.memory import DeviceMemory
from perfmodel.extensions.emulation.device.native import NativeDevice
from perfmodel.extensions.emulation.device.recorder import Recorder
from perfmodel.extensions.emulation.device.values import Values, storage_address
from perfmodel.extensions.emulation.request import TORCH_VERSION, DeviceFacts

GIB = 2**30


class UncoveredOperatorError(NotImplementedError):
    """The script calls an operator that the virtual device does not know."""


class VirtualGpu(Gpu):
    """Native code and memory, too."""

    def __init__(self, model: DeviceFacts, count: int, release: str = TORCH_VERSION) -> None:
        self.native = NativeDevice(count)
        recorder = Recorder(self.native)
        values = Values(recorder.count_placeholder)
        super().__init__(recorder, values, model, count, release)
        self.memory = DeviceMemory(
            self.native,
            device_count=count,
            capacity_bytes=model.memory_bytes,
            on_peak=self._note_peak,
            on_full=self._refuse,
            on_free=self.values.forget_storage,
        )
        self.peak_place = "no allocation"
        self.pinned: set[int] = set()
        self.moved: dict[int, tuple[int, int]] = {}
        self.pieces: list[tuple[int, int]] = []

    def empty(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: int
    ) -> Tensor:
        """A new tensor on *device*."""
        return self.memory.empty(size, stride, dtype, device)

    def note_pieces(self, args: Sequence[Any]) -> None:
        """Note which part of a batch that was moved is used first, if not all of it."""
        for tensor in args:
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                checksum, count = self.moved.pop(storage_address(tensor), (0, 0))
                if tensor.numel() < count:
                    self.pieces.append((checksum, int(tensor.storage_offset())))

    def device_of(self, args: Sequence[Any], kwargs: Kwargs) -> int:
        """The device a call works on: that of its first tensor, or the one it names."""
        for value in args:
            first = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(first, Tensor) and first.is_cuda:
                return first.get_device()
        named = kwargs.get("device")
        if named is not None and named.index is not None:
            return int(named.index)
        return self.recorder.state().device

    def refuse_operator(self, name: str, fault: object) -> UncoveredOperatorError:
        """The error for an operator that is not covered."""
        return UncoveredOperatorError(
            f"virtual device: operator {name} is not covered ({script_line()}): {fault!s:.200}. "
            "Replace that call by operators that are, or run that part on the CPU; "
            "a custom operator needs a meta kernel (torch.library.register_fake)."
        )

    def _note_peak(self) -> None:
        self.peak_place = script_line()

    def _refuse(self, wanted_bytes: int, device: int) -> None:
        held = self.memory.allocated_bytes(device)
        capacity = self.memory.capacity_bytes
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_size(wanted_bytes)}. GPU {device} has a "
            f"total capacity of {_size(capacity)} of which {_size(max(capacity - held, 0))} is "
            f"free. Of the allocated memory {_size(held)} is allocated by PyTorch "
            f"({script_line()})."
        )


def install_storages(gpu: VirtualGpu) -> None:
    """Replace the functions of storages that C++ refuses."""
    kind: Any = torch.UntypedStorage
    base: Any = torch._C.StorageBase
    base_bytes, base_resize = base.nbytes, base.resize_

    def nbytes(storage: Any) -> int:
        size = int(base_bytes(storage))
        if storage.device.type != "cuda":
            return size
        return gpu.memory.storage_bytes(storage.data_ptr(), size)

    def resize_(storage: Any, size: int) -> Any:
        if storage.device.type != "cuda":
            return base_resize(storage, size)
        if size > base_bytes(storage):
            raise RuntimeError(
                "virtual device: a storage can shrink and grow back, but not beyond its first "
                f"{base_bytes(storage)} bytes; the script wants {size}."
            )
        device = storage.device.index
        now = nbytes(storage)
        gpu.memory.resize_storage(storage.data_ptr(), device, now=now, wanted=size)
        return storage

    kind.nbytes = kind.size = nbytes
    kind.resize_ = resize_
    _install_copies(gpu, kind)

    def place(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        index = location.partition(":")[2]
        device = int(index) if index else gpu.recorder.state().device
        made = gpu.empty((storage.nbytes(),), (1,), torch.uint8, device)
        return made.untyped_storage()

    torch.serialization.register_package(5, lambda _: None, place)


def _install_copies(gpu: VirtualGpu, kind: Any) -> None:
    """Let storages be made on the device, and copied together with their known values."""
    make, base_clone = kind.__new__, kind.clone

    def new(cls: Any, *args: Any, device: Any = None, **words: Any) -> Any:
        """A storage on the device, which C++ cannot make, or one of the host."""
        place = torch.device("cpu") if device is None else torch.device(device)
        if place.type != "cuda":
            return make(cls, *args, **words, **({} if device is None else {"device": device}))
        index = gpu.recorder.state().device if place.index is None else place.index
        size = args[0] if args else words.get("size", 0)
        return gpu.empty((size,), (1,), torch.uint8, index).untyped_storage()

    def clone(storage: Any) -> Any:
        if storage.device.type != "cuda":
            return base_clone(storage)
        copy = base_clone(storage)
        gpu.values.copy_storage(storage.data_ptr(), copy.data_ptr())
        return copy

    kind.__new__, kind.clone = new, clone


def address_of(tensor: Tensor) -> int:
    """Where the bytes of a host tensor's storage begin."""
    return ctypes.c_void_p(tensor.untyped_storage().data_ptr()).value or 0


def _size(size_bytes: int) -> str:
    if size_bytes >= GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    return f"{size_bytes / 2**20:.2f} MiB"
