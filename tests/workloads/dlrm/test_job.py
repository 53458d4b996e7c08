"""Jobs of recommendation models."""

from __future__ import annotations

import pytest

from collectives.collective import CollectiveKind
from embeddings.plan import Shard, ShardingKind, ShardingPlan
from perfmodel.base.errors import PlanError, WorkloadError
from perfmodel.graph.audit import check_job
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.ops import EmbeddingOp, Gemm, HostSpan, Pass
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.dlrm.dense import dense_parameters
from perfmodel.workloads.dlrm.job import build_plan
from perfmodel.workloads.jobs import apply_stack_defaults
from tests.workloads.reading import bytes_of, collectives_of, iter_ops, memory_of

SMALL = ["embedding.rows=[1000, 2000, 3000]", "embedding.pooling_factors=1", "batch=64"]


def _build(name: str, rank_count: int, *overrides: str, plan: ShardingPlan | None = None):
    spec, stack = load_workload(name, overrides), load_stack("pytorch_fused")
    spec = apply_stack_defaults(spec, stack)
    return build_job(spec, rank_count=rank_count, ranks_per_host=8, plan=plan, stack=stack)


def test_dense_parameters_of_the_mlperf_model_by_hand():
    # Bottom 13-512-256-128, top 479-1024-1024-512-256-1, each with biases.
    bottom = 14 * 512 + 513 * 256 + 257 * 128
    top = 480 * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 256 + 257
    assert dense_parameters(load_workload("dlrm_mlperf")) == bottom + top


def test_the_interaction_feeds_479_numbers_to_the_top():
    # 27 vectors: 27 * 26 / 2 = 351 products, and the 128 dense numbers.
    assert load_workload("dlrm_mlperf").top_inputs == 479
    assert load_workload("dlrm_dcnv2").top_inputs == 27 * 128


def test_cross_layers_are_of_low_rank():
    job = _build("dlrm_dcnv2", 8)
    shapes = {
        (op.m, op.n, op.k)
        for label, op in iter_ops(job)
        if isinstance(op, Gemm) and label.startswith("cross") and label.endswith("forward")
    }
    assert shapes == {(6912, 512, 3456), (6912, 3456, 512)}


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("sharder", ["balanced", "row_wise", "hugectr_auto"])
def test_a_program_is_the_same_whether_its_lookup_is_swapped_or_written(
    monkeypatch, dtype, sharder
):
    changes = [f"embedding.exchange_dtype={dtype}", f"sharding.sharder={sharder}"]
    swapped = _build("dlrm_mlperf", 16, *changes)
    monkeypatch.setattr(JobBuilder, "swap_ops", lambda *_: None)
    written = _build("dlrm_mlperf", 16, *changes)
    assert (swapped.ops, swapped.labels) == (written.ops, written.labels)
    assert len(swapped.programs) > 8
    assert swapped.digest() == written.digest()


@pytest.mark.parametrize("name", ["dlrm_mlperf", "dlrm_dcnv2"])
@pytest.mark.parametrize("rank_count", [1, 2, 8, 64])
def test_jobs_pass_the_audit_and_look_every_number_up_once(name, rank_count):
    job, spec = _build(name, rank_count), load_workload(name)
    check_job(job)
    for direction in Pass:
        # A rank looks its own samples up in copied tables, those of the whole batch in others.
        looked_up = sum(
            table.pooling_factor * table.width * op.lookup.batch_size / spec.batch
            for rank in range(rank_count)
            for _, op in iter_ops(job, rank)
            if isinstance(op, EmbeddingOp) and op.direction is direction
            for table in op.lookup.tables
        )
        tables = spec.embedding.tables()
        assert looked_up == pytest.approx(sum(t.pooling_factor * t.width for t in tables))


def test_dense_gradients_are_reduced_once():
    job = _build("dlrm_dcnv2", 8, "stack=pytorch_fused")
    reduced = collectives_of(job, CollectiveKind.ALL_REDUCE, "gradients/bucket")
    spec = load_workload("dlrm_dcnv2")
    assert sum(call.size_bytes for call in reduced) == 4 * dense_parameters(spec)
    assert len(reduced) > 1


