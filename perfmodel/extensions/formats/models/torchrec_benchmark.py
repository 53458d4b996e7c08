"""TorchRec's benchmark of training pipelines: its YAML file as a workload.

The file lists tables by number and width, further tables one by one, the model `test_sparse_nn`
by its sizes, and a pipeline. Everything has a default, so a short file is a whole benchmark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from embeddings.plan_document import NO_CACHE
from perfmodel.extensions.formats.models.fields import FieldReader, FieldUse, Source, Use

KIND = "TorchRec benchmark"
SECTIONS = {"RunOptions", "PipelineConfig", "EmbeddingTablesConfig"}
"""Sections by which a file is recognised; any two of them."""
_PIPELINES = {
    "base": False, "sparse": True, "semi": True, "fused": True, "prefetch": True,
    "eval-sdd": True, "eval-fused": True,
}  # fmt: skip
"""Whether a pipeline copies and distributes the next batch during an iteration."""
_EVALUATION = "eval"
"""What names of pipelines without a backward pass begin with."""
_CACHED_RATIOS = {"fused_uvm_caching": 0.2, "fused_uvm": NO_CACHE}
"""By kernel that reads host memory, the share of a table on the device where none is stated."""
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
    "constraints": "PlannerConfig.additional_constraints?",
    "sharding": "PlannerConfig.sharding_type|RunOptions.sharding_type=table_wise",
    "kernel": "PlannerConfig.compute_kernel|RunOptions.compute_kernel=fused",
}  # fmt: skip
"""Where each figure is, with the benchmark's own default."""
_LEAVES = ("further", "constraints")
_READ_LISTS = 2
"""Lists of further tables that the benchmark uses: for features without weights, and with."""


def read_benchmark(
    content: Mapping[str, Any], *, document: str, name: str, given: Collection[str] = ()
) -> tuple[dict[str, Any], tuple[FieldUse, ...]]:
    """The workload in the benchmark file *document*, and what became of its fields."""
    leaves = {Source.parse(_READS[word]).keys[0] for word in _LEAVES}
    fields = FieldReader(document, dict(_flat("", content, leaves)), given)
    of = {word: fields.read(word, Source.parse(source)) for word, source in _READS.items()}
    if of["model"] != "test_sparse_nn":
        fields.faults.add("model_name", f"can only be test_sparse_nn, got {of['model']!r}")
    pipeline = _one_of(fields, "pipeline", of["pipeline"], _PIPELINES)
    optimizer = _one_of(fields, "sparse_optimizer", of["sparse_optimizer"], _OPTIMIZERS)
    dense = _one_of(fields, "dense_optimizer", str(of["dense_optimizer"]).upper(), _OPTIMIZERS)
    lists = (of["further"] or [])[:_READ_LISTS]
    tables: list[tuple[str, int, int, str]] = []
    for place, (prefix, count) in enumerate(
        (("table", of["unweighted"]), ("weighted_table", of["weighted"]))
    ):
        tables += [
            (
                f"{prefix}_{number}",
                max(number + 1, 100) * of["rows"] // 100,
                of["width"],
                of["dtype"],
            )
            for number in range(count)
        ]
        further = lists[place] if place < len(lists) else ()
        tables += [
            (one["name"], one["num_embeddings"], one["embedding_dim"],
             one.get("data_type", of["dtype"]))
            for one in further
        ]  # fmt: skip
    dtypes = [_one_of(fields, "data_type", dtype, _DTYPES) for *_, dtype in tables]
    limits = [(of["constraints"] or {}).get(name, {}) for name, *_ in tables]
    uses = fields.finish([key for key in fields.content if not key.startswith("ModelSel")])
    weighted = of["weighted"] + (len(lists[1]) if len(lists) > 1 else 0)
    open_fields = [use.key for use in uses if use.use is Use.DEFAULTED and use.value is not None]
    return {
        "name": name,
        "family": "dlrm",
        "description": f"TorchRec benchmark of the {of['pipeline']} pipeline, {len(tables)} tables",
        "source": document,
        "stack": "torchrec",
        "batch": of["batch_size"] * of["world_size"],
        "input": {"prefetch": pipeline},
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
            "cached_ratios": [_cached_ratio(one, of["kernel"]) for one in limits],
            "sharding_types": [
                "+".join(str(word).lower() for word in one.get("sharding_types", [of["sharding"]]))
                for one in limits
            ],
            "pooling_factors": of["pooling"],
            "optimizer": optimizer,
        },
        "training": {
            "optimizer": dense,
            "distribute_ahead": pipeline,
            "forward_only": str(of["pipeline"]).startswith(_EVALUATION),
        },
        "sharding": {"sharder": "torchrec"},
        "assumed": [
            f"batch: {of['batch_size']:,} samples on each of {of['world_size']} ranks.",
            f"Not modelled: weights of {weighted} features, norms, fetching cached rows ahead.",
            *(
                [f"Not stated, so as the benchmark has it: {', '.join(open_fields)}."]
                if open_fields
                else []
            ),
        ],
    }, uses


def _flat(prefix: str, content: Mapping[str, Any], leaves: Collection[str]) -> Any:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in leaves:
            yield from _flat(f"{name}.", value, leaves)
        else:
            yield name, value


def _cached_ratio(limits: Mapping[str, Any], usual: str) -> float:
    """The share on the device of a table with the constraints *limits*."""
    kernels = limits.get("compute_kernels") or [usual]
    ratio = _CACHED_RATIOS.get(str(kernels[0]).lower(), 1.0)
    stated = (limits.get("cache_params") or {}).get("load_factor")
    return float(stated) if stated and ratio < 1 else ratio


def _one_of(fields: FieldReader, key: str, word: Any, known: Mapping[str, Any]) -> Any:
    if word not in known:
        fields.faults.add(key, f"can only be {', '.join(known)}, got {word!r}")
    return known.get(word)
