"""TorchRec's benchmark files as workloads."""

from __future__ import annotations

import pytest

from embeddings.table import TableMemory
from perfmodel.base.errors import WorkloadError
from perfmodel.extensions.formats.models import Use, read_foreign, read_layout
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.dlrm.job import build_dlrm_job, build_plan

BENCHMARK = """
RunOptions: {world_size: 4, batch_size: 1024, sparse_optimizer: EXACT_ROWWISE_ADAGRAD, name: b}
PipelineConfig: {pipeline: sparse}
ModelInputConfig: {num_float_features: 100, feature_pooling_avg: 30}
ModelSelectionConfig:
  model_name: test_sparse_nn
  model_config:
    num_float_features: 100
    submodule_kwargs: {dense_arch_out_size: 128, dense_arch_hidden_sizes: [64],
                       over_arch_out_size: 1024, over_arch_hidden_layers: 2}
EmbeddingTablesConfig:
  num_unweighted_features: 101
  num_weighted_features: 1
  embedding_feature_dim: 256
  additional_tables:
    - - {name: half, embedding_dim: 512, num_embeddings: 7, data_type: FP16}
    - []
    - - {name: skipped, embedding_dim: 128, num_embeddings: 9}
"""


def _read(tmp_path, text):
    file = tmp_path / "bench.yml"
    file.write_text(text)
    return file, read_foreign(file)


def test_a_benchmark_is_a_workload_with_its_tables_and_layers(tmp_path):
    file, found = _read(tmp_path, BENCHMARK)
    assert found.kind == "TorchRec benchmark"
    spec = load_workload(file)
    assert (spec.name, spec.batch, spec.stack) == ("bench", 4096, "torchrec")
    tables = spec.embedding.tables()
    # 101 tables and the one of half precision, then one with weights; the third list is skipped.
    assert len(tables) == 103
    assert [table.rows for table in (tables[0], tables[99], tables[100])] == [100_000] * 2 + [
        101_000
    ]
    assert (tables[101].rows, tables[101].width, tables[101].dtype.value) == (7, 512, "fp16")
    assert (tables[102].rows, tables[102].width) == (100_000, 256)
    assert {table.pooling_factor for table in tables} == {30.0}
    assert spec.dense.bottom_mlp == (64, 128)
    assert spec.dense.top_mlp == (1024, 1024, 1024)
    assert (spec.embedding.optimizer, spec.training.optimizer) == ("rowwise_adagrad", "sgd")
    assert spec.input.prefetch
    assert spec.training.distribute_ahead
    assert any("weights of 1 features" in sentence for sentence in spec.assumed)


def test_a_short_benchmark_has_the_defaults_of_its_program(tmp_path):
    file, found = _read(tmp_path, "RunOptions: {}\nPipelineConfig: {pipeline: base}\n")
    spec = load_workload(file)
    assert len(spec.embedding.rows) == 200
    assert (spec.batch, spec.embedding.optimizer, spec.dense.top_mlp) == (
        65536,
        "sgd",
        (16,) * 6,
    )
    # Whole tables, none in host memory.
    assert {table.sharding_types for table in spec.embedding.tables()} == {("table_wise",)}
    assert {table.memory for table in spec.embedding.tables()} == {TableMemory.DEVICE}
    # The base pipeline does nothing ahead.
    assert not spec.input.prefetch
    assert not spec.training.distribute_ahead
    assert any(use.use is Use.DEFAULTED for use in found.uses)


CONSTRAINTS = """
PlannerConfig:
  additional_constraints:
    half: {sharding_types: [row_wise], compute_kernels: [fused_uvm_caching],
           cache_params: {load_factor: 0.5}}
    table_0: {compute_kernels: [fused_uvm]}
    table_1: {compute_kernels: [fused_uvm_caching]}
ShardingConfig: {fused_params: {cache_load_factor: 0.25}}
"""


def test_constraints_say_how_tables_are_cut_and_which_are_in_host_memory(tmp_path):
    file, _ = _read(tmp_path, BENCHMARK + CONSTRAINTS)
    tables = load_workload(file).embedding.tables()
    half = tables[101]
    assert (half.sharding_types, half.memory) == (("row_wise",), TableMemory.HOST_CACHED)
    # 7 rows of 512 numbers in two bytes each, half of them on the device.
    assert half.device_bytes == 7 * 512 * 2 // 2
    # Without a cache nothing stays on the device.
    assert tables[0].device_bytes == 1
    # A quarter of 100,000 rows of 256 numbers.
    assert tables[1].device_bytes == 25_000 * 256 * 4
    assert tables[2].memory is TableMemory.DEVICE


def test_indices_follow_a_power_law_and_a_light_pipeline_only_copies_ahead(tmp_path):
    text = BENCHMARK.replace(
        "feature_pooling_avg: 30", "feature_pooling_avg: 3, power_law_alpha: 0.9"
    )
    file, _ = _read(tmp_path, text.replace("pipeline: sparse", "pipeline: sparse_lite"))
    spec = load_workload(file)
    assert {str(table.distribution) for table in spec.embedding.tables()} == {"zipf(0.9)"}
    assert spec.input.prefetch
    assert not spec.training.distribute_ahead


def test_an_evaluation_has_no_backward_pass(tmp_path):
    file, _ = _read(tmp_path, BENCHMARK.replace("pipeline: sparse", "pipeline: eval-sdd"))
    spec = load_workload(file)
    plan = build_plan(spec, rank_count=4)
    job = build_dlrm_job(spec, plan=plan, stack=load_stack("torchrec"))
    operators = {origin.operator for origin in job.origins}
    assert "embedding/lookup forward" in operators
    assert not [name for name in operators if name.endswith(("backward", "step"))]


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("pipeline: sparse", "pipeline: sparser", "must be one of base, hybrid_base"),
        ("test_sparse_nn", "deepfm", "must be one of test_sparse_nn, got 'deepfm'"),
        ("EXACT_ROWWISE_ADAGRAD", "LION", "must be one of exact_adagrad"),
        ("data_type: FP16", "data_type: FP6", "data_type.*can only be modelled as fp32"),
        ("num_embeddings: 7,", "", "must be lists of tables"),
        ("additional_tables:", "additional_tables: soon\n  more:", "got 'soon'"),
        ("batch_size: 1024", "batch_size: many", "batch_size: must be a whole number"),
        ("num_weighted_features: 1", "num_weighted_features: -1", "whole number from 0"),
        ("num_unweighted_features: 101", "num_unweighted_featurs: 101", "_features is. Correct"),
    ],
)
def test_what_cannot_be_modelled_is_refused(tmp_path, before, after, fault):
    with pytest.raises(WorkloadError, match=fault):
        _read(tmp_path, BENCHMARK.replace(before, after, 1))


def test_keys_that_nobody_knows_are_listed(tmp_path):
    text = BENCHMARK.replace("name: half,", "name: half, hot: 1,")
    file, _ = _read(tmp_path, text.replace("pipeline: sparse", "pipeline: sparse, depth: 3"))
    unknown = load_workload(file).unknown_keys
    assert {"PipelineConfig.depth", "additional_tables.hot"} <= set(unknown)


def test_a_benchmark_is_no_layout(tmp_path):
    file, _ = _read(tmp_path, BENCHMARK)
    with pytest.raises(WorkloadError, match="TorchRec benchmark, which states no layout"):
        read_layout(file)
