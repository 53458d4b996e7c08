"""The answer of `perfmodel collective` for one call, alone and beside others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collectives.cost import CollectiveCost
from collectives.pricing import CollectiveCall, price_collectives
from collectives.sharing import share_links
from perfmodel.base.errors import InputError
from perfmodel.base.units import format_bandwidth, format_duration, format_size, parse_size
from perfmodel.cli.collective_request import CollectiveRequest, parse_beside
from perfmodel.validation.scoreboard import interval_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION = 1
NO_SIZE = ("barrier",)


def answer_single(
    request: CollectiveRequest, *, size: str | None, beside: Sequence[str], byte_matrix: Path | None
) -> tuple[dict[str, object], list[str]]:
    """Price one call, and again with the others at the same time."""
    call = request.call(_size_of(request, size, byte_matrix), byte_matrix)
    calls = [call, *(parse_beside(text, request.dtype) for text in beside)]
    costs = price_collectives(calls, cluster=request.cluster, software=request.software)
    answer: dict[str, object] = {"schema_version": SCHEMA_VERSION, **_document(call, costs[0])}
    lines = _lines(request, call, costs[0])
    if beside:
        shared = share_links(calls, costs, cluster=request.cluster)
        answer["together"] = [_document(one, cost) for one, cost in zip(calls, shared, strict=True)]
        lines += [_together_line(*row) for row in zip(calls, costs, shared, strict=True)]
    return answer, lines


def _size_of(request: CollectiveRequest, size: str | None, byte_matrix: Path | None) -> int:
    if size is not None:
        return parse_size(size)
    if request.kind.value in NO_SIZE or byte_matrix is not None:
        return 0
    raise InputError(f"{request.kind.value}: needs --size, such as 64MiB, or --sweep.")


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


def _lines(request: CollectiveRequest, call: CollectiveCall, cost: CollectiveCost) -> list[str]:
    low, high = interval_of(cost.duration_ns, cost.relative_sigma)
    share = 100 * cost.latency_ratio
    name = request.cluster.topology.name
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
