"""Changes of how a script trains, on a job whose autograd thread launches the backward pass.

Two layers of norm (10 ns), GEMM (100 ns), gelu (20 ns) and a free dropout, then a loss of 50 ns.
The backward pass has per layer a GEMM of 200 ns and a copy of its gradient (1,000 bytes, 5 ns) to a
bucket of its own; the optimizer has kernels of a plain Adam. Launches take 1 ns.

    forward   1..311
    backward  311..721: two times 200 + 5
    buckets   60 ns each, the second 721..781
    update    781..811: three kernels of 10 ns
"""

from __future__ import annotations

import numpy as np
import pytest

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif import apply_all, parse_transformation
from perfmodel.extensions.whatif.passes import TrainingPass, find_passes
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.repeating import repeated_parts
from perfmodel.extensions.whatif.selection import LaneWord, Selection
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Communication, Fixed, Gemm, MemoryBound
from perfmodel.graph.program import Dependency, LaneKind
from tests.extensions.whatif.jobs import span_ns, times

GEMM = Gemm(64, 64, 64, DType.BF16)
LAYER = (
    ("layer_norm", 10, MemoryBound("layer_norm", 100, 100, DType.FP32)),
    ("linear/mm", 100, GEMM),
    ("gelu", 20, MemoryBound("gelu", 100, 100, DType.BF16)),
    ("dropout", 0, MemoryBound("dropout", 100, 100, DType.BF16)),
)
ADAM = (
    # 2 + 3 + 4 words of 1,000 bytes; one kernel would move 7.
    ("mul_", MemoryBound("add", 1000, 1000, DType.FP32)),
    ("addcmul_", MemoryBound("add", 2000, 1000, DType.FP32)),
    ("addcdiv_", MemoryBound("add", 3000, 1000, DType.FP32)),
)
BUCKET = Communication(Collective(CollectiveKind.ALL_REDUCE, 1000, DType.FP32))


def training(*, ranks=2, layers=2, gradient_bytes=1000):
    job = JobBuilder()
    program = job.new_program()
    main = program.add_lane("main thread", LaneKind.HOST)
    compute = program.add_lane("compute", LaneKind.COMPUTE)
    nccl = program.add_lane("nccl", LaneKind.COMMUNICATION)
    autograd = program.add_lane("autograd thread", LaneKind.HOST)

    def launch(thread, label, op, lane=compute, after=(), slot=None):
        own = program.add_task(thread, Fixed("launch", 1), label=f"launch {label}")
        more = {} if slot is None else {"slot": slot}
        return program.add_task(lane, op, label=label, after=[Dependency(own), *after], **more)

    for _ in range(layers):
        for label, length_ns, work in LAYER:
            launch(main, label, Fixed(label, length_ns, work=work))
    launch(main, "loss", Fixed("loss", 50))
    buckets = []
    copied = MemoryBound("accumulate", gradient_bytes, gradient_bytes, DType.FP32)
    for _ in range(layers):
        launch(autograd, "MmBackward0/mm", Fixed("gemm", 200, work=GEMM))
        kernel = launch(autograd, "AccumulateGrad/mul", Fixed("copy", 5, work=copied))
        after = [Dependency(kernel)]
        if ranks > 1:
            buckets.append(
                launch(autograd, "bucket", Fixed("all_reduce", 60, work=BUCKET), nccl, after, 0)
            )
    for place, (label, work) in enumerate(ADAM):
        waits = [] if place else [Dependency(bucket) for bucket in buckets]
        launch(main, label, Fixed(label, 10, work=work), after=waits)
    number = job.add_program(program.build())
    for _ in range(ranks):
        job.add_rank(number)
    if ranks > 1:
        job.add_group("data", range(ranks), slot=0)
    return job.build(JobFacts("training"))


def ask(text, **more):
    return apply_all(training(**more), [parse_transformation(text)])


def found(pattern, job=None):
    job = training() if job is None else job
    tasks = Selection(LabelPattern(pattern), LaneWord.COMPUTE).tasks(job, job.programs[0])
    return [job.labels[job.programs[0].label[task]] for task in tasks]


