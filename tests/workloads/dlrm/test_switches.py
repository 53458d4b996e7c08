"""What a software stack does to the graph of a recommendation model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError
from perfmodel.graph.audit import check_job
from perfmodel.graph.ops import Copy, EmbeddingOp, Fixed, Gemm, HostSpan, MemoryBound
from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion, OptimizerKernels, Overlap
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack, TableHandling
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.dlrm.dense import bottom_layers, dense_layers
from perfmodel.workloads.dlrm.job import build_plan, build_variant_job
from tests.workloads.reading import bytes_of, collectives_of, iter_ops

EAGER = load_stack("pytorch_eager")
SMALL = ["embedding.rows=[1000, 2000, 3000]", "embedding.pooling_factors=2", "batch=64"]


def _build(stack: SoftwareStack, rank_count: int = 1, *overrides: str):
    spec = load_workload("dlrm_mlperf", [*SMALL, *overrides])
    job = build_job(spec, rank_count=rank_count, ranks_per_host=8, stack=stack)
    check_job(job)
    return job


def _with(*fusions: Fusion, habit: FrameworkBehaviour | None = None, **changes) -> SoftwareStack:
    """The eager stack with these *fusions*, a *habit* and other changes."""
    if habit is not None:
        changes["habits"] = frozenset({habit})
    return replace(EAGER, **{"fusions": frozenset(fusions), **changes})


def _labelled(job, *words: str, kind=object, rank=0):
    return [
        op
        for label, op in iter_ops(job, rank)
        if all(word in label for word in words) and isinstance(op, kind)
    ]


def _memory_words(job) -> list[str]:
    return [op.operator for op in _labelled(job, kind=MemoryBound)]


def _activations(job) -> int:
    return sum(word in ("relu", "sigmoid") for word in _memory_words(job))


def test_bias_and_activation_run_inside_products_both_ways_or_forward_only():
    plain, fused, forward = (
        _build(stack)
        for stack in (EAGER, _with(Fusion.BIAS_ACTIVATION), _with(Fusion.ACTIVATION_FORWARD))
    )
    # Eight layers, forward and backward.
    assert [_activations(job) for job in (plain, fused, forward)] == [16, 0, 8]
    assert _labelled(fused, kind=Gemm) == _labelled(plain, kind=Gemm)
    # Forward only, the sums for their biases are not left either.
    assert len(_memory_words(plain)) - len(_memory_words(forward)) == 8 + 8


def test_a_fused_interaction_is_one_kernel_each_way_and_reads_every_vector_once():
    stack = _with(Fusion.INTERACTION, Fusion.ELEMENTWISE)
    job = _build(stack, 1, "training.precision=fp16")
    forward, backward = _labelled(job, "interaction/", kind=MemoryBound)
    # Four vectors of 128 in, 128 + 4 * 3 / 2 = 134 numbers out; 64 samples of 2 bytes.
    assert (forward.read_bytes, forward.write_bytes) == (64 * 2 * 512, 64 * 2 * 134)
    assert (backward.read_bytes, backward.write_bytes) == (64 * 2 * 646, 64 * 2 * 512)


def test_a_copy_into_one_tensor_stays_where_only_the_interaction_is_fused():
    job = _build(_with(Fusion.INTERACTION))
    assert len(_labelled(job, "interaction/concat", kind=MemoryBound)) == 2


@pytest.mark.parametrize(
    ("kernels", "optimizer", "count"),
    [
        (OptimizerKernels.FUSED, "adam", 1),
        (OptimizerKernels.FOREACH, "adam", 7),
        (OptimizerKernels.FOREACH, "sgd", 1),
        # Weight and bias of eight layers.
        (OptimizerKernels.PLAIN, "sgd", 16),
        (OptimizerKernels.PLAIN, "adagrad", 64),
    ],
)
def test_the_optimizer_launches_by_pass_and_tensor(kernels, optimizer, count):
    job = _build(_with(optimizer_kernels=kernels), 1, f"training.optimizer={optimizer}")
    assert _memory_words(job).count(optimizer) == count


def test_weights_kept_short_are_not_cast_and_reduced_short():
    stack = _with(Fusion.WEIGHT_CAST, Fusion.GRADIENT_COPY)
    kept = _build(stack, 2, "training.precision=fp16")
    cast = _build(EAGER, 2, "training.precision=fp16")
    reduced = CollectiveKind.ALL_REDUCE
    assert 2 * bytes_of(kept, reduced) == bytes_of(cast, reduced)
    assert not [op for op in _labelled(kept, "mlp") if getattr(op, "operator", "") == "cast"]
    assert not _labelled(kept, "gradients/copy")
    assert not _labelled(kept, "optimizer/zero")


def test_a_lookup_may_write_what_is_sent():
    job = _build(_with(Fusion.LOOKUP_CAST), 2)
    assert not _labelled(job, "embedding/cast")
    assert _labelled(_build(EAGER, 2), "embedding/cast")


def test_without_overlap_compute_waits_for_the_exchange_before_the_bottom_layers():
    def updates_last(stack: SoftwareStack) -> bool:
        labels = [label for label, _ in iter_ops(_build(stack, 2))]
        update = labels.index("embedding/update backward")
        return labels.index("bottom mlp/layer 0 backward") < update

    assert updates_last(EAGER)
    assert not updates_last(_with(overlaps=EAGER.overlaps - {Overlap.EMBEDDING_EXCHANGE}))


@pytest.mark.parametrize(("optimizer", "casts"), [("sgd", 0), ("adagrad", 1)])
def test_an_optimizer_with_state_may_leave_casting_to_one_kernel(optimizer, casts):
    habit, kernels = FrameworkBehaviour.CASTS_WEIGHTS, OptimizerKernels.FUSED
    stack = _with(Fusion.WEIGHT_CAST, habit=habit, optimizer_kernels=kernels)
    job = _build(stack, 1, "training.precision=fp16", f"training.optimizer={optimizer}")
    found = [op for op in _labelled(job, kind=MemoryBound) if op.operator == "master_weights"]
    numbers = sum(sum(layer.tensors) for layer in dense_layers(load_workload("dlrm_mlperf", SMALL)))
    # All weights at once: fp32 in, fp16 out.
    moved = [(op.read_bytes, op.write_bytes) for op in found]
    assert moved == casts * [(4 * numbers, 2 * numbers)]


@pytest.mark.parametrize(
    ("fusions", "dtype"), [([Fusion.LOOKUP_CAST], DType.FP16), ([], DType.FP32)]
)
def test_gradients_are_read_as_they_travelled_where_lookups_cast_them(fusions, dtype):
    job = _build(_with(*fusions), 2, "embedding.exchange_dtype=fp16")
    (update,) = _labelled(job, "update", kind=EmbeddingOp)
    assert update.lookup.gradient_dtype is dtype


def test_keys_cost_their_time_on_every_rank_for_the_whole_batch():
    job = _build(_with(tables=TableHandling(key_ns=5.0)), 2)
    for rank in range(2):
        # 64 samples x 3 tables x 2 keys x 5 ns.
        assert [op.duration_ns for op in _labelled(job, kind=Fixed, rank=rank)] == [1920]


def test_keys_are_prepared_and_received_vectors_moved_again():
    handling = TableHandling(key_traffic_bytes=100, vector_passes=3.0)
    job = _build(_with(tables=handling), 2, "embedding.exchange_dtype=fp16")
    (keys,) = _labelled(job, "embedding/keys", kind=MemoryBound)
    # 32 samples of a rank x 3 tables x 2 keys x 100 bytes, half read and half written.
    assert keys.read_bytes == keys.write_bytes == 32 * 6 * 50
    moved = _labelled(job, "embedding/rearrange", kind=MemoryBound)
    # Forward and backward: 32 samples x 3 vectors of 128 numbers x 2 bytes, three times.
    assert [op.write_bytes for op in moved] == 2 * [3 * 32 * 3 * 128 * 2]


def test_ranks_that_have_all_keys_are_sent_none():
    job = _build(_with(tables=TableHandling(has_all_keys=True)), 2)
    assert not _labelled(job, "embedding/indices")


def test_exchanges_of_indices_and_reductions_may_have_streams_of_their_own():
    apart = frozenset({Overlap.INDEX_EXCHANGE, Overlap.EXCHANGE_AND_REDUCTION})
    job = _build(_with(overlaps=EAGER.overlaps | apart), 2)
    program = job.program_of(0)
    lanes = program.task_lanes()
    found = {
        program.lanes[lanes[task]].name: job.label_of(0, task)
        for task in range(program.task_count)
        if program.lanes[lanes[task]].name in ("index stream", "reduction stream")
    }
    assert found["index stream"] == "embedding/indices all_to_all"
    assert found["reduction stream"].startswith("gradients/bucket")


def test_gradients_in_one_piece_are_reduced_once_and_beside_the_update_of_tables():
    job = _build(_with(habit=FrameworkBehaviour.ONE_REDUCTION), 2)
    assert len(collectives_of(job, CollectiveKind.ALL_REDUCE, "gradients")) == 1
    program = job.program_of(0)
    labels = [job.label_of(0, task) for task in range(program.task_count)]
    update = labels.index("embedding/update backward")
    sources = program.dep_task[program.dep_start[update] : program.dep_start[update + 1]]
    assert not any("all_reduce" in labels[source] for source in sources)


def test_copied_tables_are_looked_up_while_pooled_vectors_travel():
    small = "sharding.data_parallel_below=1 MB"
    job = _build(EAGER, 2, "embedding.rows=[1000, 2000, 900000]", small)
    labels = [job.label_of(0, task) for task in range(job.program_of(0).task_count)]
    exchange = labels.index("embedding/pooled all_to_all forward")
    assert exchange < labels.index("embedding/data-parallel lookup forward")


def test_an_optimizer_may_pass_over_all_rows_whoever_holds_them():
    stack = _with(tables=TableHandling(updates_all_rows=True))
    job = _build(stack, 2, "embedding.optimizer=adam")
    (op,) = _labelled(job, "embedding/all rows", kind=MemoryBound)
    # Weight and two moments of 6000 rows x 128, read and written.
    assert (op.read_bytes, op.write_bytes) == (3 * 4 * 6000 * 128, 3 * 4 * 6000 * 128)


def test_only_sgd_takes_a_lookup_that_adds_in_place():
    stack = _with(tables=TableHandling(lookup_kernel="table_batched"))
    for optimizer, kernel in (("sgd", "table_batched"), ("adagrad", "fbgemm")):
        job = _build(stack, 1, f"embedding.optimizer={optimizer}")
        assert {op.lookup.kernel for op in _labelled(job, kind=EmbeddingOp)} == {kernel}


def test_a_lone_bottom_runs_on_rank_0_for_the_whole_batch_and_holds_no_tables():
    spec = load_workload("dlrm_mlperf", ["batch=640"])
    stack = _with(habit=FrameworkBehaviour.LONE_BOTTOM)
    job = build_job(spec, rank_count=5, ranks_per_host=8, stack=stack)
    check_job(job)
    rows = [
        {op.m for op in _labelled(job, "bottom mlp/layer 1 forward", kind=Gemm, rank=rank)}
        for rank in range(5)
    ]
    assert rows == [{640}, set(), set(), set(), set()]
    assert not _labelled(job, kind=EmbeddingOp)
    (pooled,) = collectives_of(job, CollectiveKind.ALL_TO_ALL, "embedding/pooled")
    # Rank 0 sends each other rank 128 samples x 128 numbers of 2 bytes.
    assert pooled.byte_matrix is not None
    assert pooled.byte_matrix[0] == (0, *(128 * 128 * 2,) * 4)
    every, bottom = (
        sum(sum(layer.tensors) for layer in layers)
        for layers in (dense_layers(spec), bottom_layers(spec))
    )
    assert bytes_of(job, CollectiveKind.ALL_REDUCE, "gradients") == 4 * (every - bottom)


def test_plans_are_not_compared_where_one_rank_runs_the_bottom_layers():
    spec = load_workload("dlrm_mlperf", SMALL)
    stack = _with(habit=FrameworkBehaviour.LONE_BOTTOM)
    with pytest.raises(PlanError, match="bottom layers on one rank"):
        build_variant_job(spec, plan=build_plan(spec, rank_count=2), stack=stack)


def test_the_script_of_2021_blocks_at_every_copy_and_launches_by_tensor():
    spec = load_workload("dlrm_default", ["batch=512"])
    job = build_job(spec, rank_count=1, ranks_per_host=1, stack=load_stack("pytorch_2021"))
    copies, spans = _labelled(job, kind=Copy), _labelled(job, kind=HostSpan)
    waits = sum(part.operator == "synchronize" for span in spans for part in span.parts)
    # Indices, offsets, features, two of the triangle, labels and the loss.
    assert len(copies) == waits == 7
    # Six layers: a weight and a bias each.
    assert _memory_words(job).count("sgd") == 12
    # The recorded iteration has 98 kernels with its copies and memsets.
    assert len(_labelled(job)) - len(spans) == pytest.approx(98, rel=0.15)


@pytest.mark.parametrize(
    "habit",
    [
        FrameworkBehaviour.UNFUSED_BIAS,
        FrameworkBehaviour.ZEROED_GRADIENTS,
        FrameworkBehaviour.HOST_TRIANGLE,
    ],
)
def test_a_habit_costs_kernels_only_where_it_is_stated(habit):
    more = len(_memory_words(_build(_with(habit=habit))))
    assert more > len(_memory_words(_build(EAGER)))


def test_gradients_that_do_not_overlap_are_reduced_after_the_update():
    stack = _with(overlaps=frozenset({Overlap.EMBEDDING_EXCHANGE}))
    job = _build(stack, 2)
    program = job.program_of(0)
    reduced = next(
        task for task in range(program.task_count)
        if "all_reduce" in job.label_of(0, task) and program.slot[task] >= 0
    )  # fmt: skip
    start, end = program.dep_start[reduced], program.dep_start[reduced + 1]
    awaited = {job.label_of(0, int(task)) for task in program.dep_task[start:end]}
    assert "embedding/update backward" in awaited
    assert DType.FP32 is collectives_of(job, CollectiveKind.ALL_REDUCE, "")[0].dtype
