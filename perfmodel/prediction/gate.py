"""The gate: what no machine can do is refused, or warned of in the answer.

Every question passes it when it is priced, and so do single prices. Tables of measurements pass
the same limits before they are fitted or scored (`perfmodel.extensions.measurements.checking`).
`gate.yaml` has the tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collectives.collective import CollectiveCost
from perfmodel.base.cautions import Cautions, Warned, join_cautions
from perfmodel.base.documents import load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.ops import Attention, Gemm, GroupedGemm, MemoryBound
from perfmodel.prediction.question import Question
from perfmodel.workloads.fields import Workload
from topologies import Device, LinkKind, Topology

Ratio = tuple[str, float]
"""What a kind of limit is about, and how many times faster than it something is."""


@cache
def limits() -> dict[str, dict[str, Any]]:
    """The tolerances."""
    return load_yaml(Path(__file__).with_name("gate.yaml"))


def check_question(question: Question, priced: PricedJob) -> Cautions:
    """What the answer to *question* warns of; a price that is no number is refused."""
    _check_finite(priced.float_ns, priced.job.facts.name)
    found = []
    if question.cluster is not None:
        found.append(check_machine(question.cluster.topology))
        if question.known is None:
            found.append(Cautions((*_beyond_prices(priced, question.cluster.device),)))
    if question.workload is not None:
        found.append(check_workload(question.workload, question.work))
    return join_cautions(found)


def check_workload(workload: Workload, *others: object) -> Cautions:
    """What is implausible of *workload* and of *others* that it led to."""
    found = _outside(workload.name, [*others, *(part for _, part in workload)])
    return Cautions((*found,), workload.unknown_keys)


def check_machine(machine: Topology, costs: Iterable[CollectiveCost] = ()) -> Cautions:
    """What is implausible of *machine*, and of collectives with these *costs* on it."""
    priced = tuple(costs)
    _check_finite([one.duration_ns for one in priced], machine.name)
    wires = [("wire", one.wire_ns / max(one.duration_ns, 1.0)) for one in priced]
    nouns = [machine, *_parts(machine.device), machine.fabric, *machine.links]
    found = (*beyond([max(wires, default=("wire", 0.0))], machine.name), *_beyond_pcie(machine))
    # Links that are alike are one warning.
    found += (*dict.fromkeys(_outside(machine.name, nouns)),)
    return Cautions(found, machine.unknown_keys)


def check_op(op: Any, device: Device, duration_ns: float) -> Cautions:
    """What is implausible of a kernel that takes so long, and of its *device*."""
    found = _outside(device.name, _parts(device))
    return Cautions((*beyond(ratios_of(op, device, duration_ns), device.name), *found))


def _check_finite(times_ns: Any, where: str) -> None:
    if not all(map(math.isfinite, times_ns)):
        raise ScenarioError(
            f"{where}: a price is not a finite number. Check machine and calibrations: "
            "`perfmodel topology check`."
        )


def beyond(ratios: Iterable[Ratio], where: str) -> Iterator[Warned]:
    """Those of *ratios* that break their limit."""
    for kind, ratio in ratios:
        if not ratio <= (limit := limits()["beyond"][kind]):
            yield Warned(f"beyond the {kind}", where, ratio, limit)


def ratios_of(op: Any, device: Device, duration_ns: float) -> Iterator[Ratio]:
    """How many times faster than the datasheet *op* is; traffic that a cache may hold is exempt."""
    per_s = NS_PER_S * getattr(op, "launches", 1) / max(duration_ns, 1e-3)
    if isinstance(op, MemoryBound):
        moved = op.read_bytes + op.write_bytes
        if moved > 2 * device.l2_bytes:
            yield "memory", moved * per_s / device.memory_bandwidth_bytes_per_s
    elif isinstance(op, Gemm | GroupedGemm | Attention):
        rates, formats = device.peak_flops, {op.dtype}
        formats |= {DType.TF32} if op.dtype is DType.FP32 else set()
        own = [rates[one] for one in formats if one in rates]
        yield "peak", op.flops * per_s / max(own or rates.values())


def _beyond_prices(priced: PricedJob, device: Device) -> Iterator[Warned]:
    """The worst task of *priced* by every limit that one breaks."""
    job = priced.job
    worst: dict[str, tuple[float, str]] = {}
    offsets = priced.durations.rank_offset.tolist()
    for number, start in dict.fromkeys(zip(job.rank_program.tolist(), offsets, strict=True)):
        program = job.programs[number]
        rows = slice(start, start + program.task_count)
        ops, first = np.unique(program.op, return_index=True)
        least_ns = np.full(len(job.ops), np.inf)
        np.minimum.at(least_ns, program.op, priced.float_ns[rows])
        wires = priced.link_use[rows, 2]
        for op, task in zip(ops.tolist(), first.tolist(), strict=True):
            found = [*ratios_of(job.ops[op], device, float(least_ns[op])), ("wire", wires[task])]
            for kind, ratio in found:
                label = job.labels[int(program.label[task])]
                worst[kind] = max(worst.get(kind, (0.0, "")), (float(ratio), label))
    for kind, (ratio, label) in worst.items():
        yield from beyond([(kind, ratio)], label)


def _outside(where: str, nouns: Iterable[Any]) -> Iterator[Warned]:
    """What *nouns* state outside of the ranges."""
    for noun in dict.fromkeys(nouns):
        for name, (low, high) in limits()["ranges"].get(type(noun).__name__, {}).items():
            attribute, _, divisor = name.partition("/")
            value, by = getattr(noun, attribute), _divisor(noun, divisor)
            several = value.values() if isinstance(value, Mapping) else value
            for one in several if isinstance(value, Mapping | tuple) else (value,):
                amount = one and one / by
                if amount is not None and not low <= amount <= high:
                    said = name.replace("_", " ").replace("/", " per ")
                    yield Warned(f"implausible {said}", where, amount, min(max(amount, low), high))


def _parts(device: Device) -> tuple[Any, ...]:
    return device, device.host_link, device.multiprocessors


def _divisor(noun: Any, name: str) -> float:
    """What a range called `attribute/name` divides by."""
    if not name:
        return 1
    if name == "byte":
        return float(noun.memory_bandwidth_bytes_per_s)
    return float(noun.sm_count * noun.clock_hz)


def _beyond_pcie(machine: Topology) -> Iterator[Warned]:
    """NICs of the fabric that are faster than what joins them to their host, and slow NVLinks."""
    rates = {
        kind: [link.bandwidth_bytes_per_s for link in machine.links if link.kind is kind]
        for kind in (LinkKind.PCIE, LinkKind.NVLINK)
    }
    joins = [link for link in machine.links if link.kind is LinkKind.PCIE and "nic:" in link.source]
    if machine.fabric is not None and joins:
        most = max(link.bandwidth_bytes_per_s for link in joins)
        ratio = machine.fabric.nic_bandwidth_bytes_per_s / most
        yield from beyond([("wire", ratio)], f"NIC of {machine.name}")
    if all(rates.values()):
        gain = min(rates[LinkKind.NVLINK]) / max(rates[LinkKind.PCIE])
        if gain < 1:
            yield Warned("implausible NVLink over PCIe", machine.name, gain, 1)
