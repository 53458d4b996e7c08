"""Optimizers: the kernels of one step, in one pass over a list of parameters or in many.

A fused optimizer reads and writes everything once. `foreach` runs each
operation of the formula over a list of tensors, `plain` over one tensor after
another; both move every operand anew. Weights that are used in a shorter format
than fp32 have a master copy in fp32, and are written again from it.
Leaves out: what a loss scaler adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.stack import OptimizerKernels

_FP32_BYTES = DType.FP32.size_bytes

_MOMENTS = (
    ("lerp_", 2, 1),
    ("mul_", 1, 1),
    ("addcmul_", 2, 1),
    ("sqrt", 1, 1),
    ("div_", 1, 1),
    ("add_", 1, 1),
)
_FORMULAS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "sgd": (("add_", 2, 1),),
    "adagrad": (("addcmul_", 2, 1), ("sqrt", 1, 1), ("add_", 1, 1), ("addcdiv_", 3, 1)),
    "adam": (*_MOMENTS, ("addcdiv_", 3, 1)),
    "adamw": (("mul_", 1, 1), *_MOMENTS, ("addcdiv_", 3, 1)),
    "lamb": (*_MOMENTS, ("div", 2, 1), ("add_", 2, 1), ("norm", 1, 0), ("norm", 1, 0),
             ("add_", 2, 1)),
}  # fmt: skip
"""Operations of a step with the fp32 tensors that each reads and writes."""

STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2, "lamb": 2}
"""fp32 tensors of state that an optimizer keeps for every parameter."""


@dataclass(frozen=True, slots=True)
class OptimizerCall:
    """An operator of the optimizer with its kernels."""

    operator: str
    kernels: tuple[MemoryBound, ...]


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """The step of *optimizer* over gradients in *gradient_dtype*, weights in *weight_dtype*."""

    optimizer: str
    kernels: OptimizerKernels
    gradient_dtype: DType
    weight_dtype: DType

    def iter_calls(self, groups: Sequence[Sequence[int]]) -> Iterator[OptimizerCall]:
        """Calls for *groups* of tensors, each given by its elements."""
        sizes = [sum(group) for group in groups]
        if self.kernels is OptimizerKernels.FUSED:
            yield from self._fused(sizes)
        elif self.kernels is OptimizerKernels.FOREACH:
            yield from self._formula(sizes)
        else:
            for group in groups:
                for tensor in group:
                    yield from self._formula([tensor])
        if self.weight_dtype.size_bytes < _FP32_BYTES:
            size = self.weight_dtype.size_bytes
            yield OptimizerCall(
                "copy_", tuple(_kernel("master_weights", n, _FP32_BYTES, size) for n in sizes)
            )

    def _fused(self, sizes: Sequence[int]) -> Iterator[OptimizerCall]:
        read = _FP32_BYTES * (1 + STATES[self.optimizer]) + self.gradient_dtype.size_bytes
        write = _FP32_BYTES * (1 + STATES[self.optimizer])
        name = f"Optimizer.step#{self.optimizer.upper()}.step"
        if self.optimizer == "lamb":
            # The update is written, its norm and the weight's are taken, then it is applied.
            yield OptimizerCall(name, tuple(_kernel("lamb", n, read, write) for n in sizes))
            norms = tuple(_kernel("l2_norm", n, 2 * _FP32_BYTES, 0) for n in sizes)
            yield OptimizerCall("norm", norms)
            read, write = 2 * _FP32_BYTES, _FP32_BYTES
        yield OptimizerCall(name, tuple(_kernel(self.optimizer, n, read, write) for n in sizes))

    def _formula(self, sizes: Sequence[int]) -> Iterator[OptimizerCall]:
        if self.gradient_dtype.size_bytes < _FP32_BYTES:
            size = self.gradient_dtype.size_bytes
            yield OptimizerCall("to", tuple(_kernel("cast", n, size, _FP32_BYTES) for n in sizes))
        for operator, reads, writes in _FORMULAS[self.optimizer]:
            yield OptimizerCall(
                operator,
                tuple(
                    _kernel(self.optimizer, n, reads * _FP32_BYTES, writes * _FP32_BYTES)
                    for n in sizes
                ),
            )


def _kernel(word: str, elements: int, read: int, write: int) -> MemoryBound:
    return MemoryBound(
        word, read_bytes=elements * read, write_bytes=elements * write, dtype=DType.FP32
    )
