"""Registering: giving every operator that a GPU has a kernel at the CUDA key.

A fallback alone is not enough: operators that are made of others would fall apart
into them (`_foreach_add` into hundreds). So every operator that torch's own list names
a CUDA kernel for is registered by name. An operator made of others must not be
registered, or its backward pass would vanish.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torchgen
import yaml

from perfmodel.emulation.device.choices import choice_kernels
from perfmodel.emulation.device.gpu import VirtualGpu
from perfmodel.emulation.device.lookups import LOOKUPS, LookupKernel
from perfmodel.emulation.device.operators import Kernel, OperatorKernel, ViewKernel, is_view
from perfmodel.emulation.device.sparse import sparse_kernel
from perfmodel.emulation.device.special import SPECIAL, special_kernel

_LIST = "packaged/ATen/native/native_functions.yaml"
_MADE_OF_OTHERS_ON_CPU = (
    "copy_", "convolution", "convolution_backward", "embedding", "embedding_dense_backward",
)  # fmt: skip
"""Operators that the list does not name CUDA for and that are kernels on a GPU."""


class Registration:
    """Holds the libraries whose life is that of the kernels."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._kernels: dict[Any, Kernel] = {}
        self._sparse_kernels: dict[Any, Kernel] = {}
        self._aten = torch.library.Library("aten", "IMPL")
        self._any = torch.library.Library("_", "IMPL")

    def register(self) -> None:
        """Register all kernels."""
        functions = _read_functions()
        self._any.fallback(self._fall_back, "CUDA")
        names = [*_names_with("CUDA", functions), *_MADE_OF_OTHERS_ON_CPU]
        for name in dict.fromkeys(names):
            op = _find(name)
            if op is not None and not _has_kernel(op, "CUDA"):
                self._aten.impl(_full_name(op), self._kernel(op), "CUDA")
        for key in ("SparseCUDA", "SparseCsrCUDA"):
            self._any.fallback(self._fall_back_sparse, key)
            for name in _names_with(key, functions):
                op = _find(name)
                if op is not None and not _has_kernel(op, key):
                    self._aten.impl(_full_name(op), sparse_kernel(self._gpu, op), key)
        for name, kernel in choice_kernels().items():
            for key in ("AutogradCUDA", "CUDA"):
                self._aten.impl(name, kernel, key)

    def _fall_back(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = self._kernels.get(op)
        if kernel is None:
            kernel = self._kernels[op] = self._kernel(op)
        return kernel(*args, **kwargs)

    def _fall_back_sparse(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = self._sparse_kernels.get(op)
        if kernel is None:
            kernel = self._sparse_kernels[op] = sparse_kernel(self._gpu, op)
        return kernel(*args, **kwargs)

    def _kernel(self, op: Any) -> Kernel:
        handler = SPECIAL.get(_full_name(op)) if op.namespace == "aten" else None
        if handler is not None:
            return special_kernel(self._gpu, op, handler)
        if is_view(op):
            return ViewKernel(self._gpu, op)
        if op._schema.name.partition("::")[2] in LOOKUPS:
            return LookupKernel(self._gpu, op)
        return OperatorKernel(self._gpu, op)


def _read_functions() -> dict[str, dict[str, Any]]:
    path = Path(torchgen.__file__).parent / _LIST
    # The list belongs to torch and the C reader is ten times faster; it builds plain values only.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    functions = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506  safe
    return {function["func"].partition("(")[0]: function for function in functions}


def _names_with(key: str, functions: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Operators whose list of kernels names *key*, their delegates' included."""
    for name, function in functions.items():
        delegate = functions.get(function.get("structured_delegate") or "", {})
        kernels = {**(delegate.get("dispatch") or {}), **(function.get("dispatch") or {})}
        keys = {word.strip() for words in kernels for word in words.split(",")}
        if function.get("ufunc_inner_loop") or delegate.get("ufunc_inner_loop"):
            keys.add("CUDA")
        if key in keys:
            yield name


def _find(name: str) -> Any:
    base, _, overload = name.partition(".")
    try:
        return getattr(getattr(torch.ops.aten, base), overload or "default")
    except AttributeError:
        return None


def _full_name(op: Any) -> str:
    return str(op.name()).partition("::")[2]


def _has_kernel(op: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))
