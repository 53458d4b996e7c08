"""What the replay of a recording says about runs that were also recorded.

Reproducing a recording proves little; these are the questions with an answer.
"""

import numpy as np
import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.recordings.host_chain import StepKind
from perfmodel.extensions.recordings.recording_info import recording_question
from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.extensions.whatif import apply_all, parse_transformation
from perfmodel.graph.job import with_own_origins
from perfmodel.graph.program import PLAIN
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions
from tests.extensions.recordings.builders import durations_of, held_of, import_spans, replay_ms
from tests.extensions.recordings.test_trust import some_steps

MS = 1_000_000
HOOKS = "hooks:match=kernel:ReduceScatter&range:DistAdam"
ALONE = "remove:match=nccl,lane=device"
COLLECTIVES_A_STEP = 9


@pytest.fixture(scope="module")
def jobs(recorded):
    names = {"s2": "s2_a2a_opt_2_runA", "n2": "n2_a2a_opt_2_runB", "n3": "n3_a2a_opt_3"}
    return {key: recorded(f"dlrm_torchrec_v100x4/{name}") for key, name in names.items()}


def gaps_of_rank_2(job, durations, low_ms, high_ms):
    """Rows of host tasks of rank 2 that last between two lengths."""
    first, end = job.graph.rank_rows()[2:4]
    program = job.graph.program_of(2)
    is_work = np.array([op.name == StepKind.WORK.value for op in job.graph.ops])[program.op]
    lengths = durations.values_ns[first:end, 0]
    return first + np.flatnonzero(is_work & (lengths > low_ms * MS) & (lengths < high_ms * MS))


def gap_before_backward_all_to_all(job):
    """Rows of the host work of rank 2 right before it launches that collective, each step."""
    program, first = job.graph.program_of(2), int(job.graph.rank_rows()[2])
    members = np.flatnonzero(program.slot != PLAIN)
    order = members[np.argsort(program.sequence[members])]
    rows = []
    for task in order[3::COLLECTIVES_A_STEP]:
        deps = slice(program.dep_start[task], program.dep_start[task + 1])
        launches = [int(t) for t in program.dep_task[deps] if "cudaLaunch" in label(job, int(t))]
        rows.extend(first + launch - 1 for launch in launches)
    return rows


def label(job, task):
    return job.graph.labels[int(job.graph.program_of(2).label[task])]


def test_the_long_sleep_made_two_short_ones_gives_the_other_run(jobs):
    job = jobs["s2"]
    durations = durations_of(job)
    sleeps = gaps_of_rank_2(job, durations, 900, 1100)
    assert len(sleeps) == 3
    # One gap of 1001.7 ms becomes one of 20.5, and another of 20.5 comes before the backward
    # all-to-all.
    durations.values_ns[sleeps, 0] += round((20.5 - 1001.7) * MS)
    durations.values_ns[gap_before_backward_all_to_all(job), 0] += round(20.55 * MS)

    # Measured in n2: 158.8 and 159.9 ms.
    for period_ms in replay_ms(job, durations):
        assert period_ms == pytest.approx(159.3, rel=0.015)


def test_the_short_sleeps_made_one_long_give_the_first_run(jobs):
    job = jobs["n2"]
    durations = durations_of(job)
    sleeps = gaps_of_rank_2(job, durations, 19, 23)
    assert len(sleeps) == 6
    forward, backward = sleeps[:3], sleeps[3:]  # the main thread's lane comes first
    durations.values_ns[forward, 0] += round((1001.7 - 20.5) * MS)
    durations.values_ns[backward, 0] -= round(20.5 * MS)

    # Measured in s2: 1134.9 and 1135.3 ms.
    for period_ms in replay_ms(job, durations):
        assert period_ms == pytest.approx(1135.1, rel=0.002)


def ask(job, *wishes):
    """The prediction for a recording after what-ifs."""
    question = recording_question(with_score(job), PredictOptions(is_explained=False))
    changed = apply_all(question.job, [parse_transformation(wish) for wish in wishes])
    return predict(question.changed_to(changed), executor=SerialExecutor())


def test_a_cold_step_is_left_out(recorded):
    # 335.3, 158.75 and 159.87 ms.
    job = recorded("dlrm_torchrec_v100x4/n2_a2a_opt_2_runB")
    assert job.report.steps == 3
    assert with_score(job).score.iteration.recorded_ns / MS == pytest.approx(159.31, rel=0.001)


