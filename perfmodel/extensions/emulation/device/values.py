"""Values: what is known of tensors on the device.

Floats have none. Integers and booleans that came from the host, or were filled there, keep
theirs, and so do results computed from them alone. A one-element float keeps the number it was
filled with. Where the script reads an unknown value it gets a placeholder: 1.0, 0 or False; the
recorder counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from perfmodel.extensions.emulation.device.descriptions import is_inexact, schema_name

MOST_KEPT = 1 << 24
"""Integers of the host that are kept, such as indices of lookups."""
MOST_COMPUTED = 1 << 22
"""Integers that are computed; results of larger operators are unknown."""
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_SETTLED = {"all": True, "any": False}
"""The assumed result of a reduction of unknown booleans: nothing is wrong."""


class Values:
    """Known values by storage: flat tensors of the host, as long as the storage.

    *count_placeholder* receives what a placeholder represents.
    """

    def __init__(self, count_placeholder: Callable[[str], None]) -> None:
        self._count_placeholder = count_placeholder
        self._of_storage: dict[int, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._of_storage)

    def forget_storage(self, address: int) -> None:
        """The storage at *address* is gone or was written to."""
        self._of_storage.pop(address, None)

    def copy_storage(self, source: int, target: int) -> None:
        """The storage at *target* is a copy of the one at *source*."""
        known = self._of_storage.get(source)
        if known is not None:
            self._of_storage[target] = known.clone()

    def forget(self, tensor: Tensor) -> None:
        """Something unknown was written to *tensor*."""
        if self._of_storage:
            self._of_storage.pop(storage_address(tensor), None)

    def known(self, tensor: Tensor) -> Tensor | None:
        """The value of *tensor* on the host, if it is known; it shares memory with the table."""
        if not tensor.is_cuda:
            return tensor if tensor.device.type == "cpu" else None
        whole = self._of_storage.get(storage_address(tensor))
        if whole is None or whole.dtype != tensor.dtype:
            return None
        return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def set(self, tensor: Tensor, value: Tensor) -> None:
        """*tensor* now holds *value*, which is on the host; forgotten if it cannot be kept."""
        address = storage_address(tensor)
        if not _is_kept(tensor):
            self._of_storage.pop(address, None)
            return
        place = self.known(tensor)
        if place is not None:
            place.copy_(value)
            return
        count = tensor.untyped_storage().nbytes() // tensor.itemsize
        if count > MOST_KEPT or (tensor.is_floating_point() and count > 1):
            return
        # What was not written yet is as arbitrary on a GPU as it is here.
        whole = torch.zeros(count, dtype=tensor.dtype)
        whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(value)
        self._of_storage[address] = whole

    def read(self, tensor: Tensor) -> Tensor:
        """What the script sees of *tensor*: its value, or a placeholder that is counted."""
        value = self.known(tensor)
        if value is not None:
            return value
        self._count_placeholder("value of a device tensor")
        filler: float = 1.0 if is_inexact(tensor) else 0
        return torch.full(tensor.shape, filler, dtype=tensor.dtype)

    def compute(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Tensor]
    ) -> bool:
        """Give *outputs* of *op* their values; whether those of all inputs are known."""
        name = schema_name(op)
        given = {key: arg for key, arg in kwargs.items() if key not in ("out", "pin_memory")}
        try:
            host_args, host_kwargs = tree_map_only(
                Tensor, partial(self._host_tensor, name), (with_tensors(op, args), given)
            )
        except LookupError:
            if name in _SETTLED and len(outputs) == 1 and outputs[0].numel() == 1:
                self.set(outputs[0], torch.tensor(_SETTLED[name]))
                return True
            return False
        if "out" in kwargs:
            host_kwargs["out"] = torch.empty(kwargs["out"].shape, dtype=kwargs["out"].dtype)
        if "device" in host_kwargs:
            host_kwargs["device"] = torch.device("cpu")
        result = op(*host_args, **host_kwargs)
        results = result if isinstance(result, tuple | list) else (result,)
        for output, value in zip(outputs, results, strict=True):
            self.set(output, value)
        return True

    def _host_tensor(self, name: str, tensor: Tensor) -> Tensor:
        value = self.known(tensor)
        if value is not None:
            return value
        if name in COMPARISONS and tensor.numel() == 1 and tensor.is_floating_point():
            # Compared as the placeholder that the script would read: a finite loss is finite.
            return torch.ones(tensor.shape, dtype=tensor.dtype)
        raise LookupError


def with_tensors(op: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """*args* of *op* with tensors where torch hands over the plain number they were made of."""
    schemas = op._schema.arguments
    return tuple(
        torch.tensor(arg)
        if isinstance(arg, int | float | complex) and str(schemas[place].type) == "Tensor"
        else arg
        for place, arg in enumerate(args)
    )


def storage_address(tensor: Tensor) -> int:
    """Where the storage of *tensor* begins."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.itemsize


def _is_kept(tensor: Tensor) -> bool:
    return tensor.numel() == 1 if is_inexact(tensor) else tensor.numel() <= MOST_KEPT
