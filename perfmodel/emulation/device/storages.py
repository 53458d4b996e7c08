"""Storages on the device: resizing, sizes, and loading from files.

C++ refuses these in a CPU build, so they are replaced in Python. A size is kept beside the
storage, because FSDP frees parameters by resizing them to nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from perfmodel.emulation.device.gpu import VirtualGpu


def install_storages(gpu: VirtualGpu) -> None:
    """Replace what C++ refuses."""
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
                "virtual device: a storage can shrink and grow back, but not beyond the "
                f"{base_bytes(storage)} bytes it was made with; {size} were asked for."
            )
        device = storage.device.index
        now = nbytes(storage)
        gpu.memory.resize_storage(storage.data_ptr(), device, now=now, wanted=size)
        return storage

    kind.nbytes = kind.size = nbytes
    kind.resize_ = resize_

    def place(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        index = location.partition(":")[2]
        device = int(index) if index else gpu.recorder.state().device
        made = gpu.empty((storage.nbytes(),), (1,), torch.uint8, device)
        return made.untyped_storage()

    torch.serialization.register_package(5, lambda _: None, place)
