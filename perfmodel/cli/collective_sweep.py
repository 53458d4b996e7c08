"""The answer of `perfmodel collective --sweep`: a table over sizes, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collectives.calibration import calibration_for
from collectives.collective import CollectiveKind
from collectives.cost import CollectiveCost, bus_bandwidth
from collectives.group import wiring_of
from collectives.measurements import CollectiveMeasurement, load_measurements
from collectives.movement import FloatArray
from collectives.pricing import price_sizes
from perfmodel.base.errors import InputError
from perfmodel.base.units import format_bandwidth, format_duration, format_size
from perfmodel.cli.collective_request import CollectiveRequest
from perfmodel.reports.collective_plots import SizeCurve, plot_sizes
from perfmodel.validation.scoreboard import interval_of

SCHEMA_VERSION = 1
SMALLEST_POWER, LARGEST_POWER = 9, 30


def answer_sweep(
    request: CollectiveRequest, *, plot: Path | None, tables: Sequence[Path]
) -> tuple[dict[str, object], list[str]]:
    """Price sizes from 512 B to 1 GiB; with *tables* also what was measured of the same group."""
    sizes = _sizes(step=1.0)
    costs = _costs(request, sizes)
    points = _matching(load_measurements(tables), request) if tables else []
    if plot is not None:
        _draw(request, points, plot)
    rows = [
        {
            "size_bytes": int(size),
            "time_us": cost.duration_ns / 1e3,
            "bus_bandwidth_bytes_per_s": cost.bus_bandwidth_bytes_per_s,
            "algorithm": cost.algorithm,
            "protocol": cost.protocol,
            "latency_ratio": cost.latency_ratio,
        }
        for size, cost in zip(sizes, costs, strict=True)
    ]
    answer: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "kind": request.kind.value,
        "ranks": len(request.ranks),
        "sweep": rows,
        "measured": [[point.size_bytes, point.duration_ns / 1e3] for point in points],
    }
    return answer, _lines(request, sizes, costs, points, plot)


def _sizes(*, step: float) -> FloatArray:
    powers = np.arange(SMALLEST_POWER, LARGEST_POWER + step / 2, step)
    return np.asarray(np.exp2(powers), dtype=np.float64)


def _costs(request: CollectiveRequest, sizes: FloatArray) -> list[CollectiveCost]:
    wiring = wiring_of(request.ranks, request.cluster)
    if wiring.rank_count == 1:
        raise InputError("sweep: a group of one rank moves nothing. Ask for two ranks or more.")
    if request.kind is CollectiveKind.SEND_RECV and wiring.rank_count != 2:
        raise InputError("sweep: send_recv is between two ranks. Give --ranks with two of them.")
    return price_sizes(
        request.kind,
        sizes,
        wiring=wiring,
        software=request.software,
        calibration=calibration_for(request.cluster.device),
        dtype=request.dtype,
    )


def _matching(
    measurements: Sequence[CollectiveMeasurement], request: CollectiveRequest
) -> list[CollectiveMeasurement]:
    group = (request.cluster.topology.name, request.cluster.block_count, len(request.ranks))
    return [
        row
        for row in measurements
        if (row.topology, row.hosts, row.ranks) == group and row.kind is request.kind
    ]


def _lines(
    request: CollectiveRequest,
    sizes: FloatArray,
    costs: Sequence[CollectiveCost],
    points: Sequence[CollectiveMeasurement],
    plot: Path | None,
) -> list[str]:
    name = request.cluster.topology.name
    lines = [f"{request.kind.value} over {len(request.ranks)} ranks on {name}"]
    lines.append(f"{'size':>10} {'time':>10} {'bus':>12} {'choice':>16} {'latency':>8} measured")
    by_size: dict[int, list[float]] = {}
    for point in points:
        by_size.setdefault(point.size_bytes, []).append(point.duration_ns)
    before = ""
    for size, cost in zip(sizes, costs, strict=True):
        word = cost.algorithm_word
        found = by_size.get(int(size))
        shown = "" if found is None else format_duration(float(np.median(found)))
        switch = "  <- NCCL switches here" if before and word != before else ""
        lines.append(
            f"{format_size(size):>10} {format_duration(cost.duration_ns):>10} "
            f"{format_bandwidth(cost.bus_bandwidth_bytes_per_s):>12} {word:>16} "
            f"{100 * cost.latency_ratio:>6.0f} % {shown}{switch}"
        )
        before = word
    return lines if plot is None else [*lines, f"wrote {plot}"]


def _draw(request: CollectiveRequest, points: Sequence[CollectiveMeasurement], plot: Path) -> None:
    sizes = _sizes(step=0.125)
    costs = _costs(request, sizes)
    label = f"{request.kind.value}, {len(request.ranks)} ranks"
    curve = build_curve(request.kind, label, sizes, costs, len(request.ranks), points)
    plot_sizes([curve], plot, title=request.cluster.topology.name)


def build_curve(
    kind: CollectiveKind,
    label: str,
    sizes: FloatArray,
    costs: Sequence[CollectiveCost],
    rank_count: int,
    points: Sequence[CollectiveMeasurement] = (),
) -> SizeCurve:
    """A curve for the picture, with its interval, switches and measured points."""
    intervals = [interval_of(cost.duration_ns, cost.relative_sigma) for cost in costs]
    switches = [
        (float(size), after.algorithm_word)
        for size, before, after in zip(sizes[1:], costs, costs[1:], strict=False)
        if before.algorithm_word != after.algorithm_word
    ]
    return SizeCurve(
        label=label,
        sizes_bytes=[float(size) for size in sizes],
        durations_ns=[cost.duration_ns for cost in costs],
        bus_factor=bus_bandwidth(kind, size_bytes=1.0, rank_count=rank_count, duration_ns=1e9),
        low_ns=[low for low, _ in intervals],
        high_ns=[high for _, high in intervals],
        measured_bytes=[float(point.size_bytes) for point in points],
        measured_ns=[point.duration_ns for point in points],
        switches=switches,
    )
