"""The machine of a prediction on a page: what it is made of, and which of its links are busy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.base.units import format_bandwidth, format_duration
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.evidence import Evidence
from perfmodel.prediction.explain import merge_numbers
from perfmodel.reports.blocks import Block, Range, Ranges, Sentences, Table
from perfmodel.reports.text import name_ranks
from topologies import Topology, load_topology

INSIDE, BETWEEN = "links inside the host", "network card"
MOST_LINES = 12
MOST_LABELS = 8


def build_links(prediction: Prediction) -> list[Block]:
    """The machine, how long each class of ranks keeps its links busy, and with what."""
    scenario = prediction.scenario
    if scenario is None or scenario.topology is None:
        return []
    try:
        topology = load_topology(scenario.topology)
    except PerfModelError:
        # A page may be made where the file of the machine is not.
        return []
    blocks: list[Block] = [Table((), _facts(topology, scenario.hosts or 1), code=(1,))]
    busy = _busy(prediction)
    if not busy:
        return [*blocks, Sentences(["No collective keeps a link busy."])]
    window = format_duration(prediction.evidence.window.length_ns)
    note = (
        f"How long collectives keep the links of a rank busy in the {window} of the timeline, at "
        "the speed that software reaches."
    )
    return [*blocks, Ranges(busy[:MOST_LINES], note), *_by_label(prediction)]


def _facts(topology: Topology, hosts: int) -> list[tuple[str, str]]:
    device = topology.device
    rows = [
        ("machine", f"{hosts} x {topology.name}"),
        ("GPUs per host", f"{topology.gpus_per_host} x {device.name}"),
        ("GPU memory bandwidth", format_bandwidth(device.memory_bandwidth_bytes_per_s)),
    ]
    nvlink = topology.nvlink_bandwidth_bytes_per_s(0)
    if nvlink:
        rows.append(("NVLink per GPU, one way", format_bandwidth(nvlink)))
    if topology.fabric is not None:
        card = format_bandwidth(topology.fabric.nic_bandwidth_bytes_per_s)
        rows.append(("network per host", f"{topology.nics_per_host} x {card}"))
        rows.append(("fabric", topology.fabric.kind.value.replace("_", " ")))
    return rows


def _busy(prediction: Prediction) -> list[Range]:
    """Busiest first; ties by rank."""
    evidence = prediction.evidence
    found = [
        (name_ranks(evidence.class_ranks[rank]), word, float(busy_ns))
        for rank, times in _of_ranks(evidence)
        for word, busy_ns in zip((INSIDE, BETWEEN), times.sum(axis=0), strict=True)
        if busy_ns > 0
    ]
    whole_ns = max(evidence.window.length_ns, 1)
    most = max((busy_ns for *_, busy_ns in found), default=0.0)
    found.sort(key=lambda one: -one[2])
    return [
        Range(
            f"{ranks}, {word}",
            f"{format_duration(busy_ns)}, {busy_ns / whole_ns:.0%}",
            min(busy_ns / whole_ns, 1.0),
            min(busy_ns / whole_ns, 1.0),
            min(busy_ns / whole_ns, 1.0),
            is_best=busy_ns == most,
        )
        for ranks, word, busy_ns in found
    ]


def _of_ranks(evidence: Evidence) -> Iterator[tuple[int, np.ndarray]]:
    """For every rank of the folded job, tasks by links: how long each is busy."""
    priced = evidence.priced
    if priced is None:
        return
    for rank in range(evidence.job.rank_count):
        rows = priced.durations.rows_of(evidence.job, rank)
        yield rank, priced.durations.values_ns[rows, :1] * priced.link_use[rows]


def _by_label(prediction: Prediction) -> list[Block]:
    """What the busiest rank sends."""
    evidence = prediction.evidence
    loads = list(_of_ranks(evidence))
    rank, times = max(loads, key=lambda load: float(load[1].sum(axis=0).max()))
    totals: dict[str, np.ndarray] = {}
    for task in np.flatnonzero(times.any(axis=1)).tolist():
        label = merge_numbers(evidence.job.labels[int(evidence.job.program_of(rank).label[task])])
        totals[label] = totals.get(label, np.zeros(2)) + times[task]
    busiest = sorted(totals, key=lambda label: (-float(totals[label].max()), label))
    rows = [
        (label, *(format_duration(float(one)) if one else "" for one in totals[label]))
        for label in busiest[:MOST_LABELS]
    ]
    name = name_ranks(evidence.class_ranks[rank])
    headings = (f"busiest on {name}", INSIDE, BETWEEN)
    return [Table(headings, rows, numeric=(1, 2), finds=(0,))]
