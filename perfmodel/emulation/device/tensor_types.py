"""Tensor types: `torch.cuda.FloatTensor` and its like, which older scripts call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
_MODULE = "torch.cuda"


class CudaTensorType(type):
    """The type of a tensor on the device with numbers of one format."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = "cuda") -> Tensor:
        """A tensor of these sizes, or with these values."""
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device=device)
        return torch.empty(*args or (0,), dtype=cls.dtype, device=device)

    def __instancecheck__(cls, tensor: Any) -> bool:
        """Whether *tensor* is one of them."""
        return isinstance(tensor, Tensor) and tensor.is_cuda and tensor.dtype == cls.dtype


def install_tensor_types() -> None:
    """Put the types where scripts look for them, and let torch understand them."""
    types: dict[Any, CudaTensorType] = {}
    for name, dtype in _DTYPES.items():
        made = CudaTensorType(name, (), {"dtype": dtype, "__module__": _MODULE})
        setattr(torch.cuda, name, made)
        types[f"{_MODULE}.{name}"] = types[made] = made
    original_type, original_default = Tensor.type, torch.set_default_tensor_type

    def as_type(
        tensor: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Any:
        if isinstance(dtype, (str, CudaTensorType)) and dtype in types:
            return tensor.to("cuda", types[dtype].dtype, non_blocking=non_blocking)
        return original_type(tensor, dtype, non_blocking, **kwargs)

    def set_default(kind: Any) -> None:
        if isinstance(kind, (str, CudaTensorType)) and kind in types:
            torch.set_default_dtype(types[kind].dtype)
            torch.set_default_device("cuda")
        else:
            original_default(kind)

    Tensor.type = as_type
    torch.set_default_tensor_type = set_default
