"""Rows of timed kernels and collectives, all kinds in one table, as `calibrate kernels` takes them.

`kind` says what a row is; its other cells are the sizes of that kind (`own_kernels`), `latency_ms`
or another time, `device`, and how it was timed: `under_load` (1 in loops so long that the chip has
the clock of a long run) and `residency`. Collectives name their `topology`, `ranks` and `hosts`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from collectives import Collective, price_collective
from perfmodel.base.cautions import Cautions
from perfmodel.base.dtypes import parse_dtype
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.base.provenance import Provenance
from perfmodel.base.reading import quote
from perfmodel.costs.estimates import Bound, Estimates, build_estimates
from perfmodel.costs.models import price_ops
from perfmodel.extensions.measurements.calibration.own_kernels import (
    KINDS,
    TimedKernel,
    op_of,
    row_of,
    seats,
)
from perfmodel.extensions.measurements.checking import check_kernels
from perfmodel.extensions.measurements.kernel_tables import KERNEL_KINDS, kind_of
from perfmodel.extensions.measurements.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    build_measured,
    load_frame,
    parse_rate,
    read_rows,
)
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.capabilities import Residency
from perfmodel.stacks.profiles import load_stack
from topologies import (
    build_cluster,
    list_devices,
    load_device,
    load_topology,
    name_devices,
)

PASSES = {"sdp_fwd": ("forward", 2), "sdp_bwd": ("backward", 5)}
"""Attention by pass: rates in such rows count so many products, of all pairs of a causal mask."""
KIND_WORDS = {**{word: word for word in KINDS}, "matmul": "gemm", "group_matmul": "grouped"}
KIND_WORDS |= dict.fromkeys(PASSES, "attention")
"""What tables call a kind of kernel."""
SIZE_WORDS = {"m_per_group": "m", "num_heads": "heads", "num_key_value_heads": "kv_heads"}
"""What tables call a size."""
STAGES = {"dgrad": ("m", "k", "n"), "wgrad": ("n", "k", "m")}
"""Gradients whose rows state m, n, k of the forward product: where their own are among them."""
_OF_CALL = ("topology", "ranks", "hosts")


def read_tables(paths: Sequence[Path], device: str | None) -> tuple[KernelTable, Cautions]:
    """The rows of all kinds in the tables at *paths*, and what is wrong with others."""
    tables = [read_table(path, device) for path in paths]
    kernels = tuple(row for table in tables for row in table.kernels)
    unsupported = tuple(row for table in tables for row in table.unsupported)
    names = ", ".join(map(str, paths))
    if not kernels:
        raise MeasurementError(
            f"{names}: no row can be used, so nothing was learnt."
            + "".join(f" Row {one.row}: {one.reason}." for one in unsupported[:3])
        )
    rows, cautions = check_kernels(KernelTable(kernels, ()), names, price_rows)
    return replace(rows, unsupported=unsupported), cautions


def read_table(path: Path, device: str | None) -> KernelTable:
    """The rows of all kinds in the table at *path*."""
    frame = load_frame(path, device)
    kind = kind_of(set(frame.columns))
    if kind is not None and not {"kind", "m"} & set(frame.columns):
        return _read_benchmark(kind, path, device)
    if missing := {"device", "latency_ms"} - set(frame.columns):
        raise MeasurementError(
            f"{path}: a table of timed kernels must have the columns device, latency_ms (or a time "
            f"in another unit) and kind; missing {', '.join(sorted(missing))}."
        )
    if "dry_run" in frame.columns and frame["dry_run"].any():
        raise MeasurementError(
            f"{path}: its times are those of a dry run on a CPU. Run the script on the GPUs."
        )

    def read(name: str, row: Mapping[Any, Any]) -> Iterator[MeasuredKernel]:
        # An empty cell is not a number.
        cells = {
            SIZE_WORDS.get(str(key), str(key)): int(value)
            if isinstance(value, float) and value.is_integer()
            else value
            for key, value in row.items()
            if value == value  # noqa: PLR0124  not-a-number is unequal to itself
        }
        if (stage := cells.get("stage")) in STAGES:
            cells |= dict(zip("mnk", [cells[name] for name in STAGES[str(stage)]], strict=True))
        if cells.get("accumulate") == 1:
            width = parse_dtype(str(cells.get("out_dtype", "fp32"))).size_bytes
            cells["added_bytes"] = 2 * width * cells["m"] * cells["n"] * cells.get("groups", 1)
        word = str(cells.get("kind", cells.get("op", "gemm" if "m" in cells else "")))
        if word not in KIND_WORDS:
            raise InputError(f"kind must be one of {', '.join(KIND_WORDS)}, got {quote(word)}")
        kind = KIND_WORDS[word]
        cells |= _rated_cells(word, cells)
        if kind == "collective":
            cells["kind"] = cells.get("collective")
        op = op_of(kind, {**({"dtype": "bf16"} if kind != "lookup" else {}), **cells})
        place = {key: cells[key] for key in _OF_CALL if kind == "collective"}
        residency = cells.get("residency")
        timed = build_measured(
            name,
            (path.name, str(cells["device"]), kind),
            op,
            cells.get("latency_ms"),
            place,
            residency=None if residency is None else Residency(residency),
            rate=parse_rate(cells.get("tflops")) if kind == "gemm" else 0.0,
            under_load=cells.get("under_load", 0),
        )
        if timed.device not in list_devices() and not Path(timed.device).suffix:
            known = ", ".join(name_devices(timed.device)) or "`perfmodel topology list`"
            raise InputError(f"device {quote(timed.device)} must be one of {known}")
        yield timed

    return read_rows(frame, read)


def _rated_cells(word: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of attention of a *row* of one of PASSES, with its time by its rate."""
    if word not in PASSES:
        return {}
    (direction, products), width = PASSES[word], row["qk_head_dim"] + row["v_head_dim"]
    flops = products * row["batch"] * row["seq_len"] ** 2 * row["heads"] * width
    rate = parse_rate(row["tflops"]) or math.nan
    return {
        "query_length": row["seq_len"], "key_length": row["seq_len"], "head_dim": width // 2,
        "is_causal": True, "direction": direction,
        # 1e12 operations per second are 1e9 per millisecond.
        "latency_ms": flops / 1e9 / rate,
    }  # fmt: skip