def test_copied_tables_join_the_gradients_and_leave_the_exchange():
    job = _build("dlrm_mlperf", 4, "sharding.data_parallel_below=1 MiB", *SMALL)
    reduced = bytes_of(job, CollectiveKind.ALL_REDUCE, "gradients/bucket")
    spec = load_workload("dlrm_mlperf", SMALL)
    # Tables of 1000 and 2000 rows x 512 bytes are below 1 MiB, that of 3000 is not.
    assert reduced == 4 * (dense_parameters(spec) + 3000 * 128)
    check_job(job)


def test_one_rank_exchanges_nothing():
    job = _build("dlrm_dcnv2", 1)
    assert not job.groups
    for kind in CollectiveKind:
        assert not collectives_of(job, kind, "")


def test_ranks_with_different_tables_have_different_programs_and_the_rest_share():
    job = _build("dlrm_mlperf", 8, *SMALL)
    # The three tables are cut until all eight ranks have something to do.
    assert 1 < len(job.programs) <= 8
    without = _build("dlrm_mlperf", 8, "sharding.sharder=naive", *SMALL)
    # Three ranks with one table each; five without share one program.
    assert len(without.programs) == 4
    assert any("5 of 8 ranks hold no piece" in line for line in without.facts.assumptions)


def test_a_given_plan_is_followed():
    spec = load_workload("dlrm_mlperf", SMALL)
    tables = spec.embedding.tables()
    shards = tuple(
        Shard(place, 1, 0, table.rows, 0, table.width) for place, table in enumerate(tables)
    )
    job = _build("dlrm_mlperf", 2, *SMALL, plan=ShardingPlan(tables, 2, shards))
    check_job(job)
    held = [
        sum(len(op.lookup.tables) for _, op in iter_ops(job, rank) if isinstance(op, EmbeddingOp))
        for rank in range(2)
    ]
    assert held == [0, 6]  # three tables, forward and backward


@pytest.mark.parametrize(
    ("rank_count", "rows", "fault"),
    [(4, "[1000, 2000, 3000]", "is for 2 and there are 4"), (2, "[7]", "must place the tables")],
)
def test_a_plan_for_another_job_is_refused(rank_count, rows, fault):
    plan = build_plan(load_workload("dlrm_mlperf", SMALL), rank_count=2)
    with pytest.raises(PlanError, match=fault):
        _build("dlrm_mlperf", rank_count, *SMALL, f"embedding.rows={rows}", plan=plan)


def test_partial_sums_of_row_shards_are_added():
    rule = ("sharding.max_shard=400 kB", "sharding.min_width=128")
    job = _build("dlrm_mlperf", 4, *rule, *SMALL)
    check_job(job)
    assert any(label == "embedding/partial sums forward" for label, _ in iter_ops(job))


def test_a_batch_that_does_not_divide_names_its_neighbours():
    with pytest.raises(WorkloadError, match="batch=55293 or batch=55300"):
        _build("dlrm_dcnv2", 7)


def test_the_host_can_be_made_to_wait_every_iteration():
    def waits(*overrides: str) -> int:
        ops = [op for _, op in iter_ops(_build("dlrm_mlperf", 1, *overrides, *SMALL))]
        spans = [op for op in ops if isinstance(op, HostSpan)]
        return sum(part.operator == "synchronize" for span in spans for part in span.parts)

    assert waits() == 0
    assert waits("sync_each_iteration=true") == 1


def test_prefetch_lets_compute_wait_for_the_copy_of_the_iteration_before():
    ahead = _build("dlrm_mlperf", 1, *SMALL).programs[0]
    behind = _build("dlrm_mlperf", 1, "input.prefetch=false", *SMALL).programs[0]
    assert 1 in ahead.dep_distance
    assert 1 not in behind.dep_distance


def test_a_loader_is_two_batches_ahead_at_most():
    job = _build("dlrm_mlperf", 1, "input.load_time=2 ms", *SMALL)
    check_job(job)
    assert 2 in job.programs[0].dep_distance
    assert any("2 ms" in sentence for sentence in job.facts.assumptions)


def test_memory_holds_every_table_once_and_its_state():
    spec = load_workload("dlrm_dcnv2", ["stack=pytorch_fused"])
    memory = memory_of(spec, rank_count=8, ranks_per_host=8)
    tables = spec.embedding.tables()
    held = sum(of_rank.parts[0].size_bytes for of_rank in memory)
    assert held == sum(table.size_bytes for table in tables)
    assert all(of_rank.largest.name == "embedding tables" for of_rank in memory)


