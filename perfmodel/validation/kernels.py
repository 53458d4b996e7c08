"""Validation of kernels: every row of a measured table predicted as it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfmodel.base.errors import PerfModelError
from perfmodel.base.units import NS_PER_MS
from perfmodel.costs.attention.model import AttentionModel
from perfmodel.costs.attention.table import load_attention_table
from perfmodel.costs.estimates import Estimates, KernelModel
from perfmodel.costs.experts.model import ExpertLayerModel
from perfmodel.costs.experts.table import load_expert_table
from perfmodel.costs.gemm.model import GemmModel
from perfmodel.costs.gemm.table import load_gemm_table
from perfmodel.costs.measured_kernels import KernelTable, MeasuredKernel, price_measured
from perfmodel.costs.memory.model import MemoryModel
from perfmodel.costs.memory.table import load_memory_table
from perfmodel.validation.scoreboard import Deviation, Scoreboard, Unsupported

Reader = Callable[[Path], KernelTable]
KINDS: Mapping[str, tuple[Reader, Callable[[], KernelModel]]] = {
    "gemm": (load_gemm_table, GemmModel),
    "attention": (load_attention_table, AttentionModel),
    "experts": (load_expert_table, ExpertLayerModel),
    "memory": (load_memory_table, MemoryModel),
}
"""Who reads the tables of a kind, and who predicts their rows."""


def validate_table(kind: str, path: Path, *, calibration: Sequence[str] = ()) -> Scoreboard:
    """Compare the table at *path* with predictions, in milliseconds as the tables have them.

    Constants of the files *calibration* come before the shipped ones.
    """
    read, build_model = KINDS[kind]
    table, model = read(path), build_model()
    deviations: dict[str, Deviation] = {}
    unsupported = [Unsupported(row.row, row.reason) for row in table.unsupported]
    for (device, op_word), kernels in _alike(table).items():
        try:
            estimates = price_measured(kernels, model, calibration=calibration)
        except PerfModelError as fault:
            reason = f"{op_word} on {device}: {' '.join(str(fault).split())}"
            unsupported.extend(Unsupported(kernel.row, reason) for kernel in kernels)
            continue
        for deviation in build_deviations(kernels, estimates):
            deviations[str(deviation.row)] = deviation
    in_order = (kernel.row for kernel in table.kernels)
    return Scoreboard(
        kind,
        tuple(deviations[row] for row in in_order if row in deviations),
        tuple(unsupported),
    )


def build_deviations(
    kernels: Sequence[MeasuredKernel], estimates: Estimates
) -> tuple[Deviation, ...]:
    """Each of *kernels* beside its prediction."""
    columns = zip(kernels, estimates.duration_ns, estimates.low_ns, estimates.high_ns, strict=True)
    return tuple(
        Deviation(
            row=kernel.row,
            group=" ".join(part for part in kernel.group if part),
            measured=kernel.measured_ns / NS_PER_MS,
            predicted=float(predicted_ns) / NS_PER_MS,
            low=float(low_ns) / NS_PER_MS,
            high=float(high_ns) / NS_PER_MS,
        )
        for kernel, predicted_ns, low_ns, high_ns in columns
    )


def _alike(table: KernelTable) -> dict[tuple[str, str], list[MeasuredKernel]]:
    """Rows that either can all be priced or none: same device, same op."""
    members: dict[tuple[str, str], list[MeasuredKernel]] = {}
    for kernel in table.kernels:
        members.setdefault((kernel.device, kernel.group[-1]), []).append(kernel)
    return members