def test_passes_are_told_by_the_thread_that_launches_them():
    names = [label for label, _, _ in LAYER]
    assert found("pass:forward") == [*names, *names, "loss"]
    assert found("pass:backward") == ["MmBackward0/mm", "AccumulateGrad/mul"] * 2
    assert found("pass:update") == [label for label, _ in ADAM]
    with pytest.raises(ScenarioError, match="must be followed by backward, forward, update"):
        LabelPattern("pass:sideways")


def test_an_update_may_be_a_single_kernel():
    program = training(layers=1).programs[0]
    labels = [training(layers=1).labels[label] for label in program.label.tolist()]
    backward = np.array(["Backward" in label for label in labels])
    update = np.array([label == "mul_" for label in labels])
    passes = find_passes(program, backward, update).tolist()
    assert passes[labels.index("mul_")] == TrainingPass.UPDATE
    assert passes[labels.index("addcmul_")] == TrainingPass.FORWARD


def test_a_later_choice_counts_only_if_nothing_matches_the_first():
    assert found("adam||pass:update") == [label for label, _ in ADAM]
    assert found("gelu||pass:update") == ["gelu", "gelu"]


def test_a_fused_adam_moves_each_tensor_once():
    # 9 words become 7 of 1,000 bytes, of three kernels of 10 ns each: 30 x 7 / 9.
    assert span_ns(training()) == 811
    assert times(ask("optimizer"))["0/mul_"] == (781, 781 + 23)


def test_accumulation_repeats_both_passes_without_collectives():
    # Forward 310 and backward 410 ns once more; the buckets are those of the last time.
    job = ask("accumulate:count=2")
    assert span_ns(job) == 811 + 310 + 410
    assert sum(job.labels[label] == "bucket" for label in job.programs[0].label) == 2


def test_zero_1_updates_a_share_and_sends_the_parameters():
    # Each rank updates in 15 ns, then an all-gather of the 2,000 bytes of both buckets: half of
    # what an all-reduce of as many sends, 60 ns.
    at = times(ask("zero1"))
    assert at["0/addcdiv_"][1] == 781 + 15
    assert at["0/all_gather of parameters"] == (796, 856)
    broadcasts = ask("zero1:calls=2").programs[0]
    assert (broadcasts.slot == 0).sum() == 4


def test_layers_that_repeat_are_recomputed_up_to_their_last_product():
    # Only the norm (10 ns) of each layer is ahead of its last GEMM.
    assert span_ns(ask("recompute")) == 811 + 2 * 10
    with pytest.raises(ScenarioError, match="no stretch of the forward pass repeats"):
        ask("recompute", layers=1)


def test_parts_that_repeat_are_found_wherever_they_begin():
    words = np.array([9, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 7])
    assert repeated_parts(words) == [(1, 5), (5, 9), (9, 13)]
    assert repeated_parts(np.arange(20)) == []


def test_buckets_are_filled_with_whole_gradients_where_their_sizes_are_known():
    # Two gradients of 1,000 bytes: one bucket takes both, and none cuts a gradient.
    assert len(_buckets(ask("bucket:size=1500B"))) == 1
    with pytest.raises(ScenarioError, match="touches no task"):
        ask("bucket:size=300B")
    # Gradients of 400 bytes do not tell what a bucket of 1,000 holds.
    assert len(_buckets(ask("bucket:size=500B", gradient_bytes=400))) == 4


def _buckets(job):
    return [label for label in job.programs[0].label if job.labels[label] == "bucket"]


def test_one_rank_made_many_copies_its_gradients_unless_it_does_already():
    wish = "data_parallel:count=2,gradients=1kB,topology=dgx_a100"
    assert not found("copy to a bucket", ask(wish, ranks=1))


def test_kernels_are_compiled_with_stated_durations():
    # Gelu, dropout and the next norm pass on 100 bytes: 200 of 600 bytes, and of 30 ns, are left;
    # of the last gelu and dropout 200 of 400, of 20 ns.
    job = ask("compile")
    assert found("gelu", job) == ["gelu", "gelu"]
    assert times(job)["0/loss"][1] == 1 + (10 + 100 + 10) + (100 + 10) + 50