def test_a_slower_kernel_on_one_rank_makes_all_ranks_later(jobs):
    job = jobs["n2"]
    durations = durations_of(job)
    last_end = job.step_ends[-1]
    before = held_of(job, durations).end_ns[last_end].max()
    first = int(job.graph.rank_rows()[2])
    program = job.graph.program_of(2)
    labels = np.array([job.graph.labels[int(number)] for number in program.label])
    kernel = first + np.flatnonzero(np.char.startswith(labels, "volta_sgemm_32x128_tn"))[-1]
    durations.values_ns[kernel, 0] += 10 * MS

    # Rank 2 is the straggler of n2, so what it loses all ranks lose.
    after = held_of(job, durations).end_ns[last_end].max()
    assert 8 * MS < after - before < 12 * MS


def test_a_straggler_removed_makes_the_step_shorter_by_no_more_than_it_slept(jobs):
    job = jobs["n2"]
    durations = durations_of(job)
    sleeps = gaps_of_rank_2(job, durations, 19, 23)
    durations.values_ns[sleeps, 0] = 0

    for before_ms, after_ms in zip(replay_ms(job), replay_ms(job, durations), strict=True):
        # It slept 41 ms a step, most of which the others spend allocating memory meanwhile.
        assert 5 < before_ms - after_ms < 41.2


def asked(job, *wishes):
    return ask(job, *wishes).iteration_ns / MS


def test_reduce_scatters_moved_into_hooks_give_the_run_that_had_them_there(recorded):
    before = recorded("single_rank/nanogpt_h100x8_rank0_before_hooks.json.gz")

    # Recorded: 61.0 ms per step before, 60.4 after.
    assert asked(before, HOOKS) == pytest.approx(60.44, rel=0.02)


def test_collectives_by_priority_let_the_next_step_of_a_recording_begin_earlier(recorded):
    job = recorded("resnet_ddp_mi300x4")

    # Three steps in one recording: the forward pass of a step waits for pieces of the one before.
    assert 0.9 * asked(job) < asked(job, "priority") < asked(job)


def test_a_job_under_autocast_is_not_asked_what_16_bits_would_bring(recorded):
    with pytest.raises(ScenarioError, match="autocast or in 16 bits already: 100 %"):
        ask(recorded("resnet_ddp_mi300x4"), "amp")


@pytest.mark.parametrize(
    ("name", "whole", "ranks", "topology"),
    [
        ("resnet_ddp_mi300x4/rank0.json.gz", "resnet_ddp_mi300x4", 4, "mi300x_platform"),
        ("single_rank/hta_nccl_parser_config__nccl_data.json.gz", "", 2, "dgx_a100"),
    ],
)
def test_one_gpu_made_data_parallel_takes_what_the_job_takes(
    recorded, name, whole, ranks, topology
):
    # 25.56 million parameters in fp32.
    wish = f"data_parallel:count={ranks},gradients=102.2MB,topology={topology}"

    job = recorded(name)
    all_ms = asked(recorded(whole or name))
    assert asked(job, ALONE, wish) == pytest.approx(all_ms, rel=0.05)


def device_ms(graph):
    [program] = graph.programs
    ops = [graph.ops[op] for op in program.op[program.is_on_device()].tolist()]
    return sum(op.duration_ns for op in ops) / MS


@pytest.mark.parametrize("model", ["timesformer", "vit"])
@pytest.mark.parametrize(
    ("of", "to", "most"),
    [(("h100", "dgx_h100"), ("mi300x", "mi300x_platform"), 0.10),
     (("mi300x", "mi300x_platform"), ("h100", "dgx_h100"), 0.20)],
)  # fmt: skip
def test_a_forward_pass_moved_to_a_gpu_of_another_vendor_takes_what_it_takes_there(
    recorded, model, of, to, most
):
    before, truth = (
        recorded(f"forward_{model}_h100_mi300x/{gpu}.json.gz").graph for gpu, _ in (of, to)
    )
    wish = parse_transformation(f"machine:topology={to[1]},was={of[1]}")

    moved = wish.apply(with_own_origins(before))

    assert device_ms(moved) == pytest.approx(device_ms(truth), rel=most)


def test_a_period_stays_a_period_when_what_ended_it_is_taken_out(tmp_path):
    job = import_spans(tmp_path, some_steps(), some_steps())

    # Every step begins 1 ms after the one before, whatever ends it.
    assert asked(job, ALONE) == pytest.approx(asked(job), rel=0.1)
