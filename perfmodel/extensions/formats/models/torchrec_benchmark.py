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
from perfmodel.extensions.formats.models.settings import flatten

KIND = "TorchRec benchmark"
SECTIONS = {"RunOptions", "PipelineConfig", "EmbeddingTablesConfig"}
"""Sections by which a file is recognised; any two of them."""
_PIPELINES = {
    "base": 0, "hybrid_base": 0, "sparse_lite": 1, "sparse": 2, "semi": 2, "fused": 2,
    "prefetch": 2, "prefetch-ems": 2, "sparse-threading": 2, "sparse-bwd-opt": 2,
    "sparse-opt-stash": 2, "sparse-emb-stash": 2, "eval-sdd": 2, "eval-fused": 2,
}  # fmt: skip
"""What a pipeline does for the next batch during an iteration: copies it, also distributes it."""
_EVALUATION = "eval"
"""What names of pipelines without a backward pass begin with."""
_CACHED, _UNCACHED = "fused_uvm_caching", "fused_uvm"
"""Kernels that read host memory, with a cache on the device and without."""
_OPTIMIZERS = {
    "EXACT_ADAGRAD": "adagrad", "EXACT_ROWWISE_ADAGRAD": "rowwise_adagrad", "EXACT_SGD": "sgd",
    "SGD": "sgd", "ADAM": "adam",
}  # fmt: skip
_DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8"}
_READS = {
    "world_size": "RunOptions.world_size=2",
    "batch_size": "RunOptions.batch_size=32768",
    "pipeline": "PipelineConfig.pipeline=base",
    "sparse_optimizer": "ShardingConfig.fused_params.optimizer|RunOptions.sparse_optimizer"
                        "=EXACT_SGD",
    "dense_optimizer": "ShardingConfig.dense_optimizer|RunOptions.dense_optimizer=SGD",
    "features": "ModelSelectionConfig.model_config.num_float_features|"
                "ModelInputConfig.num_float_features=10",
    "pooling": "ModelInputConfig.feature_pooling_avg=10",
    "model": "ModelSelectionConfig.model_name=test_sparse_nn",
    "bottom": "ModelSelectionConfig.model_config.submodule_kwargs.dense_arch_hidden_sizes?",
    "bottom_out": "ModelSelectionConfig.model_config.submodule_kwargs.dense_arch_out_size=8",
    "top_out": "ModelSelectionConfig.model_config.submodule_kwargs.over_arch_out_size=16",
    "top_layers": "ModelSelectionConfig.model_config.submodule_kwargs.over_arch_hidden_layers=5",
    "unweighted": "EmbeddingTablesConfig.num_unweighted_features=100",
    "weighted": "EmbeddingTablesConfig.num_weighted_features=100",
    "width": "EmbeddingTablesConfig.embedding_feature_dim=128",
    "rows": "EmbeddingTablesConfig.base_row_size=100000",
    "dtype": "EmbeddingTablesConfig.table_data_type=FP32",
    "further": "EmbeddingTablesConfig.additional_tables?",
    "sharding": "PlannerConfig.sharding_type|RunOptions.sharding_type=table_wise",
    "cached": "ShardingConfig.fused_params.cache_load_factor=0.2",
    "skew": "ModelInputConfig.power_law_alpha=0.0",
    "kernel": "PlannerConfig.compute_kernel|RunOptions.compute_kernel=fused",
}  # fmt: skip
"""Where each figure is, with the benchmark's own default."""
_FURTHER, _SIZES = "additional_tables", ("num_embeddings", "embedding_dim")
_IGNORED = (
    r"^RunOptions\.(name|num_|output|profile|export|log|rank|debug|seed)",
    r"\.(lr|learning_rate|eps)$",
)
"""Keys without effect on time: names, numbers of repetitions, logging."""
_READ_LISTS = 2
"""Lists of further tables that the benchmark uses: for features without weights, and with."""


