"""TorchRec's benchmark of training pipelines: its YAML file as a workload.

The file lists tables by number and width, further tables one by one, the model `test_sparse_nn`
by its sizes, and a pipeline. Everything has a default, so a short file is a whole benchmark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from perfmodel.extensions.formats.models.fields import FieldReader, FieldUse, Source, Use

KIND = "TorchRec benchmark"
SECTIONS = {"RunOptions", "PipelineConfig", "EmbeddingTablesConfig"}
"""Sections by which a file is recognised; any two of them."""
_PIPELINES = {"base": False, "sparse": True, "prefetch": True}
"""Whether a pipeline copies and distributes the next batch during an iteration."""
_OPTIMIZERS = {
    "EXACT_ADAGRAD": "adagrad", "EXACT_ROWWISE_ADAGRAD": "rowwise_adagrad", "EXACT_SGD": "sgd",
    "SGD": "sgd", "ADAM": "adam",
}  # fmt: skip
_DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8"}
_READS = {
    "world_size": "RunOptions.world_size=2",
    "batch_size": "RunOptions.batch_size=32768",
    "pipeline": "PipelineConfig.pipeline=base",
    "sparse_optimizer": "RunOptions.sparse_optimizer=EXACT_ADAGRAD",
    "dense_optimizer": "RunOptions.dense_optimizer=SGD",
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
    for table, limits in (of["constraints"] or {}).items():
        if kernels := [one for one in limits.get("compute_kernels", ()) if "uvm" in str(one)]:
            fields.faults.add(
                f"additional_constraints.{table}",
                f"keeps rows in host memory ({kernels[0]}), which is read from a file of tables "
                "(`memory: host_cached` with --tables), not from here",
            )
    lists = (of["further"] or [])[:_READ_LISTS]
    of_lists: list[list[tuple[int, int, str]]] = []
    for place, count in enumerate((of["unweighted"], of["weighted"])):
        sizes = [max(number, 100) * of["rows"] // 100 for number in range(1, count + 1)]
        tables = [(rows, of["width"], of["dtype"]) for rows in sizes]
        tables += [
            (one["num_embeddings"], one["embedding_dim"], one.get("data_type", of["dtype"]))
            for one in (lists[place] if place < len(lists) else ())
        ]
        of_lists.append(tables)
    tables = [table for one in of_lists for table in one]
    dtypes = [_one_of(fields, "data_type", dtype, _DTYPES) for _, _, dtype in tables]
    uses = fields.finish([key for key in fields.content if not key.startswith("ModelSel")])
    weighted = len(of_lists[1])
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
            "rows": [rows for rows, _, _ in tables],
            "width": [width for _, width, _ in tables],
            "dtype": dtypes,
            "pooling_factors": of["pooling"],
            "optimizer": optimizer,
        },
        "training": {"optimizer": dense, "distribute_ahead": pipeline},
        "sharding": {"sharder": "torchrec"},
        "assumed": [
            f"batch: {of['batch_size']:,} samples on each of {of['world_size']} ranks.",
            f"Not modelled: weights of {weighted} features, norms, constraints of the planner.",
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


def _one_of(fields: FieldReader, key: str, word: Any, known: Mapping[str, Any]) -> Any:
    if word not in known:
        fields.faults.add(key, f"can only be {', '.join(known)}, got {word!r}")
    return known.get(word)
