"""Validation of kernels: every row of a measured table predicted as it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.errors import PerfModelError
from perfmodel.base.units import NS_PER_MS
from perfmodel.costs.benchmark import price_measured
from perfmodel.costs.estimates import Estimates
from perfmodel.costs.kernel_model import KernelModel
from perfmodel.costs.tables.kernel_table import KernelTable, MeasuredKernel
from perfmodel.validation.scoreboard import Deviation, Scoreboard, Unsupported


def validate_kernels(kind: str, table: KernelTable, model: KernelModel) -> Scoreboard:
    """Compare *table* with the predictions of *model*, in milliseconds as the tables have them."""
    deviations: dict[str, Deviation] = {}
    unsupported = [Unsupported(row.row, row.reason) for row in table.unsupported]
    for (device, op_word), kernels in _alike(table).items():
        try:
            estimates = price_measured(kernels, model)
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