def read_benchmark(
    content: Mapping[str, Any], *, document: str, name: str, given: Collection[str] = ()
) -> tuple[dict[str, Any], list[FieldUse]]:
    """The workload in the benchmark file *document*, and what became of its fields."""
    planner = content.get("PlannerConfig")
    planner = dict(planner) if isinstance(planner, Mapping) else {"": planner}
    constraints = planner.pop("additional_constraints", None) or {}
    flat = flatten({**content, "PlannerConfig": planner}, (), [])
    fields = FieldReader(document, flat, given, _IGNORED)
    of = {word: fields.read(word, source) for word, source in _READS.items()}
    lists = _further_tables(fields, of["further"], of["dtype"])
    if not isinstance(constraints, Mapping) or not all(
        isinstance(one, Mapping) for one in constraints.values()
    ):
        fields.faults.add("additional_constraints", f"must be by table, got {quote(constraints)}")
    fields.check_one_of("model_name", of["model"], ("test_sparse_nn",))
    # What follows counts with values of the right kind.
    fields.check()
    pipeline = _one_of(fields, "pipeline", of["pipeline"], _PIPELINES)
    optimizer = _one_of(fields, "sparse_optimizer", of["sparse_optimizer"], _OPTIMIZERS)
    dense = _one_of(fields, "dense_optimizer", str(of["dense_optimizer"]).upper(), _OPTIMIZERS)
    tables: list[tuple[str, int, int, str]] = []
    of_prefix = {"table": of["unweighted"], "weighted_table": of["weighted"]}
    for (prefix, count), more in zip(of_prefix.items(), lists, strict=True):
        tables += [
            (f"{prefix}_{one}", max(one + 1, 100) * of["rows"] // 100, of["width"], of["dtype"])
            for one in range(count)
        ] + more
    dtypes = [_one_of(fields, "data_type", dtype, _DTYPES) for *_, dtype in tables]
    limits = [constraints.get(name, {}) for name, *_ in tables]
    kind = f"{KIND} of the {of['pipeline']} pipeline, {len(tables)} tables,"
    weighted = of["weighted"] + len(lists[1])
    assumed = [
        f"batch: {of['batch_size']:,} samples on each of {of['world_size']} ranks.",
        f"Not modelled: weights of {weighted} features, norms, fetching cached rows ahead.",
    ]
    return {
        **fields.describe(name, kind, assumed),
        "family": "dlrm",
        "stack": "torchrec",
        "batch": of["batch_size"] * of["world_size"],
        "input": {"prefetch": bool(pipeline)},
        "dense": {
            "features": of["features"],
            "bottom_mlp": [*(of["bottom"] or ()), of["bottom_out"]],
            "top_mlp": [of["top_out"]] * (1 + of["top_layers"]),
            "interaction": "concat",
        },
        "embedding": {
            "rows": [rows for _, rows, _, _ in tables],
            "width": [width for _, _, width, _ in tables],
            "dtype": dtypes,
            "cached_ratios": [_cached_ratio(one, of) for one in limits],
            "sharding_types": [
                "+".join(str(word).lower() for word in one.get("sharding_types", [of["sharding"]]))
                for one in limits
            ],
            "pooling_factors": of["pooling"],
            "zipf_exponents": of["skew"],
            "optimizer": optimizer,
        },
        "training": {
            "optimizer": dense,
            "distribute_ahead": pipeline == _PIPELINES["sparse"],
            "forward_only": str(of["pipeline"]).startswith(_EVALUATION),
        },
        "sharding": {"sharder": "torchrec"},
    }, fields.uses


def _further_tables(
    fields: FieldReader, stated: Any, dtype: str
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
    kernel = str((limits.get("compute_kernels") or [of["kernel"]])[0]).lower()
    if kernel == _CACHED:
        return float((limits.get("cache_params") or {}).get("load_factor") or of["cached"])
    return NO_CACHE if kernel == _UNCACHED else 1.0


def _one_of(fields: FieldReader, key: str, word: Any, known: Mapping[str, Any]) -> Any:
    fields.check_one_of(key, word, known)
    return known.get(str(word))
