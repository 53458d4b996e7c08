"""Recommendation runs: from the cells of a row to a workload."""

from __future__ import annotations

from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.validation.runs_table import RunRow, stated_or_none
from perfmodel.workloads.catalog import parse_workload
from perfmodel.workloads.dlrm.spec import DlrmSpec

_STORED = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
_BYTES_PER_GB = 1e9
_WHOLE = "whole"


def build_dlrm_spec(row: RunRow, stack: SoftwareStack, sentences: list[str]) -> DlrmSpec:
    """The workload of *row* under *stack*; what is taken for granted goes into *sentences*."""
    missing = [name for name in ("gbs", "dense_features", "emb_dim") if row.count(name) is None]
    missing += [
        name
        for name in ("compute_precision", "interaction_kind", "top_layers")
        if not row.text(name)
    ]
    if missing:
        raise WorkloadError(f"not stated: {', '.join(missing)}")
    precision = _STORED.get(row.text("compute_precision"), "bf16")
    optimizer = row.text("optimizer_kind") or "sgd"
    if not row.text("optimizer_kind"):
        sentences.append("The optimizer is not stated: sgd taken.")
    if precision != "fp32":
        sentences.append(f"Tables are kept in fp32 and exchanged in {precision}.")
    content: dict[str, Any] = {
        "name": str(row.name),
        "family": "dlrm",
        "description": row.text("model") or "a measured run",
        "source": row.text("source") or "a table of measured runs",
        "stack": stack.name,
        "batch": row.count("gbs"),
        "embedding": _embedding(row, sentences)
        | {"optimizer": optimizer, "exchange_dtype": precision},
        "sharding": _sharding(row),
        "dense": _dense(row),
        "training": {"precision": precision, "optimizer": optimizer},
    }
    spec = parse_workload(content, document=f"row {row.name}")
    assert isinstance(spec, DlrmSpec)
    return spec


def _sharding(row: RunRow) -> dict[str, Any]:
    changes = row.meaning("placement")
    return {
        name: row.count("emb_dim") if value == _WHOLE else value for name, value in changes.items()
    }


def _embedding(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    width, rows, lookups = row.count("emb_dim"), _table_rows(row, sentences), row.counts("lookups")
    if not lookups:
        sentences.append("Lookups a sample and table are not stated: one taken.")
    each = lookups if len(lookups) > 1 else (lookups or [1]) * len(rows)
    if row.switch("wide_table") is not True:
        return {"rows": rows, "width": width, "pooling_factors": [float(count) for count in each]}
    sentences.append("The wide part is a table of width 1 with a row for each of the others.")
    return {
        "rows": [*rows, sum(rows)],
        "width": [width] * len(rows) + [1],
        "pooling_factors": [*(float(count) for count in each), float(sum(each))],
    }


def _table_rows(row: RunRow, sentences: list[str]) -> list[int]:
    stated = row.counts("table_rows")
    if stated:
        return stated
    tables, total = row.count("tables"), row.count("rows_total")
    size_gb = row.number("emb_params_gb")
    if total is None and size_gb is not None:
        total = int(size_gb * _BYTES_PER_GB / (4 * (row.count("emb_dim") or 1)))
    if tables is None or total is None:
        raise WorkloadError("the rows of the tables are not stated")
    sentences.append(f"The rows of each table are not stated: {tables} equal ones taken.")
    return [max(total // tables, 1)] * tables


def _dense(row: RunRow) -> dict[str, Any]:
    dense: dict[str, Any] = {
        "features": row.count("dense_features"),
        "bottom_mlp": row.counts("bottom_layers"),
        "top_mlp": row.counts("top_layers"),
        **row.meaning("interaction_kind"),
    }
    cross = stated_or_none(row, ("cross_layers", "cross_rank"))
    if cross:
        dense["cross"] = {name.removeprefix("cross_"): count for name, count in cross.items()}
    return dense
