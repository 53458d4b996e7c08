"""Checking: which rows of tables of measurements can be true, by the limits of the gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.measurements import CollectiveMeasurement, load_measurements
from collectives.pricing import price_sizes
from perfmodel.base.cautions import Cautions, Warned
from perfmodel.base.errors import MeasurementError, PerfModelError
from perfmodel.costs.estimates import Estimates
from perfmodel.extensions.measurements.measured_kernels import KernelTable, MeasuredKernel
from perfmodel.prediction.gate import Ratio, beyond, limits, ratios_of
from perfmodel.prediction.question import Question
from perfmodel.prediction.yardsticks import Yardsticks
from topologies import load_device

if TYPE_CHECKING:
    from collectives.measurements import RunPlace

MOST_NAMED = 3
MOST_SCALED = 50
"""Rows of a kind that tell the unit of a table."""


def check_tables(
    tables: Sequence[str | Path], place: RunPlace | None = None
) -> tuple[tuple[CollectiveMeasurement, ...], Cautions]:
    """The rows of *tables* of collectives that can be true, and what is wrong with the others."""
    where = ", ".join(map(str, tables))
    rows = load_measurements([Path(table) for table in tables], place=place)
    curves: dict[Any, list[CollectiveMeasurement]] = {}
    for row in rows:
        if not row.fault and row.ranks > 1:
            curves.setdefault((row.wiring(), row.kind, row.software, row.dtype), []).append(row)
    ratios: dict[str, list[Ratio]] = {}
    scales: dict[str, float] = {}
    for (wiring, kind, software, dtype), alike in curves.items():
        sizes = np.array([float(row.size_bytes) for row in alike])
        costs = price_sizes(kind, sizes, wiring=wiring, software=software, dtype=dtype)
        for row, cost in zip(alike, costs, strict=True):
            scale = scales[row.row] = row.duration_ns / max(cost.duration_ns, 1.0)
            # Of a single row, too: no curve of a machine jumps so far.
            ratios[row.row] = [
                ("wire", cost.wire_ns / row.duration_ns),
                ("scale", max(scale, 1 / scale)),
            ]
    _check_units([*scales.values()], [row.column_ratio for row in rows], where)
    judged = [
        (row, row.fault or disagrees(row.column_ratio), ratios.get(row.row, ())) for row in rows
    ]
    kept, cautions = _keep(judged, where)
    return tuple(kept), cautions


def check_kernels(
    table: KernelTable, where: str, price: Callable[[Sequence[MeasuredKernel]], Estimates]
) -> tuple[KernelTable, Cautions]:
    """The rows of *table* that can be true beside their *price*, and what else is wrong."""
    of_kind: dict[tuple[str, str], list[MeasuredKernel]] = {}
    for kernel in table.kernels:
        of_kind.setdefault((kernel.device, kernel.group[-1]), []).append(kernel)
    rows: list[Any] = [(None, one.reason, ()) for one in table.unsupported]
    scales: list[float] = []
    for (name, _), kernels in of_kind.items():
        some = kernels[:: 1 + len(kernels) // MOST_SCALED]
        try:
            device = load_device(name)
            found = price(some)
        except PerfModelError:
            # What becomes of rows of an unknown GPU is decided where they are used.
            rows += [(one, "", ()) for one in kernels]
            continue
        rows += [
            (one, disagrees(one.column_ratio), ratios_of(one.op, device, one.measured_ns))
            for one in kernels
        ]
        predicted = zip(some, found.duration_ns.tolist(), strict=True)
        scales += [one.measured_ns / max(ns, 1.0) for one, ns in predicted]
    _check_units(scales, [one.column_ratio for one in table.kernels], where)
    kept, cautions = _keep(rows, where)
    names = {one.row for one in kept}
    left = tuple(one for one in table.kernels if one.row in names)
    return KernelTable(left, table.unsupported), cautions


def disagrees(ratio: float) -> bool:
    """Whether a row's own rate tells another time than it states, which is *ratio* of it."""
    most = limits()["beyond"]["column"]
    return not 1 / most <= ratio <= most


def _check_units(scales: Sequence[float], columns: Sequence[float], where: str) -> None:
    """Refuse a table whose columns contradict each other alike, or whose unit cannot be the stated.

    Unlike contradictions, such as of rows whose time was copied, are faults of these rows.
    """
    wrong = [*filter(disagrees, columns)]
    middle = float(np.median(wrong)) if wrong else 1.0
    alike = sum(not disagrees(one / middle) for one in wrong)
    if 2 * alike > len(wrong) > max(1, limits()["beyond"]["rows"] * len(columns)):
        raise MeasurementError(
            f"{where}: times and rates of a row must agree, and differ by {middle:,.4g} "
            f"times in {len(wrong)} of {len(columns)} rows. Correct the unit of the column that is "
            "wrong."
        )
    middle = float(np.median(scales)) if scales else 1.0
    if any(doubt_scales({where: middle})):
        raise MeasurementError(
            f"{where}: times must be in the unit of their column, and are {middle:,.4g} times as "
            f"long as this hardware takes (half of {len(scales)} rows). Correct unit or machine."
        )


def check_run(question: Question, measured_ns: float) -> None:
    """Refuse a run that did the operations of its model faster than the peak of its GPUs."""
    if question.cluster is None or question.work is None:
        return
    done = Yardsticks(question.work, question.cluster.rank_count, round(measured_ns))
    for warned in beyond([("peak", done.model_utilisation or 0.0)], question.cluster.device.name):
        raise MeasurementError(
            f"measured time: must be possible, but the model's operations would run at "
            f"{warned.found:,.4g} times the peak of {warned.where}. Correct time, batch or machine."
        )


def doubt_scales(scales: Mapping[str, float]) -> Iterator[Warned]:
    """Those of *scales*, measured times over predicted ones, that tell of another unit."""
    most = limits()["beyond"]["scale"]
    for where, ratio in scales.items():
        if not 1 / most <= ratio <= most:
            yield Warned("measured over predicted", where, ratio, most if ratio > 1 else 1 / most)


def _keep(
    rows: Sequence[tuple[Any, object, Iterable[Ratio]]], where: str
) -> tuple[list[Any], Cautions]:
    """The rows without a fault that can be true; too many of the others are refused."""
    places = (f"{where} row {row.row}" if row is not None else where for row, _, _ in rows)
    broken = [[*beyond(of, place)] for place, (_, _, of) in zip(places, rows, strict=True)]
    warned = [one for found in broken for one in found]
    count = sum(map(bool, broken))
    if count > max(1, limits()["beyond"]["rows"] * len(rows)):
        worst = max(warned, key=lambda one: one.found)
        raise MeasurementError(
            f"{where}: {count} of {len(rows)} rows cannot be true of the hardware, at worst "
            f"{worst.rule} {worst.found:,.4g} times. Correct their unit, or name the right machine."
        )
    pairs = zip(rows, broken, strict=True)
    kept = [row for (row, fault, _), found in pairs if not (fault or found)]
    if rows and not kept:
        faults = "; ".join(dict.fromkeys(str(fault) for _, fault, _ in rows[:MOST_NAMED]))
        raise MeasurementError(f"{where}: no row of {len(rows)} can be used: {faults}.")
    if len(kept) < len(rows):
        warned.append(Warned("rows left out", where, len(rows) - len(kept), 0))
    return kept, Cautions(tuple(warned))
