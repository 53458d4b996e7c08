"""Reports of lists: shipped machines, models and stacks, what-ifs, an installation, index files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embeddings.index_data import BIN_COUNT, DataStatistics
from perfmodel.base.dtypes import DType
from perfmodel.reports.blocks import Block, Report, Section, Sentences, Table
from perfmodel.reports.pictures import build_figure
from topologies import load_device, load_topology

SHOWN_TABLES = 20
HEAVY = 20
"""Pooling factor from which a table counts as heavy, as in the paper."""
TERA = 1e12


def report_machines(machines: Sequence[str], devices: Sequence[str]) -> Report:
    """One line per machine, and one per GPU with its dense peaks and memory bandwidth."""
    rows = []
    for name in machines:
        topology = load_topology(name)
        nvlink = topology.nvlink_bandwidth_bytes_per_s(0) / 1e9
        rate = f"{nvlink:g} GB/s" if nvlink else "-"
        rows.append((name, str(topology.gpus_per_host), rate, topology.description))
    peaks = [_device_cells(name) for name in devices]
    headings = ("", "TFLOP/s fp32", "tf32", "fp16", "fp8", "memory", "TB/s")
    return Report(
        "",
        sections=[
            Section(
                "Machines (--topology)",
                [Table(("", "GPUs", "NVLink", ""), rows, numeric=(1, 2), code=(0,), wraps=(3,))],
            ),
            Section("GPUs", [Table(headings, peaks, numeric=range(1, 7), code=(0,))]),
        ],
    )


def _device_cells(name: str) -> list[str]:
    device = load_device(name)
    peaks = [
        f"{device.peak_flops[dtype] / TERA:.4g}" if dtype in device.peak_flops else "-"
        for dtype in (DType.FP32, DType.TF32, DType.FP16, DType.FP8)
    ]
    memory = f"{device.memory_bytes / 2**30:.4g} GiB"
    return [name, *peaks, memory, f"{device.memory_bandwidth_bytes_per_s / TERA:.4g}"]


def report_models(
    workloads: Sequence[tuple[str, str]], stacks: Sequence[tuple[str, str]], *, default: str
) -> Report:
    """Workloads and software stacks with their descriptions; *default* needs no option."""
    return Report(
        "",
        sections=[
            Section("Workloads (--workload)", [_described(workloads)]),
            Section("Software stacks (--stack)", [_described(stacks)]),
        ],
        footer=f"The default workload is {default}. Your own YAML files work the same way.",
    )


def _described(rows: Sequence[tuple[str, str]]) -> Table:
    cells = [(name, " ".join(description.split())) for name, description in rows]
    return Table((), cells, code=(0,), wraps=(1,))


def report_whatifs(whatifs: Sequence[tuple[str, str, str]]) -> Report:
    """The changes that `whatif` knows: name, what it does, parameters."""
    return Report(
        "",
        sections=[
            Section(name, [Sentences([summary]), Sentences([parameters])])
            for name, summary, parameters in whatifs
        ],
    )


def report_installation(found: Mapping[str, Any], extras: Mapping[str, str]) -> Report:
    """Versions, places and faults; *extras* says what each optional package is for."""
    versions = found["versions"]
    rows = [(name, place or "NOT FOUND") for name, place in found["places"].items()]
    words = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())
    rows += [("versions", words), ("Ray", found["ray"])]
    missing = [
        f"without {name}: no {use}. Install it with: pip install 'perfmodel[emulate]'"
        for name, use in extras.items()
        if versions[name] is None
    ]
    blocks: list[Block] = [Table((), rows, wraps=(1,))]
    return Report(
        f"perfmodel {found['perfmodel']} on Python {found['python']}, {found['system']}, "
        f"{found['cores']} cores, {found['memory_gib']} GiB of memory",
        sections=[
            Section("", [*blocks, *([Sentences(missing)] if missing else [])]),
            Section("Faults", [Sentences(found["faults"])] if found["faults"] else []),
        ],
        footer="Something is wrong; see above." if found["faults"] else "All well.",
        columns=100,
    )


def report_statistics(found: DataStatistics) -> Report:
    """Pooling and reuse of indices, one line per table, those with most lookups first."""
    headings = ("table", "lookups", "pooling", "deviation", "longest", "distinct rows",
                "hottest row", "distinct in set", "distinct in batch")  # fmt: skip
    rows = [
        (
            one.name,
            f"{one.lookups}",
            f"{one.pooling_mean:.2f}",
            f"{one.pooling_deviation:.2f}",
            f"{one.pooling_max}",
            f"{one.distinct_rows}",
            f"{100 * one.hottest_share:.2f} %",
            f"{100 * one.set_distinct_ratio:.1f} %",
            f"{100 * one.batch_distinct_ratio:.1f} %",
        )
        for one in sorted(found.tables, key=lambda one: -one.lookups)
    ]
    table = Table(headings, rows, numeric=range(1, 9), most=SHOWN_TABLES)
    return Report(
        f"{found.source}: {len(found.tables)} tables, {found.sample_count} samples, "
        f"batches of {found.batch_size}",
        sections=[Section("", [table])],
        columns=120,
    )


def draw_statistics(found: DataStatistics) -> bytes:
    """Cumulative shares by reuse, and a histogram of pooling factors, as PNG."""
    figure = build_figure(11, 4)
    left, right = figure.subplots(1, 2)
    edges = 2.0 ** np.arange(BIN_COUNT)
    for label, shares, style in (
        ("whole set", found.set_reuse, "-"),
        (f"batches of {found.batch_size}", found.batch_reuse, "--"),
    ):
        left.plot(edges, np.cumsum(shares.of_rows), f"C0{style}", label=f"rows, {label}")
        left.plot(edges, np.cumsum(shares.of_lookups), f"C1{style}", label=f"lookups, {label}")
    left.set_xscale("log", base=2)
    left.set_xlabel("reuse of a row, up to")
    left.set_ylabel("cumulative share")
    left.set_ylim(0, 1.02)
    left.legend(fontsize=8)
    pooling = np.array([table.pooling_mean for table in found.tables])
    top = max(float(pooling.max()), 1.0)
    right.hist(np.maximum(pooling, 0.1), bins=np.geomspace(0.1, 2 * top, 30), color="#7aa6c2")
    right.set_xscale("log")
    right.axvline(HEAVY, color="#b33", linestyle=":")
    right.annotate(" heavy", (HEAVY, 0.95), xycoords=("data", "axes fraction"), color="#b33")
    right.set_xlabel("mean pooling factor")
    right.set_ylabel("tables")
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=110, metadata={"Software": ""})
    return target.getvalue()
