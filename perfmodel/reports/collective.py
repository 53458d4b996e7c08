"""One collective, alone and beside others, or over all sizes: an answer as lines and as JSON."""

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
from perfmodel.base.units import format_bandwidth, format_duration, format_size
from perfmodel.reports.collective_plots import SizeCurve, plot_sizes
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

    def lines(self) -> list[str]:
        """The same for people."""
        lines = _lines(self.group.cluster.topology.name, self.calls[0], self.alone[0])
        if len(self.calls) > 1:
            rows = zip(self.calls, self.alone, self.together, strict=True)
            lines += [_together_line(*row) for row in rows]
        return lines


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
        "algorithm": cost.algorithm,
        "protocol": cost.protocol,
        "busiest_link": cost.busiest_link,
        "latency_ratio": cost.latency_ratio,
        "provenance": cost.provenance.word,
    }
    if cost.per_rank_ns is not None:
        document["per_rank_us"] = [float(value) / 1e3 for value in cost.per_rank_ns]
    return document


def _lines(name: str, call: CollectiveCall, cost: CollectiveCost) -> list[str]:
    low, high = interval_of(cost.duration_ns, cost.relative_sigma)
    share = 100 * cost.latency_ratio
    lines = [
        (
            f"{call.collective.kind.value} of {format_size(call.collective.size_bytes)} over "
            f"{len(call.ranks)} ranks on {name}"
        ),
        (
            f"  time           {format_duration(cost.duration_ns)}   "
            f"(90 %: {format_duration(low)} to {format_duration(high)}, {cost.provenance.word})"
        ),
        f"  bus bandwidth  {format_bandwidth(cost.bus_bandwidth_bytes_per_s)}",
        f"  chosen         {cost.algorithm}, {cost.protocol}",
        f"  busiest link   {cost.busiest_link or 'none'}",
        f"  share          {share:.0f} % latency, {100 - share:.0f} % bandwidth",
    ]
    if cost.per_rank_ns is not None:
        first, last = float(cost.per_rank_ns.min()), float(cost.per_rank_ns.max())
        lines.append(f"  ranks end      {format_duration(first)} to {format_duration(last)}")
    return lines


def _together_line(call: CollectiveCall, alone: CollectiveCost, shared: CollectiveCost) -> str:
    ratio = shared.duration_ns / alone.duration_ns if alone.duration_ns else 1.0
    return (
        f"  together: {call.collective.kind.value} of {format_size(call.collective.size_bytes)} "
        f"over {len(call.ranks)} ranks {format_duration(shared.duration_ns)}, "
        f"alone {format_duration(alone.duration_ns)} ({ratio:.2f}x)"
    )


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
                "algorithm": cost.algorithm,
                "protocol": cost.protocol,
                "latency_ratio": cost.latency_ratio,
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

    def lines(self) -> list[str]:
        """The same for people."""
        name = self.group.cluster.topology.name
        lines = [f"{self.kind.value} over {len(self.group.ranks)} ranks on {name}"]
        lines.append(
            f"{'size':>10} {'time':>10} {'bus':>12} {'choice':>16} {'latency':>8} measured"
        )
        by_size: dict[int, list[float]] = {}
        for point in self.measured:
            by_size.setdefault(point.size_bytes, []).append(point.duration_ns)
        before = ""
        for size, cost in zip(self.sizes_bytes, self.costs, strict=True):
            word = cost.algorithm_word
            found = by_size.get(size)
            shown = "" if found is None else format_duration(float(np.median(found)))
            switch = "  <- NCCL switches here" if before and word != before else ""
            lines.append(
                f"{format_size(size):>10} {format_duration(cost.duration_ns):>10} "
                f"{format_bandwidth(cost.bus_bandwidth_bytes_per_s):>12} {word:>16} "
                f"{100 * cost.latency_ratio:>6.0f} % {shown}{switch}"
            )
            before = word
        return lines

    def plot(self, path: Path) -> None:
        """Draw it into the file *path*, with sizes between those of the table."""
        sizes = _sizes(step=0.125)
        costs = _costs(self.group, self.kind, sizes)
        ranks = len(self.group.ranks)
        label = f"{self.kind.value}, {ranks} ranks"
        curve = build_curve(self.kind, label, sizes, costs, ranks, self.measured)
        plot_sizes([curve], path, title=self.group.cluster.topology.name)


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
