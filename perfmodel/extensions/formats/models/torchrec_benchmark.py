"""TorchRec's benchmark of training pipelines: its YAML file as a workload.

The file lists tables by number and width, further tables one by one, the model `test_sparse_nn`
by its sizes, and a pipeline. Everything has a default, so a short file is a whole benchmark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from embeddings.plan_document import NO_CACHE
from perfmodel.base.reading import quote
from perfmodel.extensions.formats.models.fields import FieldReader, FieldUse, Use
from perfmodel.extensions.formats.models.settings import flatten, load_table, read_values

KIND = "TorchRec benchmark"
SECTIONS = {"RunOptions", "PipelineConfig", "EmbeddingTablesConfig"}
"""Sections by which a file is recognised; any two of them."""
_CACHED, _UNCACHED = "fused_uvm_caching", "fused_uvm"
"""Kernels that read host memory, with a cache on the device and without."""
_DTYPES = ("fp32", "fp16", "bf16", "int8")
_FURTHER, _SIZES = "additional_tables", ("num_embeddings", "embedding_dim")
_READ_LISTS = 2
"""Lists of further tables that the benchmark uses: for features without weights, and with."""


def read_benchmark(
    content: Mapping[str, Any], *, document: str, name: str, given: Collection[str] = ()
) -> tuple[dict[str, Any], list[FieldUse]]:
    """The workload in the benchmark file *document*, and what became of its fields."""
    planner = content.get("PlannerConfig")
    planner = dict(planner) if isinstance(planner, Mapping) else {"": planner}
    constraints = planner.pop("additional_constraints", None) or {}
    flat, table = flatten({**content, "PlannerConfig": planner}, (), []), load_table("torchrec")
    fields = FieldReader(document, flat, given, table.ignored)
    of = read_values(table, fields)
    lists = _further_tables(fields, of.get("tables:further"), of.get("tables:dtype"))
    if not isinstance(constraints, Mapping) or not all(
        isinstance(one, Mapping) for one in constraints.values()
    ):
        fields.faults.add("additional_constraints", f"must be by table, got {quote(constraints)}")
    # What follows counts with values of the right kind.
    fields.check()
    tables: list[tuple[str, int, int, str]] = []
    of_prefix = {"table": of["tables:plain"], "weighted_table": of["tables:weighted"]}
    usual = of["tables:width"], of["tables:dtype"]
    for (prefix, count), more in zip(of_prefix.items(), lists, strict=True):
        rows = (max(one + 1, 100) * of["tables:rows"] // 100 for one in range(count))
        tables += [(f"{prefix}_{one}", many, *usual) for one, many in enumerate(rows)] + more
    dtypes = [str(dtype).lower() for *_, dtype in tables]
    for dtype in dict.fromkeys(dtypes):
        fields.check_one_of("data_type", dtype, _DTYPES)
    limits = [constraints.get(name, {}) for name, *_ in tables]
    pipeline = flat.get("PipelineConfig.pipeline", "base")
    kind = f"{KIND} of the {pipeline} pipeline, {len(tables)} tables,"
    weighted = of["tables:weighted"] + len(lists[1])
    assumed = [
        f"batch: {of['run:batch']:,} samples on each of {of['run:ranks']} ranks.",
        f"Not modelled: weights of {weighted} features, norms, fetching cached rows ahead.",
    ]
    return {
        **fields.describe(name, kind, assumed),
        "family": "dlrm",
        "stack": table.stack,
        "batch": of["run:batch"] * of["run:ranks"],
        "input": {"prefetch": of["run:pipeline"] != "nothing"},
        "dense": {
            "features": of["dense.features"],
            "bottom_mlp": [*of.get("bottom:hidden", ()), of["bottom:out"]],
            "top_mlp": [of["top:out"]] * (1 + of["top:layers"]),
            "interaction": "concat",
        },
        "embedding": {
            "rows": [rows for _, rows, _, _ in tables],
            "width": [width for _, _, width, _ in tables],
            "dtype": dtypes,
            "cached_ratios": [_cached_ratio(one, of) for one in limits],
            "sharding_types": [
                "+".join(
                    str(one).lower() for one in limit.get("sharding_types", [of["plan:sharding"]])
                )
                for limit in limits
            ],
            **{
                key: of[f"embedding.{key}"]
                for key in ("pooling_factors", "zipf_exponents", "optimizer")
            },
        },
        "training": {
            "optimizer": of["training.optimizer"],
            "distribute_ahead": of["run:pipeline"] in ("distributed", "forward"),
            "forward_only": of["run:pipeline"] == "forward",
        },
        "sharding": {"sharder": "torchrec"},
    }, fields.uses


def _further_tables(
    fields: FieldReader, stated: Any, dtype: Any
) -> list[list[tuple[str, int, int, str]]]:
    """Tables listed one by one: for features without weights, then for those with."""
    lists = [one or [] for one in stated or []] if isinstance(stated, list | None) else [[stated]]
    found: list[list[tuple[str, int, int, str]]] = [[] for _ in range(_READ_LISTS)]
    for place, one in enumerate(lists[:_READ_LISTS]):
        for table in one if isinstance(one, list) else [one]:
            sizes = [table.get(key) for key in _SIZES] if isinstance(table, Mapping) else [None]
            if not all(type(size) is int and size > 0 for size in sizes) or "name" not in table:
                words = ", ".join(("name", *_SIZES))
                fault = f"must be lists of tables ({words}), got {quote(table)}"
                fields.faults.add(_FURTHER, fault)
                continue
            held = table.get("data_type")
            if held is None:
                fields.uses.append(FieldUse(f"{_FURTHER}.data_type", Use.DEFAULTED, "", dtype))
            for key in table.keys() - {"name", "data_type", "feature_names", *_SIZES}:
                fields.uses.append(FieldUse(f"{_FURTHER}.{key}", Use.UNKNOWN, "", table[key]))
            found[place].append((str(table["name"]), *sizes, held or dtype))
    return found


def _cached_ratio(limits: Mapping[str, Any], of: Mapping[str, Any]) -> float:
    """The share on the device of a table with the constraints *limits*."""
    kernel = str((limits.get("compute_kernels") or [of["plan:kernel"]])[0]).lower()
    if kernel == _CACHED:
        return float((limits.get("cache_params") or {}).get("load_factor") or of["plan:cached"])
    return NO_CACHE if kernel == _UNCACHED else 1.0