def _read_benchmark(kind: str, path: Path, device: str | None) -> KernelTable:
    """The rows of a table of one *kind*, in one of the formats of public benchmarks."""
    if kind not in KINDS:
        raise MeasurementError(
            f"{path}: rows must be of single kernels, got whole layers of {kind}. Time their "
            "products: kind grouped, with groups, m, n and k."
        )
    table = KERNEL_KINDS[kind].load(path, device)
    rows = [replace(one, group=(*one.group[:2], kind), columns={}) for one in table.kernels]
    return replace(table, kernels=tuple(rows))


def price_rows(rows: Sequence[MeasuredKernel]) -> Estimates:
    """*rows* of one device and kind as perfmodel predicts them."""
    if isinstance(rows[0].op, Collective):
        times_ns = []
        for row in rows:
            topology, timed = load_topology(str(row.columns["topology"])), _timed(row)
            cluster = build_cluster(topology, hosts=timed.hosts)
            ranks = seats(timed, cluster)
            times_ns.append(price_collective(row.op, cluster=cluster, ranks=ranks).duration_ns)
        return build_estimates(
            np.array(times_ns), relative_sigma=0.2, provenance=Provenance.ANALYTIC, bound=Bound.LINK
        )
    stack = load_stack("kernel_benchmark")
    return price_ops([row.op for row in rows], device=load_device(rows[0].device), stack=stack)


def _timed(row: MeasuredKernel) -> TimedKernel:
    usual = row.operand_residency if isinstance(row.op, Gemm) else Residency.COLD
    return TimedKernel(
        device=row.device,
        kind=row.group[-1],  # type: ignore[arg-type]  # one of KIND_WORDS
        cells=row_of(row.op),
        time=row.measured_ns,
        under_load=row.is_under_load,
        residency=row.residency or usual,
        **{key: int(value) for key, value in row.columns.items() if key != "topology"},  # type: ignore[call-overload]
    )


def kernels_text(table: KernelTable, about: Mapping[str, str]) -> str:
    """The rows of *table* as a calibration, with what its header says *about* it."""
    rows = []
    for row in table.kernels:
        one = _timed(row)
        document: dict[str, Any] = {"device": one.device, "kind": one.kind}
        document["time"] = f"{one.time / 1e3:.6g} us"
        document |= {"under_load": one.under_load, "residency": one.residency.value}
        document |= {"ranks": one.ranks, "hosts": one.hosts} if one.kind == "collective" else {}
        rows.append({**document, "cells": dict(one.cells)})
    devices = ", ".join(dict.fromkeys(row.device for row in table.kernels))
    document = {**about, "hardware": devices, "software": "see the tables", "kernels": rows}
    return yaml.safe_dump(document, sort_keys=False, width=160, default_flow_style=None)


def iter_lines(table: KernelTable) -> Iterator[str]:
    """Rows that are not used, and how many of each kind are."""
    for one in table.unsupported:
        yield f"Row {one.row} is not used: {one.reason}"
    kinds = ((row.device, row.group[-1], row.is_under_load) for row in table.kernels)
    for (device, kind, under_load), count in Counter(kinds).items():
        how = "under load" if under_load else "in a burst"
        yield f"{device}, {kind}: {count} rows timed {how}."
