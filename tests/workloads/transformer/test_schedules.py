"""Schedules of pipelines: zero-bubble ones and DualPipeV, and their bubbles by hand."""

from __future__ import annotations

import numpy as np
import pytest

from collectives.collective import CollectiveKind
from perfmodel.base.errors import WorkloadError
from perfmodel.engine.replay import replay
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import build_shared_durations
from perfmodel.graph.ops import Attention, Gemm, GroupedGemm, Pass
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.schedules import load_schedules
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.schedules import Gradients, build_schedule, most_kept
from tests.workloads.reading import collectives_of, iter_ops, tiny

SPLIT = ["zb_h1", "zb_h2", "zb_v", "dualpipe_v"]


def pipeline(schedule: str, stages: int, micro_batches: int) -> Layout:
    runs = 2 if load_schedules()[schedule].is_folded else 1
    return Layout(1, stages, 1, 1, micro_batches, interleaving=runs, schedule=schedule)


def letters(schedule: str, stage: int, stages: int, micro_batches: int) -> str:
    words = {Gradients.ALL: "a", Gradients.INPUTS: "b", Gradients.WEIGHTS: "w"}
    return " ".join(
        f"{'f' if turn.is_forward else words[turn.gradients]}{turn.micro_batch}"
        + (f".{turn.run}" if load_schedules()[schedule].is_folded else "")
        for turn in build_schedule(pipeline(schedule, stages, micro_batches), stage)
    )


def test_zb_h1_by_hand():
    # The order of 1F1B; stage s is s gradients of weights behind.
    assert letters("zb_h1", 0, 2, 3) == "f0 f1 b0 w0 f2 b1 w1 b2 w2"
    assert letters("zb_h1", 1, 2, 3) == "f0 b0 f1 b1 w0 f2 b2 w1 w2"


def test_zb_h2_by_hand():
    # Twice as far ahead, and twice as far behind.
    assert letters("zb_h2", 0, 2, 4) == "f0 f1 f2 b0 w0 f3 b1 w1 b2 w2 b3 w3"
    assert letters("zb_h2", 1, 2, 4) == "f0 b0 f1 b1 f2 b2 w0 f3 b3 w1 w2 w3"


def test_zb_v_by_hand():
    # Three forwards of run 0 fill the way to the last stage and back.
    assert letters("zb_v", 0, 2, 3) == (
        "f0.0 f1.0 f2.0 f0.1 b0.1 w0.1 f1.1 b1.1 w1.1 b0.0 w0.0 f2.1 b2.1 w2.1 b1.0 w1.0 b2.0 w2.0"
    )


def test_dualpipe_v_by_hand():
    assert letters("dualpipe_v", 1, 2, 4) == (
        "f0.0 f0.1 f1.0 f1.1 f2.0 a0.1 f2.1 a0.0 f3.0 a1.1 f3.1 a1.0 a2.1 a2.0 b3.1 b3.0 w3.1 w3.0"
    )


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7, 20])
def test_every_micro_batch_has_each_gradient_once_and_in_order(schedule, micro_batches):
    for stage in range(4):
        layout = pipeline(schedule, 4, micro_batches)
        done: dict[tuple[str, int], list[int]] = {}
        for turn in build_schedule(layout, stage):
            halves = {Gradients.ALL: "bw", Gradients.INPUTS: "b", Gradients.WEIGHTS: "w"}
            for half in "f" if turn.is_forward else halves[turn.gradients]:
                done.setdefault((half, turn.run), []).append(turn.micro_batch)
            # Nothing is done before what it needs.
            counts = [len(done.get((half, turn.run), ())) for half in "fbw"]
            assert counts == sorted(counts, reverse=True)
        assert set(map(tuple, done.values())) == {tuple(range(micro_batches))}
        assert len(done) == 3 * layout.interleaving


def job_of(schedule: str, micro_batches: int, *changes: str, ranks: int = 4):
    words = [
        "model.layers=8", f"batch={micro_batches}", "parallel.micro_batch=1", "parallel.pp=4",
        "parallel.tp=1", f"parallel.schedule={schedule}", "training.recompute=none", *changes,
    ]  # fmt: skip
    # On a CPU no kernel starts later than it is launched.
    stack = load_stack("pytorch_cpu")
    spec = load_workload("llama3_8b", words)
    job = build_job(spec, rank_count=ranks, ranks_per_host=8, stack=stack)
    check_job(job)
    return spec, job


def iteration_ns(
    schedule: str, micro_batches: int, times: tuple[int, int, int], *changes: str, ranks: int = 4
) -> int:
    """The iteration if only attention and one GEMM for a weight per layer take time."""
    spec, job = job_of(schedule, micro_batches, *changes, ranks=ranks)
    forward_ns, backward_ns, weight_ns = times
    hidden, tokens = spec.model.hidden, spec.sequence_length
    of_op = np.zeros(len(job.ops), dtype=np.int64)
    for place, op in enumerate(job.ops):
        if isinstance(op, Attention):
            of_op[place] = forward_ns if op.direction is Pass.FORWARD else backward_ns
        if isinstance(op, Gemm) and (op.m, op.n, op.k) == (hidden, hidden, tokens):
            of_op[place] = weight_ns
    durations = build_shared_durations(job, [of_op[program.op] for program in job.programs])
    return int(replay(job, durations).iteration_end_ns[-1, 0])


