"""Recommendation runs: from the cells of a row to a workload."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.validation.runs_table import RunRow, stated_or_none
from perfmodel.workloads.catalog import list_workloads, load_workload, parse_workload
from perfmodel.workloads.dlrm.spec import DlrmSpec

_STORED = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
_BYTES_PER_GB = 1e9
_ALIKE, _ALIKE_SHARE = 1.3, 0.75
"""Tables of one data set: so many of them differ by no more than this factor."""


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
        "sharding": row.meaning("placement"),
        "dense": _dense(row),
        "training": {"precision": precision, "optimizer": optimizer},
    }
    spec = parse_workload(content, document=f"row {row.name}")
    assert isinstance(spec, DlrmSpec)
    return spec


def _embedding(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    width, rows, lookups = row.count("emb_dim"), _table_rows(row, sentences), row.counts("lookups")
    if not lookups:
        sentences.append("Lookups a sample and table are not stated: one taken.")
    each = lookups if len(lookups) > 1 else (lookups or [1]) * len(rows)
    if row.switch("wide_table") is not True:
        skew = _skew(rows, each, sentences) if row.counts("table_rows") else {}
        pooling = [float(count) for count in each]
        return {"rows": rows, "width": width, "pooling_factors": pooling, **skew}
    sentences.append("The wide part is a table of width 1 with a row for each of the others.")
    return {
        "rows": [*rows, sum(rows)],
        "width": [width] * len(rows) + [1],
        "pooling_factors": [*(float(count) for count in each), float(sum(each))],
    }


def _skew(rows: list[int], lookups: list[int], sentences: list[str]) -> dict[str, Any]:
    """How skewed indices are: as in the shipped workload that has the same tables, if one has.

    Tables are compared in order of size, because data sets are cut at other row counts.
    """
    order = sorted(range(len(rows)), key=lambda place: -rows[place])
    for spec in _skewed_workloads():
        known = spec.embedding
        known_order = sorted(range(len(known.rows)), key=lambda place: -known.rows[place])
        pairs = list(zip(order, known_order, strict=False))
        alike = sum(
            max(rows[own], known.rows[other]) <= _ALIKE * min(rows[own], known.rows[other])
            for own, other in pairs
        )
        pooling = known.pooling_factors
        is_multi_hot = isinstance(pooling, tuple)
        if len(rows) != len(known.rows) or is_multi_hot is not (max(lookups) > 1):
            continue
        if alike >= _ALIKE_SHARE * len(rows):
            assert isinstance(known.zipf_exponents, tuple)
            exponents, occurring = [0.0] * len(rows), [1] * len(rows)
            for own, other in pairs:
                exponents[own] = known.zipf_exponents[other]
                occurring[own] = min(rows[own], (known.zipf_rows or known.rows)[other])
            sentences.append(f"Indices are as skewed as those of {spec.name}, whose tables it has.")
            return {
                "zipf_exponents": exponents,
                "zipf_rows": occurring,
                "fixed_bags": known.fixed_bags,
            }
    return {}


@lru_cache(maxsize=1)
def _skewed_workloads() -> tuple[DlrmSpec, ...]:
    found = (load_workload(title.name) for title in list_workloads())
    return tuple(
        spec
        for spec in found
        if isinstance(spec, DlrmSpec) and isinstance(spec.embedding.zipf_exponents, tuple)
    )


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
