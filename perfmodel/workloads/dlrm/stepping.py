"""The optimizer of the dense part: its passes over weights, state and gradients.

One kernel does all of it (fused), one a pass over all tensors (foreach), or
one a pass and tensor (plain).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.dtypes import DType
from perfmodel.costs.stacks import Fusion, OptimizerKernels
from perfmodel.graph.ops import MemoryBound, Op
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.dlrm.switches import DlrmSwitches
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import elementwise, optimizer_step

_PASSES = {
    "sgd": ((2, 1),),
    "adagrad": ((2, 1), (1, 1), (1, 1), (3, 1)),
    "adam": ((2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1)),
}
"""Tensors read and written by each pass, as PyTorch's optimizers make them one after the other.

Adagrad: square into the state, root, epsilon, step. Adam: first moment, second moment in two,
root, correction, epsilon, step.
"""


def write_step(
    writer: EagerWriter,
    spec: DlrmSpec,
    switches: DlrmSwitches,
    sizes: Sequence[int],
    *,
    has_buckets: bool,
) -> None:
    """Write the step over tensors of *sizes* numbers."""
    dtype = DType.FP32
    name = spec.training.optimizer
    if has_buckets and not switches.fuses(Fusion.GRADIENT_COPY):
        for size in sizes:
            kernel = elementwise("copy", size, dtype)
            writer.run("copy_bucket_to_grad", [kernel], label="gradients/copy from bucket")
    kernels = _step_kernels(spec, switches, sizes)
    writer.run(f"Optimizer.step#{name.upper()}.step", kernels, label="optimizer/step")


def write_clearing(
    writer: EagerWriter, spec: DlrmSpec, switches: DlrmSwitches, sizes: Sequence[int]
) -> None:
    """Clear gradients of *sizes* numbers, where products do not overwrite them anyway."""
    if switches.fuses(Fusion.GRADIENT_COPY):
        return
    dtype = DType.FP32
    is_plain = switches.optimizer_kernels is OptimizerKernels.PLAIN
    cleared = sizes if is_plain else [sum(sizes)]
    zeros = [MemoryBound("zero", 0, size * dtype.size_bytes, dtype) for size in cleared]
    name = spec.training.optimizer.upper()
    operator = f"Optimizer.zero_grad#{name}.zero_grad"
    writer.run(operator, zeros, label="optimizer/zero gradients")


def _step_kernels(spec: DlrmSpec, switches: DlrmSwitches, sizes: Sequence[int]) -> list[Op]:
    name = spec.training.optimizer
    if switches.optimizer_kernels is OptimizerKernels.FUSED:
        is_cast = switches.fuses(Fusion.WEIGHT_CAST)
        dtype = spec.training.precision if is_cast else DType.FP32
        return [optimizer_step(name, sum(sizes), gradient_dtype=dtype, weight_dtype=dtype)]
    is_plain = switches.optimizer_kernels is OptimizerKernels.PLAIN
    return [
        elementwise(name, size, DType.FP32, reads=reads, writes=writes)
        for reads, writes in _PASSES[name]
        for size in (sizes if is_plain else [sum(sizes)])
    ]