@pytest.mark.parametrize("times", [(10, 10, 10), (20, 30, 10)])
@pytest.mark.parametrize("micro_batches", [8, 11])
def test_the_bubble_of_each_schedule_is_the_one_worked_out_by_hand(times, micro_batches):
    forward, backward, weight = times
    # Eight layers on four stages: two a stage, one a run.
    work = micro_batches * 2 * sum(times)
    bubbles = {
        # p - 1 times a stage both ways, in 1F1B as one.
        "1f1b": 3 * 2 * (forward + backward + weight),
        # Gradients of weights take the place of one of three parts of it (arXiv 2401.10241).
        "zb_h1": 3 * 2 * (forward + backward - weight),
        # Of two parts; the last stage starts three forwards late and never waits.
        "zb_h2": 3 * 2 * max(forward + backward - 2 * weight, forward),
        # The same as ZB-H1 of a run, half as long (arXiv 2405.15362).
        "zb_v": 3 * (forward + backward - weight),
    }
    for schedule, bubble in bubbles.items():
        assert iteration_ns(schedule, micro_batches, times) == work + bubble


def test_dualpipe_v_without_overlap_idles_as_long_as_zb_v():
    # Equal parts of 10 ns: (p - 1) (F + B - W) of a run is 30 ns.
    assert iteration_ns("dualpipe_v", 9, (10, 10, 10)) == 9 * 60 + 30


@pytest.mark.parametrize("micro_batches", [8, 9, 12])
@pytest.mark.parametrize("times", [(10, 10, 10), (20, 30, 10)])
def test_joint_turns_of_dualpipe_v_have_the_published_bubble(times, micro_batches):
    experts = (
        "model.experts=4", "model.top_k=1", "model.moe_ffn=128", "parallel.ep=2",
        "parallel.expert_overlap=true", f"batch={2 * micro_batches}",
    )  # fmt: skip
    taken = iteration_ns("dualpipe_v", micro_batches, times, *experts, ranks=8)
    # (PP / 2 - 1) (F&B + B - 3 W) of 2 p = PP stages; there B is the whole backward pass. One
    # stream computes, so a forward beside a backward pass takes as long as both.
    whole, weight = times[1] + times[2], times[2]
    assert taken == micro_batches * 2 * sum(times) + 3 * (sum(times) + whole - 3 * weight)


def test_what_stages_keep_by_hand():
    def kept(schedule: str) -> list[int]:
        layout = pipeline(schedule, 4, 12)
        return [most_kept(layout, stage, [1] * layout.interleaving) for stage in range(4)]

    assert kept("1f1b") == [4, 3, 2, 1]
    # p - s in flight, and s whose weights are put off: all stages keep what the first one does.
    assert kept("zb_h1") == [4, 4, 4, 4]
    assert kept("zb_h2") == [7, 7, 7, 7]
    # Of a run, half as large: at most 2 p.
    assert kept("zb_v") == [8, 8, 8, 8]


@pytest.mark.parametrize("schedule", SPLIT)
def test_a_split_backward_pass_has_the_same_kernels_and_gradients(schedule):
    parts = {}
    for word in ("1f1b", schedule):
        spec = tiny(parallel={"pp": 2, "tp": 1, "schedule": word}, batch=8, tied_embeddings=False)
        job = build_job(spec, rank_count=4, ranks_per_host=8)
        check_job(job)
        ops = [op for rank in (0, 2) for _, op in iter_ops(job, rank)]
        gemms = sorted((op.m, op.n, op.k) for op in ops if isinstance(op, Gemm))
        calls = [
            collectives_of(job, CollectiveKind.ALL_REDUCE, "gradients", rank) for rank in (0, 2)
        ]
        parts[word] = gemms, sum(call.size_bytes for of_rank in calls for call in of_rank)
    assert parts[schedule] == parts["1f1b"]


def test_experts_put_off_their_weights_too():
    words = {"experts": 4, "top_k": 2, "layers": 4, "batch": 8}
    spec = tiny(parallel={"pp": 2, "tp": 1, "ep": 2, "schedule": "zb_h1"}, **words)
    job = build_job(spec, rank_count=4, ranks_per_host=8)
    check_job(job)
    grouped = [(label, op) for label, op in iter_ops(job, 0) if isinstance(op, GroupedGemm)]
    late = [label for label, _ in grouped if label.endswith("weights")]
    # Up and down: forward, gradient of the input, gradient of the weight.
    assert len(grouped) == 3 * len(late) > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["parallel.pp=1"], "schedule=zb_v needs pipeline stages"),
        (["parallel.interleaving=2"], "hold two chunks of layers: leave interleaving out"),
        (["parallel.expert_overlap=true"], "expert_overlap needs 1f1b or dualpipe_v"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(changes, words):
    with pytest.raises(WorkloadError, match=words):
        job_of("zb_v", 8, *changes)