@pytest.mark.parametrize(("optimizer", "tensors"), [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_state_of_tables_by_optimizer(optimizer, tensors):
    spec = load_workload("dlrm_mlperf", [f"embedding.optimizer={optimizer}", *SMALL])
    memory = memory_of(spec, rank_count=1, ranks_per_host=1)[0]
    assert memory.parts[1].size_bytes == tensors * memory.parts[0].size_bytes


def test_a_sharder_can_be_named():
    words = ("sharding.sharder=row_wise", *SMALL)
    plan = build_plan(load_workload("dlrm_mlperf", words), rank_count=4)
    assert set(plan.kinds) == {ShardingKind.ROW_WISE}
    check_job(_build("dlrm_mlperf", 4, *words))
    with pytest.raises(WorkloadError, match="sharder must be one of naive"):
        load_workload("dlrm_mlperf", ["sharding.sharder=magic"])


def test_hybrid_placement_sends_rare_rows_only():
    hybrid, by_rows = (
        _build("dlrm_mlperf", 8, "batch=8192", f"sharding.sharder={name}")
        for name in ("hugectr_hybrid", "row_wise")
    )
    check_job(hybrid)
    label = "embedding/pooled all_to_all forward"
    sent = bytes_of(hybrid, CollectiveKind.ALL_TO_ALL, label)
    label = "embedding/row sums reduce_scatter forward"
    reduced = bytes_of(by_rows, CollectiveKind.REDUCE_SCATTER, label)
    # One-hot: of 26 vectors a sample fewer than ten are of rare rows, and partial sums of every
    # rank are 8 x 26.
    assert sent < reduced / 20


def test_the_default_placement_fits_where_a_plan_does():
    # 150 GiB of weights: one table alone is more than a GPU of 32 GiB has.
    words = [
        "embedding.rows=[200000000, 60000000, 30000000, 20000000]",
        "embedding.pooling_factors=1", "embedding.optimizer=sgd", "batch=4096",
    ]  # fmt: skip
    spec = load_workload("dlrm_mlperf", words)
    room = 32 * 2**30
    memory = memory_of(spec, rank_count=8, ranks_per_host=8, memory_bytes=room)
    assert max(rank.total_bytes for rank in memory) <= room
    assert sum(table.size_bytes for table in spec.embedding.tables()) > 4 * room


def test_the_plan_and_what_it_copies_are_said():
    lines = _build("dlrm_mlperf", 4, "sharding.data_parallel_below=1 MiB", *SMALL).facts.assumptions
    assert "Tables are placed by the 'balanced' plan, 2 of them on every rank." in lines
    whole = _build("dlrm_mlperf", 4, "sharding.sharder=naive", *SMALL).facts.assumptions
    assert "Tables are placed by the 'naive' plan." in whole


@pytest.mark.parametrize("name", ["size_even", "hugectr_auto", "torchrec", "lookup_greedy"])
def test_named_sharders_place_tables_where_they_fit(name):
    spec = load_workload("dlrm_mlperf", [f"sharding.sharder={name}", "batch=8192"])
    room = 24 * 2**30
    memory = memory_of(spec, rank_count=8, ranks_per_host=8, memory_bytes=room)
    assert max(rank.total_bytes for rank in memory) <= room
    # Where nothing fits, the sharder's own plan is predicted, and the answer says what is missing.
    few = memory_of(spec, rank_count=2, ranks_per_host=2, memory_bytes=room)
    assert max(rank.total_bytes for rank in few) > room


def test_tables_beyond_all_gpus_are_in_host_memory_and_cost_what_they_fetch():
    changes = ["embedding.rows=[4000000, 40000000, 400000]", "batch=8192", "embedding.width=128"]
    changes += ["embedding.pooling_factors=8.0", "embedding.zipf_exponents=1.05"]
    spec = load_workload("dlrm_default", [*changes, "dense.bottom_mlp=[512, 128]"])
    room = 6 * 2**30
    sizes = {"rank_count": 2, "ranks_per_host": 2, "memory_bytes": room}
    assert sum(table.size_bytes for table in spec.embedding.tables()) > 2 * room
    assert max(rank.total_bytes for rank in memory_of(spec, **sizes)) <= room
    job = build_job(spec, **sizes)
    assert any("are in host memory" in sentence for sentence in job.facts.assumptions)
    bare = load_workload("dlrm_default", [*changes, "dense.bottom_mlp=[512, 128]",
                                          "sharding.host_memory=false"])  # fmt: skip
    assert max(rank.total_bytes for rank in memory_of(bare, **sizes)) > room
