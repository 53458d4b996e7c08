"""Kernel fits: which rows belong together, what is fitted to them, and held-out predictions.

Folds are made by the values of columns, so near-duplicates of a held-out row are not fitted.
Folding by device leaves whole GPUs out, which must then borrow constants: this tests how well the
datasheet extrapolates.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.fitting.kernels.attention import fit_attention_entry
from experiments.fitting.kernels.constants_file import entries_to_text
from experiments.fitting.kernels.gemm import fit_expert_entry, fit_gemm_entry
from experiments.fitting.kernels.memory import fit_memory_entry
from perfmodel.base.errors import MeasurementError
from perfmodel.base.writing import write_file
from perfmodel.costs.attention_kernels import variant_of as attention_variant
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.estimates import Estimates, concatenate_estimates
from perfmodel.costs.gemm import variant_of as gemm_variant
from perfmodel.extensions.measurements.kernel_tables import KERNEL_KINDS
from perfmodel.extensions.measurements.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    price_measured,
)
from perfmodel.prediction.phases import OnPhase, ignore_phase
from topologies import load_device

FEWEST_ROWS = 2
HARDWARE = "the device of each entry, as its datasheet file describes it"
"""What the header of a file of kernels says about hardware."""

FITS: dict[str, Callable[[KernelTable, str], Entry]] = {
    "gemm": fit_gemm_entry,
    "attention": fit_attention_entry,
    "memory": fit_memory_entry,
}
"""The fit of one device and variant, by kind of kernel; that of experts also sees what is alike."""
VARIANTS: dict[str, Callable[[Any], str]] = {
    "gemm": lambda op: gemm_variant(op.dtype),
    "attention": attention_variant,
    "experts": lambda op: str(op.variant),
    "memory": lambda op: str(op.operator),
}
"""What of a kind has constants of its own."""


def load_tables(kind: str, paths: Sequence[Path], device: str | None = None) -> KernelTable:
    """All rows of the tables of *kind* at *paths*, measured on *device* where they do not say."""
    tables = [KERNEL_KINDS[kind].load(path, device) for path in paths]
    return KernelTable(
        tuple(kernel for table in tables for kernel in table.kernels),
        tuple(row for table in tables for row in table.unsupported),
    )


def fit_entries(
    kind: str, table: KernelTable, *, has_cast: bool = True, on_phase: OnPhase = ignore_phase
) -> tuple[Entry, ...]:
    """Constants for every device and variant in *table* with enough rows.

    With *has_cast* times of quantised GEMMs include the cast of the activation.
    """
    variant_of, fits = VARIANTS[kind], dict(FITS)
    fits["gemm"] = partial(fit_gemm_entry, has_cast=has_cast)
    members: dict[tuple[str, str], list[MeasuredKernel]] = {}
    for kernel in table.kernels:
        members.setdefault((kernel.device, variant_of(kernel.op)), []).append(kernel)
    entries = []
    for number, ((device, variant), rows) in enumerate(members.items()):
        on_phase(f"fitting {variant or kind} on {device}", number / len(members))
        if len(rows) < FEWEST_ROWS:
            continue
        own = KernelTable(tuple(rows))
        if kind == "experts":
            entries.append(fit_expert_entry(own, device, _alike(own, table)))
        else:
            entries.append(fits[kind](own, device))
    return tuple(entries)


def _alike(own: KernelTable, table: KernelTable) -> KernelTable:
    """Layers of *table* that the kernel of *own* ran, in any format, on chips of its generation."""
    kernel, generation = own.kernels[0].op.kernel, load_device(own.kernels[0].device).generation
    rows = [
        one
        for one in table.kernels
        if one.op.kernel == kernel and load_device(one.device).generation == generation
    ]
    return KernelTable(tuple(rows))


def write_entries(entries: Sequence[Entry], target: Path, about: Mapping[str, str]) -> None:
    """Write *entries* to the file *target*; a folder gets one file per GPU."""
    files: dict[Path, list[Entry]] = {} if target.is_dir() else {target: list(entries)}
    if target.is_dir():
        for entry in entries:
            files.setdefault(target / f"{entry.device}.json", []).append(entry)
    for path, chosen in files.items():
        write_file(path, entries_to_text(about, chosen))


def cross_validate(
    kind: str,
    table: KernelTable,
    *,
    folds: int,
    by: Sequence[str],
    on_phase: OnPhase = ignore_phase,
) -> tuple[tuple[MeasuredKernel, ...], Estimates]:
    """Every row of *table*, and its prediction by a fit on the folds that it is not in."""
    fold_of_row = assign_folds(table, folds=folds, by=by)
    kernels: list[MeasuredKernel] = []
    estimates = []
    count = int(fold_of_row.max()) + 1
    for fold in range(count):
        on_phase(f"fitting without fold {fold + 1} of {count}", fold / count)
        entries = fit_entries(kind, table.take(np.flatnonzero(fold_of_row != fold)))
        held_out = table.take(np.flatnonzero(fold_of_row == fold)).kernels
        kernels.extend(held_out)
        estimates.append(price_measured(held_out, KERNEL_KINDS[kind].model(entries)))
    return tuple(kernels), concatenate_estimates(estimates)


def assign_folds(table: KernelTable, *, folds: int, by: Sequence[str]) -> NDArray[np.int64]:
    """The fold of every row: equal values of the columns *by* fall in one fold."""
    values = [_values(kernel, by) for kernel in table.kernels]
    distinct = sorted(set(values))
    if len(distinct) < 2 or folds < 2:
        raise MeasurementError(
            f"cross-validation: needs at least 2 folds and 2 different values of {', '.join(by)}, "
            f"got {folds} and {len(distinct)}."
        )
    if len(distinct) <= folds:
        fold_of = {value: number for number, value in enumerate(distinct)}
    else:
        order = sorted(distinct, key=lambda value: (zlib.crc32(value.encode()), value))
        fold_of = {value: place % folds for place, value in enumerate(order)}
    return np.array([fold_of[value] for value in values], dtype=np.int64)


def _values(kernel: MeasuredKernel, by: Sequence[str]) -> str:
    own: dict[str, object] = {
        "device": kernel.device, "collector": kernel.group[0], "op": kernel.group[2],
        **kernel.columns, "shape": tuple(kernel.columns.values()),
    }  # fmt: skip
    missing = [name for name in by if name not in own]
    if missing:
        raise MeasurementError(
            f"row {kernel.row}: cannot fold by {', '.join(missing)}. Known: {', '.join(own)}."
        )
    return "|".join(str(own[name]) for name in by)
