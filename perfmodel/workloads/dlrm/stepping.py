"""The optimizer of the dense part: clearing gradients, and the step, as one operator each.

How many kernels an operator launches is the optimizer's and the stack's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.dtypes import DType
from perfmodel.costs.stacks import Fusion, OptimizerKernels
from perfmodel.graph.ops import MemoryBound
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.dlrm.switches import DlrmSwitches
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import elementwise
from perfmodel.workloads.optimizers import OptimizerStep


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
    is_short = switches.fuses(Fusion.WEIGHT_CAST)
    step = OptimizerStep(
        name,
        switches.optimizer_kernels,
        gradient_dtype=spec.training.precision if is_short else dtype,
        weight_dtype=dtype,
    )
    kernels = [kernel for call in step.iter_calls([sizes]) for kernel in call.kernels]
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
