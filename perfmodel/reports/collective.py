"""One collective, alone and with others, or over all sizes: answers, their JSON and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectives.calibration import calibration_for
from collectives.collective import (
    Collective,
    CollectiveCost,
    CollectiveKind,
    CollectiveSoftware,
    bus_bandwidth,
)
from collectives.group import wiring_of
from collectives.measurements import CollectiveMeasurement
from collectives.movement import FloatArray
from collectives.pricing import CollectiveCall, price_collectives, price_sizes
from collectives.sharing import share_links
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_US, format_bandwidth, format_duration, format_size
from perfmodel.reports.blocks import Report, Section, Table
from perfmodel.reports.pictures import as_written, build_figure, save_picture
from perfmodel.reports.text import pick
from perfmodel.validation.scoreboard import interval_of
from topologies import Cluster

SCHEMA_VERSION = 1
SMALLEST_POWER, LARGEST_POWER = 9, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveGroup:
    """Ranks on a cluster, and the library that they call."""

    cluster: Cluster
    ranks: tuple[int, ...]
    software: CollectiveSoftware
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveAnswer:
    """Calls of one moment: what each takes *alone*, and *together* with the others."""

    group: CollectiveGroup
    calls: tuple[CollectiveCall, ...]
    alone: tuple[CollectiveCost, ...]
    together: tuple[CollectiveCost, ...]

    def to_dict(self) -> dict[str, object]:
        """The first call as plain values, and all of them at once where there are others."""
        document: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            **_document(self.calls[0], self.alone[0]),
        }
        if len(self.calls) > 1:
            pairs = zip(self.calls, self.together, strict=True)
            document["together"] = [_document(call, cost) for call, cost in pairs]
        return document


def answer_calls(
    group: CollectiveGroup,
    collective: Collective,
    beside: Sequence[tuple[Collective, Sequence[int]]] = (),
) -> CollectiveAnswer:
    """Price *collective* of the *group*, and again with others of other ranks *beside* it."""
    others = (CollectiveCall(one, tuple(ranks)) for one, ranks in beside)
    calls = (CollectiveCall(collective, group.ranks), *others)
    alone = tuple(price_collectives(calls, cluster=group.cluster, software=group.software))
    together = alone
    if beside:
        together = tuple(share_links(calls, alone, cluster=group.cluster))
    return CollectiveAnswer(group, calls, alone, together)


def _document(call: CollectiveCall, cost: CollectiveCost) -> dict[str, object]:
    low, high = interval_of(cost.duration_ns, cost.relative_sigma)
    document: dict[str, object] = {
        "kind": call.collective.kind.value,
        "size_bytes": call.collective.size_bytes,
        "ranks": len(call.ranks),
        "time_us": cost.duration_ns / 1e3,
        "interval_us": [low / 1e3, high / 1e3],
        "bus_bandwidth_bytes_per_s": cost.bus_bandwidth_bytes_per_s,
        **pick(cost, "algorithm", "protocol", "busiest_link", "latency_ratio"),
        "provenance": cost.provenance.word,
    }
    if cost.per_rank_ns is not None:
        document["per_rank_us"] = [float(value) / 1e3 for value in cost.per_rank_ns]
    return document


def report_collective(answer: CollectiveAnswer) -> Report:
    """The first call alone, and all calls together where there are several."""
    call, cost = answer.calls[0], answer.alone[0]
    low, high = interval_of(cost.duration_ns, cost.relative_sigma)
    interval = f"90 %: {format_duration(low)} to {format_duration(high)}"
    share = 100 * cost.latency_ratio
    rows = [
        ("time", f"{format_duration(cost.duration_ns)}  ({interval}, {cost.provenance.word})"),
        ("bus bandwidth", format_bandwidth(cost.bus_bandwidth_bytes_per_s)),
        ("chosen", f"{cost.algorithm}, {cost.protocol}"),
        ("busiest link", cost.busiest_link or "none"),
        ("share", f"{share:.0f} % latency, {100 - share:.0f} % bandwidth"),
    ]
    if cost.per_rank_ns is not None:
        first, last = float(cost.per_rank_ns.min()), float(cost.per_rank_ns.max())
        rows.append(("ranks end", f"{format_duration(first)} to {format_duration(last)}"))
    together = []
    for one, alone, shared in zip(answer.calls, answer.alone, answer.together, strict=True):
        ratio = shared.duration_ns / alone.duration_ns if alone.duration_ns else 1.0
        times = format_duration(shared.duration_ns), format_duration(alone.duration_ns)
        together.append((_name(one), *times, f"{ratio:.2f}x"))
    table = Table(("at the same time", "together", "alone", ""), together, numeric=(1, 2, 3))
    return Report(
        f"{_name(call)} on {answer.group.cluster.topology.name}",
        sections=[Section("", [Table((), rows), *([table] if len(together) > 1 else [])])],
    )


def _name(call: CollectiveCall) -> str:
    size = format_size(call.collective.size_bytes)
    return f"{call.collective.kind.value} of {size} over {len(call.ranks)} ranks"


@dataclass(frozen=True, slots=True, eq=False)
class SizeSweep:
    """A collective over sizes from 512 B to 1 GiB, and what was *measured* of the same group."""

    group: CollectiveGroup
    kind: CollectiveKind
    costs: tuple[CollectiveCost, ...]
    measured: tuple[CollectiveMeasurement, ...]

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """What was priced."""
        return tuple(int(size) for size in _sizes(step=1.0))

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        rows = [
            {
                "size_bytes": size,
                "time_us": cost.duration_ns / 1e3,
                "bus_bandwidth_bytes_per_s": cost.bus_bandwidth_bytes_per_s,
                **pick(cost, "algorithm", "protocol", "latency_ratio"),
            }
            for size, cost in zip(self.sizes_bytes, self.costs, strict=True)
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind.value,
            "ranks": len(self.group.ranks),
            "sweep": rows,
            "measured": [[point.size_bytes, point.duration_ns / 1e3] for point in self.measured],
        }

    def plot(self, path: Path) -> None:
        """Draw time and bus bandwidth over sizes, also between those of the table."""
        draw_sizes(self, path)


def answer_sizes(
    group: CollectiveGroup,
    kind: CollectiveKind,
    measurements: Sequence[CollectiveMeasurement] = (),
) -> SizeSweep:
    """Price sizes from 512 B to 1 GiB, beside those *measurements* that are of the same group."""
    asked = (group.cluster.topology.name, group.cluster.block_count, len(group.ranks))
    alike = tuple(
        row
        for row in measurements
        if (row.topology, row.hosts, row.ranks) == asked and row.kind is kind
    )
    return SizeSweep(group, kind, tuple(_costs(group, kind, _sizes(step=1.0))), alike)


def _sizes(*, step: float) -> FloatArray:
    powers = np.arange(SMALLEST_POWER, LARGEST_POWER + step / 2, step)
    return np.asarray(np.exp2(powers), dtype=np.float64)


def _costs(group: CollectiveGroup, kind: CollectiveKind, sizes: FloatArray) -> list[CollectiveCost]:
    wiring = wiring_of(group.ranks, group.cluster)
    if wiring.rank_count == 1:
        raise InputError("sweep: a group of one rank moves nothing. Ask for two ranks or more.")
    if kind is CollectiveKind.SEND_RECV and wiring.rank_count != 2:
        raise InputError("sweep: send_recv is between two ranks. Give --ranks with two of them.")
    return price_sizes(
        kind,
        sizes,
        wiring=wiring,
        software=group.software,
        calibration=calibration_for(group.cluster.device),
        dtype=group.dtype,
    )


def report_sizes(sweep: SizeSweep) -> Report:
    """Every size with its time and choice, and the median of what was measured."""
    measured: dict[int, list[float]] = {}
    for point in sweep.measured:
        measured.setdefault(point.size_bytes, []).append(point.duration_ns)
    rows, before = [], ""
    for size, cost in zip(sweep.sizes_bytes, sweep.costs, strict=True):
        word, found = cost.algorithm_word, measured.get(size)
        rows.append(
            (
                format_size(size),
                format_duration(cost.duration_ns),
                format_bandwidth(cost.bus_bandwidth_bytes_per_s),
                word,
                f"{100 * cost.latency_ratio:.0f} %",
                "" if found is None else format_duration(float(np.median(found))),
                "<- NCCL switches here" if before and word != before else "",
            )
        )
        before = word
    headings = ("size", "time", "bus bandwidth", "choice", "latency", "measured", "")
    name = sweep.group.cluster.topology.name
    return Report(
        f"{sweep.kind.value} over {len(sweep.group.ranks)} ranks on {name}",
        sections=[Section("", [Table(headings, rows, numeric=range(6))])],
        columns=100,
    )


def draw_sizes(sweep: SizeSweep, path: Path) -> None:
    """Time and bus bandwidth over sizes: lines are predicted, dots are measured."""
    sizes = _sizes(step=0.125)
    costs = _costs(sweep.group, sweep.kind, sizes)
    ranks = len(sweep.group.ranks)
    figure = build_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    times_us = np.array([cost.duration_ns for cost in costs]) / NS_PER_US
    ends = [interval_of(cost.duration_ns, cost.relative_sigma) for cost in costs]
    low_us, high_us = np.array(ends).T / NS_PER_US
    left.plot(sizes, times_us, label=f"{sweep.kind.value}, {ranks} ranks", linewidth=1.4)
    left.fill_between(sizes, low_us, high_us, alpha=0.12, linewidth=0)
    right.plot(sizes, [cost.bus_bandwidth_bytes_per_s / 1e9 for cost in costs], linewidth=1.4)
    dots = {"color": "C0", "marker": "o", "markersize": 3.2, "alpha": 0.7, "linestyle": "none"}
    points = np.array([(one.size_bytes, one.duration_ns) for one in sweep.measured]).reshape(-1, 2)
    left.plot(points[:, 0], points[:, 1] / NS_PER_US, **dots)
    rates = [
        bus_bandwidth(sweep.kind, size_bytes=size, rank_count=ranks, duration_ns=duration) / 1e9
        for size, duration in points
    ]
    right.plot(points[:, 0], rates, **dots)
    for size, before, after in zip(sizes[1:], costs, costs[1:], strict=False):
        if before.algorithm_word != after.algorithm_word:
            left.axvline(size, color="C0", linestyle=":", linewidth=0.8)
            place = {"xycoords": ("data", "axes fraction"), "va": "bottom", "ha": "right"}
            left.annotate(
                after.algorithm_word, (size, 0.02), rotation=90, fontsize=6.5, color="C0", **place
            )
    left.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (us)")
    right.set(xscale="log", xlabel="size (bytes)", ylabel="bus bandwidth (GB/s)")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(visible=True, which="major", alpha=0.3)
    left.legend(fontsize=8, loc="upper left")
    key = "  (line: predicted, dots: measured)" if sweep.measured else ""
    title = as_written(f"{sweep.group.cluster.topology.name}{key}")
    figure.suptitle(title, fontsize=11)
    save_picture(figure, path, dpi=110)
