"""Where a step ends, and by what evidence."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.self_replay import self_replay
from perfmodel.extensions.recordings.steps import repeats_from_end
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch, span

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
STEP_US = 1_000


def steps(count, *, kernels="abcd", marks=True, optimizer=None, lag=7, before=()):
    """Steps of 1 ms: a kernel per letter, 100 us apart, then a collective.

    *kernels* may be one text per step in turn. *before* are kernels launched before the window.
    """
    turns = [kernels] if isinstance(kernels, str) else kernels
    spans, number = [], 0
    for place, letter in enumerate(before):
        name = NCCL if letter == "N" else f"kernel_{letter}"
        stream = 9 if letter == "N" else 7
        at = -1_000 + 100 * place + lag
        spans.append(kernel(10_000 + place, at, 50, name=name, stream=stream))
    for step in range(count):
        at = step * STEP_US
        if marks:
            spans.append(span("user_annotation", f"ProfilerStep#{step + 5}", at, STEP_US - 1))
        for place, letter in enumerate(turns[step % len(turns)]):
            spans.append(launch(number, at + 100 * place))
            own = kernel(number, at + 100 * place + lag, 50, name=f"kernel_{letter}")
            spans.append(own)
            number += 1
        spans.append(launch(number, at + 800))
        spans.append(kernel(number, at + 800 + lag, 100, name=NCCL, stream=9))
        number += 1
        if optimizer:
            name = f"Optimizer.step#{optimizer}.step"
            spans.append(span("user_annotation", name, at + 900, 50, tid=1))
    return spans


def test_marks_of_the_profiler_divide_a_recording(tmp_path):
    report = import_spans(tmp_path, steps(4), steps(4)).report

    assert (report.steps, report.rule, report.cycle) == (4, "profiler marks", 1)
    # Five kernels and 1 ms each, on both ranks; the first step has none before it.
    assert [(row.step, row.rank) for row in report.table] == [
        (step, rank) for step in (5, 6, 7, 8) for rank in (0, 1)
    ]
    assert {row.kernels for row in report.table} == {5}
    assert {row.host_ns for row in report.table} <= {999_000, 1_000_000}
    assert [row.is_chosen for row in report.table] == [False] * 2 + [True] * 6
    assert [later.end_ns - one.end_ns for one, later in pairwise(report.table[::2])] == [
        1_000_000
    ] * 3


def test_old_profilers_write_marks_as_operators(tmp_path):
    spans = [one | {"cat": one["cat"].replace("user_annotation", "Operator")} for one in steps(3)]

    report = import_spans(tmp_path, spans).report
    assert (report.steps, report.rule) == (3, "profiler marks")


def test_steps_that_differ_in_turn_are_a_cycle_and_the_time_is_per_step(tmp_path):
    # Even steps launch four kernels, odd ones seven; a collective ends each.
    job = import_spans(tmp_path, steps(4, kernels=["abcd", "abcdefg"]))
    score = self_replay(job)

    assert (job.report.steps, job.report.cycle) == (4, 2)
    assert score.iteration.recorded_ns == pytest.approx(1_000_000, rel=0.02)


def test_without_marks_calls_of_the_optimizer_divide_it(tmp_path):
    report = import_spans(tmp_path, steps(3, marks=False, optimizer="AdamW")).report

    assert (report.steps, report.rule) == (3, "optimizer calls")
    assert [row.kernels for row in report.table] == [5, 5, 5]


def test_without_both_a_sequence_that_repeats_divides_it(tmp_path):
    report = import_spans(tmp_path, steps(3, marks=False)).report

    assert (report.steps, report.rule) == (3, "repeated sequence")


@pytest.mark.parametrize(
    ("optimizer", "rule", "count"),
    [("AdamW", "optimizer calls", 4), (None, "repeated sequence", 5)],
)
def test_a_single_mark_in_a_window_of_several_steps_is_not_the_whole_window(
    tmp_path, optimizer, rule, count
):
    # Five steps of 1 ms. Marks were cut with the beginning and the end: only that of 2 to 3 ms
    # is left, and the optimizer's last call is missing.
    spans = [
        one
        for one in steps(5, optimizer=optimizer)
        if "ProfilerStep" not in one["name"] or one["ts"] == 2_000
        if "Optimizer" not in one["name"] or one["ts"] < 4_000
    ]
    job = import_spans(tmp_path, spans)

    assert (job.report.steps, job.report.rule) == (count, rule)
    assert self_replay(job).iteration.recorded_ns == pytest.approx(1_000_000, rel=0.01)


def test_layers_that_repeat_in_a_single_marked_step_are_no_steps(tmp_path):
    # Four equal parts of 1 ms inside one mark of 4 ms.
    mark = span("user_annotation", "ProfilerStep#5", 0, 3_999)
    report = import_spans(tmp_path, [mark, *steps(4, marks=False)]).report

    assert (report.steps, report.rule) == (1, "profiler marks")


def test_a_last_step_that_the_device_has_not_done_is_left_out(tmp_path):
    # The device is 2.5 ms late, and the window ends at 4.6 ms, in the third of its four steps.
    spans = [one for one in steps(4, lag=2_500) if one["cat"] != "kernel" or one["ts"] < 4_600]
    job = import_spans(tmp_path, spans)

    assert (job.report.steps, job.report.rule) == (2, "profiler marks")
    assert self_replay(job).iteration.recorded_ns == pytest.approx(1_000_000, rel=0.01)


def test_a_part_of_the_first_marked_step_is_no_step_before_it(tmp_path):
    # The first step has three collectives more, after 300, 400 and 500 us; the second has one.
    more = []
    for number, at in enumerate((300, 400, 500), start=900):
        more += [launch(number, at + 20), kernel(number, at + 27, 50, name=NCCL, stream=9)]
    job = import_spans(tmp_path, [*steps(2), *more])

    assert job.report.steps == 2
    assert self_replay(job).iteration.recorded_ns == pytest.approx(1_000_000, rel=0.01)


def test_ranks_with_different_numbers_of_steps_share_the_common_ones(tmp_path):
    report = import_spans(tmp_path, steps(3), steps(4)).report

    assert report.steps == 3
    assert any("the 3 common ones are used" in fault for fault in report.faults)


def test_a_step_that_its_own_kernels_contradict_is_not_trusted(tmp_path):
    # Each mark holds one and a half of what the kernels repeat: the marks were set wrongly.
    spans = steps(6, kernels="abcdefgh", marks=False)
    for number in range(4):
        spans.append(span("user_annotation", f"ProfilerStep#{number}", number * 1_500, 1_499))
    job = import_spans(tmp_path, spans)
    score = self_replay(job)

    assert any("shows a different step" in fault for fault in job.report.faults)
    assert not score.is_trusted
    # It replays itself all the same.
    assert abs(score.iteration.error_pct) < 10


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        ("abcabcabc", {3: 6, 6: 3}),
        ("cabcabc", {3: 4, 6: 1}),
        ("aaaa", {1: 3, 2: 2, 3: 1}),
        ("abcdefgh", {}),
        ("", {}),
    ],
)
def test_repeats_are_counted_from_the_end(text, alike):
    found = repeats_from_end(text)

    assert {period: count for period, count in enumerate(found) if period and count} == alike


@pytest.mark.parametrize("ranks", [(0,), (5,), (0, 1), (5, 6, 7), range(8)])
def test_marked_steps_that_alternate_are_found_on_any_ranks(recorded_ranks, ranks):
    """Four marked steps, whose optimizers alternate: 83.7 and 84.5 ms per two of them.

    All wait for rank 1, so without it the kernels of the others decide.
    """
    job = recorded_ranks("nanogpt_h100x8", ranks)
    score = self_replay(job)

    assert (job.report.steps, job.report.cycle) == (4, 2)
    assert score.iteration.recorded_ns / 1e6 == pytest.approx((83.7 + 84.5) / 4, rel=0.02)
    assert score.is_trusted, score.distrust
    assert abs(score.error_pct) < 0.7


def test_a_host_that_runs_ahead_is_no_skew_of_clocks(recorded_ranks):
    # Ranks 3 to 7 have 20 to 50 ms of work in their launch queue all the time.
    report = recorded_ranks("nanogpt_h100x8", range(8)).report

    assert {rank.skew_ns for rank in report.ranks} == {0}
    assert report.grave_faults == ()


def layered(count, *, layers=6):
    """Steps of 1 ms without marks: layers that each end in a collective, then an update."""
    spans, number = [], 0
    for step in range(count):
        at = step * STEP_US
        for place in range(3 * layers + 6):
            is_collective = place < 3 * layers and place % 3 == 2
            # The kernels of the second half are those of the backward pass.
            letter = "fg"[place % 3 % 2] if place < 3 * layers // 2 else "bc"[place % 3 % 2]
            name = NCCL if is_collective else f"kernel_{letter}"
            if place >= 3 * layers:
                name = f"update_{place}"
            spans.append(launch(number, at + 30 * place))
            stream = 9 if is_collective else 7
            spans.append(kernel(number, at + 30 * place + 7, 20, name=name, stream=stream))
            number += 1
    return spans


@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_with_equal_collectives_are_no_steps(tmp_path, ranks):
    report = import_spans(tmp_path, *[layered(4)] * ranks).report

    assert (report.steps, report.rule) == (4, "repeated sequence")
    ends = {row.end_ns for row in report.table if row.rank == 0}
    assert np.diff(sorted(ends)).tolist() == [STEP_US * 1_000] * 3


def test_steps_launched_before_the_window_and_cold_ones_are_not_chosen(tmp_path):
    # Work of a step from before the window; the second of four steps takes 1.5 ms.
    spans = [
        one | {"ts": one["ts"] + 500} if one["ts"] >= 2 * STEP_US else one
        for one in steps(5, marks=False, before="abcdefghN")
    ]
    table = import_spans(tmp_path, spans).report.table

    assert [row.is_inside for row in table] == [False, True, True, True, True, True]
    assert [row.is_warm for row in table] == [True, True, True, False, True, True]
    assert [row.is_chosen for row in table] == [False] * 4 + [True] * 2


def test_the_span_of_a_part_of_a_step_is_not_trusted(tmp_path):
    # The last 60 % of one step and the first 60 % of the next: nothing ends twice.
    spans = [one for one in steps(2, marks=False) if 400 <= one["ts"] < 1_600]
    score = self_replay(import_spans(tmp_path, spans))

    assert not score.is_trusted
    assert "no step is whole between two others" in score.distrust


@pytest.mark.parametrize(("late", "is_trusted"), [(0, True), (100, False)])
def test_a_lone_period_is_trusted_if_its_hosts_took_as_long(tmp_path, late, is_trusted):
    # One period of 1 or 1.1 ms between the ends of two steps whose marks are 1 ms apart.
    spans = [
        one | {"ts": one["ts"] + late} if one["cat"] == "kernel" and one["ts"] > STEP_US else one
        for one in steps(2)
    ]
    score = self_replay(import_spans(tmp_path, spans))

    assert len(score.periods) == 1
    assert score.is_trusted == is_trusted
    assert is_trusted or "how much they differ" in score.distrust


WINDOWS = [*((0, stop) for stop in (10, 25, 40, 55, 70, 85)), (15, 100), (45, 100), (75, 100),
           (20, 80), (35, 65)]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["dlrm_torchrec_v100x4/n2_a2a_opt_2_runB", "nanogpt_h100x8_2025_10_rank0",
             "resnet_ddp_mi300x4", "resnet50_loader_v100/num_workers_0.json.gz"],
)  # fmt: skip
def test_a_cut_window_shows_the_same_step_or_is_not_trusted(recorded, recorded_traces, name):
    whole = recorded_traces(name)
    step_ns = self_replay(recorded(name)).iteration.recorded_ns
    for first, stop in WINDOWS[:: max(len(whole.ranks) // 2, 1)]:
        try:
            score = self_replay(import_job(cut(whole, first / 100, stop / 100)))
        except TraceError:
            continue  # most of what is left was launched before the window
        is_right = abs(score.iteration.recorded_ns / step_ns - 1) <= 0.02
        assert is_right or not score.is_trusted, (first, stop)


def cut(job, first, stop):
    """The part of *job* from *first* to *stop*, as shares of the window of each rank."""
    ranks = []
    for trace in job.ranks:
        columns = trace.columns
        from_ns = int(columns.start_ns.min())
        span_ns = int(columns.end_ns.max()) - from_ns
        kept = (columns.start_ns >= from_ns + first * span_ns) & (
            columns.end_ns <= from_ns + stop * span_ns
        )
        ranks.append(replace(trace, columns=columns.take(np.flatnonzero(kept))))
    return replace(job, ranks=tuple(ranks))
