"""Recommendation runs: from the cells of a row to a workload."""

from __future__ import annotations

import re
from typing import Any

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.validation.runs_software import SoftwareRule, read_precision
from perfmodel.validation.runs_table import RunRow
from perfmodel.workloads.catalog import parse_workload
from perfmodel.workloads.dlrm.spec import DlrmSpec

_OPTIMIZERS = {"SGD": "sgd", "Adagrad": "adagrad", "Adam": "adam"}
_COPIED_BELOW = "2 MiB"
"""What counts as a small table where a run states only that small or frequent ones are copied."""
_INTERACTIONS = {"dot": "dot", "concat": "concat", "concat + wide sum": "wide_deep"}
_CROSS = re.compile(r"DCNv2 (?P<layers>\d+) layers low-rank (?P<rank>\d+)")
_SLOTS = re.compile(r"(?P<slots>\d+) slots \(1 fused table\) \+ wide table")


def build_dlrm_spec(row: RunRow, rule: SoftwareRule, sentences: list[str]) -> DlrmSpec:
    """The workload of *row* under the software of *rule*; defaults go into *sentences*."""
    missing = [name for name in ("gbs", "dense_features", "emb_dim") if row.count(name) is None]
    if missing:
        raise WorkloadError(f"not stated: {', '.join(missing)}")
    optimizer = _OPTIMIZERS.get(row.text("optimizer"))
    if optimizer is None:
        raise WorkloadError(f"optimizer {row.text('optimizer')!r} is not known")
    precision = read_precision(row)
    is_half = precision.stored is not DType.FP32
    content: dict[str, Any] = {
        "name": str(row.name),
        "family": "dlrm",
        "description": row.text("model") or "a measured run",
        "source": row.text("source"),
        "stack": rule.profile,
        "batch": row.count("gbs"),
        "sync_each_iteration": rule.reads_loss,
        "embedding": _embedding(row, sentences)
        | {"optimizer": optimizer, "exchange_dtype": precision.stored.value},
        "training": {"precision": precision.stored.value, "optimizer": optimizer},
    }
    content["sharding"] = _sharding(row, rule, sentences)
    if rule.load_ms:
        load_ms = rule.load_ms + rule.load_us_per_sample * int(content["batch"]) / 1e3
        content["input"] = {"load_time": f"{load_ms:.6g} ms"}
        sentences.append(
            f"The loader takes {rule.load_ms} ms a batch and {rule.load_us_per_sample} us a sample."
        )
    content["dense"] = _dense(row, content["embedding"])
    if is_half:
        sentences.append("Tables are kept in fp32 and exchanged in fp16.")
    spec = parse_workload(content, document=f"row {row.name}")
    assert isinstance(spec, DlrmSpec)
    return spec


def _sharding(row: RunRow, rule: SoftwareRule, sentences: list[str]) -> dict[str, Any]:
    text = row.text("sharding")
    if "table-wise" in text and "column" not in text:
        return {"min_width": row.count("emb_dim")}
    if rule.copies_small_tables and re.search(r"\bdp\b", text):
        sentences.append(f"Tables below {_COPIED_BELOW} stand on every rank.")
        return {"data_parallel_below": _COPIED_BELOW}
    return {}


def _embedding(row: RunRow, sentences: list[str]) -> dict[str, Any]:
    width = row.count("emb_dim")
    fused = _SLOTS.match(row.text("n_tables"))
    if fused is not None:
        slots, total = int(fused["slots"]), row.count("rows_total") or 0
        sentences.append(
            f"The fused table is cut in {slots} equal ones; the wide part is one of width 1."
        )
        return {
            "rows": [max(total // slots, 1)] * slots + [max(total, 1)],
            "width": [width] * slots + [1],
            "pooling_factors": [1.0] * slots + [float(slots)],
        }
    rows = _numbers(row.text("table_rows"))
    if not rows:
        raise WorkloadError("the rows of the tables are not stated")
    pooling = [float(value) for value in _numbers(row.text("multi_hot"))]
    if not pooling:
        sentences.append("Lookups a sample and table are not stated: one taken.")
    return {"rows": rows, "width": width, "pooling_factors": pooling if len(pooling) > 1 else 1.0}


def _dense(row: RunRow, embedding: dict[str, Any]) -> dict[str, Any]:
    features = row.count("dense_features") or 0
    bottom = _numbers(row.text("bottom_mlp"))
    bottom = bottom[1:] if bottom[:1] == [features] else bottom
    dense: dict[str, Any] = {"features": features, "bottom_mlp": bottom}
    text = row.text("interaction")
    cross = _CROSS.match(text)
    if cross is not None:
        dense |= {"interaction": "cross"}
        dense["cross"] = {name: int(value) for name, value in cross.groupdict().items()}
    elif text in _INTERACTIONS:
        dense["interaction"] = _INTERACTIONS[text]
    else:
        raise WorkloadError(f"interaction {text!r} is not a workload yet")
    top = _numbers(row.text("top_mlp"))
    dense["top_mlp"] = top[1:] if top and top[0] == _top_inputs(dense, embedding) else top
    return dense


def _top_inputs(dense: dict[str, Any], embedding: dict[str, Any]) -> int:
    """What a table may name as the input of the top layers, before the first of them."""
    count, last = len(embedding["rows"]), [dense["features"], *dense["bottom_mlp"]][-1]
    if dense["interaction"] == "dot":
        return int(last + (count + 1) * count // 2)
    width = embedding["width"]
    widths = width if isinstance(width, list) else [width] * count
    if dense["interaction"] == "wide_deep":
        widths = [one for one in widths if one > 1]
    return int(last + sum(widths))


def _numbers(text: str) -> list[int]:
    """Numbers joined by dashes; what stands in brackets is a remark."""
    plain = re.sub(r"\(.*?\)", "", text).strip()
    return [int(part) for part in plain.split("-")] if re.fullmatch(r"[\d-]+", plain) else []
