"""A stand-in for Triton where it is not installed.

Kernels are declared and launched, never compiled, so that decorators and the names that a kernel's
source mentions are enough. What only a compiled kernel knows (registers, binaries) is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

VERSION = "3.4.0"
"""What scripts see; no answer depends on it."""
MODULES = (
    "triton", "triton.language", "triton.language.math", "triton.language.extra",
    "triton.language.extra.libdevice", "triton.language.extra.cuda",
    "triton.language.extra.cuda.libdevice", "triton.runtime", "triton.runtime.jit",
    "triton.runtime.autotuner", "triton.tools", "triton.tools.tensor_descriptor",
)  # fmt: skip
"""Every module that can be imported."""


class _Kernel:
    """What a decorator makes of the function or kernel *fn*; `run` is set where it is recorded."""

    run: Callable[..., None]

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """The launcher for *grid*."""
        return partial(self.run, grid=grid)


class JITFunction(_Kernel):
    """A kernel, or a function that kernels call."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refused, as in Triton."""
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


class Autotuner(_Kernel):
    """A kernel with several configurations."""

    def __init__(self, fn: Any, configs: Sequence[Any] = (), key: Any = (), **_: Any) -> None:
        super().__init__(fn)
        self.configs, self.keys = configs, key


class Heuristics(_Kernel):
    """A kernel with computed arguments."""

    def __init__(self, fn: Any, values: Mapping[str, Any]) -> None:
        super().__init__(fn)
        self.values = values


class Config:
    """A configuration: nothing depends on it, because nothing is compiled."""

    def __init__(self, kwargs: Mapping[str, Any], **settings: Any) -> None:
        self.kwargs = dict(kwargs)
        self.__dict__.update(settings)


class TensorDescriptor:
    """A tensor that a kernel reads and writes in blocks."""

    def __init__(self, base: Any, *_: Any, **__: Any) -> None:
        self.base = base

    @classmethod
    def from_tensor(cls, tensor: Any, block_shape: Any = None, **_: Any) -> TensorDescriptor:
        """The descriptor of *tensor*."""
        del block_shape
        return cls(tensor)


class Constant:
    """`tl.constexpr`: an annotation, or a value that is known when a kernel is compiled."""

    def __init__(self, value: Any) -> None:
        self.value = value


def jit(fn: Any = None, **_: Any) -> Any:
    """Declare a kernel."""
    return jit if fn is None else JITFunction(fn)


def autotune(configs: Sequence[Any], key: Any = (), **_: Any) -> Callable[[Any], Autotuner]:
    """Declare the configurations of a kernel."""
    return lambda fn: Autotuner(fn, configs, key)


def heuristics(values: Mapping[str, Any]) -> Callable[[Any], Heuristics]:
    """Declare computed arguments of a kernel."""
    return lambda fn: Heuristics(fn, values)


def cdiv(x: int, y: int) -> int:
    """Quotient, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below *n*."""
    return 1 << max(n - 1, 0).bit_length()


_PUBLIC: dict[str, Any] = {
    "jit": jit, "autotune": autotune, "heuristics": heuristics, "Config": Config, "cdiv": cdiv,
    "next_power_of_2": next_power_of_2, "JITFunction": JITFunction, "Autotuner": Autotuner,
    "Heuristics": Heuristics, "TensorDescriptor": TensorDescriptor, "constexpr": Constant,
}  # fmt: skip


def make_module(name: str) -> ModuleType:
    """The module *name*; names that only kernels use mean nothing."""
    module = ModuleType(name, "A stand-in: kernels are recorded, not compiled.")
    module.__dict__.update(_PUBLIC, __version__=VERSION, __path__=[])
    if "language" in name:

        def unknown(word: str) -> Any:
            if word.startswith("__"):
                raise AttributeError(word)
            return JITFunction(lambda *_, **__: None)

        module.__dict__["__getattr__"] = unknown
    return module


@contextmanager
def hidden() -> Iterator[None]:
    """Hide the stand-in from torch's compiler, which would take it for Triton."""
    taken = {name: sys.modules[name] for name in MODULES if _is_ours(sys.modules.get(name))}
    for name in taken:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(taken)


def _is_ours(module: ModuleType | None) -> bool:
    return module is not None and getattr(module, "jit", None) is jit
