"""Collectives of several ranks: one clock, and the rank that lacks a call is named."""

import re
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.self_replay import self_replay
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch
from traces.trace import Category

REDUCE, GATHER = "ncclDevKernel_AllReduce_Sum_f32(args)", "ncclDevKernel_AllGather(args)"
STEPS = [REDUCE, GATHER, REDUCE, REDUCE] * 3


def rank_spans(names, *, lost=None, offset=0, every=1000):
    spans = []
    for number, name in enumerate(names):
        if number != lost:
            at = offset + every * number
            spans += [launch(number, at), kernel(number, at + 7, 40, stream=20, name=name)]
    return spans


def fault_of(folder, ranks):
    """What the import of *ranks* says, and whether it refuses them."""
    try:
        return " ".join(import_spans(folder, *ranks).report.all_faults), False
    except TraceError as fault:
        return str(fault), True


@pytest.mark.parametrize("offset", [0, 7_000_000], ids=["one host", "another host"])
@pytest.mark.parametrize("names", [STEPS, [REDUCE] * 12], ids=["several kinds", "one kind"])
@pytest.mark.parametrize("lost", range(1, 11))
def test_the_rank_that_lacks_a_collective_is_named_with_its_number(tmp_path, names, lost, offset):
    ranks = [rank_spans(names, offset=offset * (rank // 2)) for rank in range(4)]
    ranks[2] = rank_spans(names, lost=lost, offset=offset)

    sentence, is_refused = fault_of(tmp_path, ranks)

    kinds = {REDUCE: "all_reduce", GATHER: "all_gather"}
    words = f"#{lost}: rank 2 lacks {kinds[names[lost]]}, made by ranks 0, 1, 3"
    assert sentence.count("'world': members must make the same collectives") == 1
    assert f"{words}; in its place: {kinds[names[lost + 1]]}." in sentence
    assert "different jobs" not in sentence
    assert is_refused or lost < 7 or names != STEPS


def test_a_rank_that_makes_a_collective_more_than_the_others_is_named(tmp_path):
    others = [rank_spans(STEPS, lost=5) for _ in range(4)]
    sentence, _ = fault_of(tmp_path, [others[0], others[1], rank_spans(STEPS), others[3]])
    assert "#5: ranks 0, 1, 3 lack all_gather, made by rank 2; in its place: all_reduce" in sentence


def test_clocks_of_another_host_are_aligned_on_collectives(tmp_path):
    ranks = [rank_spans([REDUCE] * 5, offset=offset) for offset in (0, 5_000_000)]
    job = import_spans(tmp_path, *ranks)
    first, second = job.report.ranks
    assert second.offset_ns == first.offset_ns - 5_000_000_000
    assert self_replay(job).worst_error_pct < 0.1
    assert job.report.steps == 5


def test_ranks_that_began_to_record_at_different_moments_lack_nothing(tmp_path):
    ranks = [rank_spans(STEPS, lost=0), rank_spans(STEPS), rank_spans(STEPS, lost=0)]
    job = import_spans(tmp_path, *ranks)
    assert job.report.all_faults == ()
    assert job.report.rendezvous == 11


def test_windows_that_end_at_different_moments_are_matched_by_time(tmp_path):
    # Calls end every 0.2 to 2.2 ms. The window of rank 1 ends two calls before that of rank 0.
    names, spans, at = [REDUCE] * 14, [], 0
    for number, name in enumerate(names):
        spans += [launch(number, at), kernel(number, at + 7, 40, stream=20, name=name)]
        at += 200 + 400 * (number * number % 6)
    job = import_spans(tmp_path, spans, spans[:-4])
    # Counted from the end, the calls of rank 0 would be up to 4.4 ms late.
    assert job.report.rendezvous == 12
    assert [rank.offset_ns for rank in job.report.ranks] == [0, 0]
    assert self_replay(job).worst_error_pct < 0.1


def test_ranks_that_make_other_collectives_are_named_with_what_each_makes(tmp_path):
    ranks = [rank_spans([REDUCE] * 6) for _ in range(3)]
    ranks[1] = rank_spans([REDUCE] * 5 + [GATHER])
    sentence, is_refused = fault_of(tmp_path, ranks)
    assert is_refused
    assert "#5: all_gather on rank 1, all_reduce on ranks 0, 2." in sentence


def test_one_kernel_taken_out_of_a_real_recording_is_named(recorded_traces):
    whole = recorded_traces("resnet_ddp_mi300x4")
    trace = whole.ranks[2]
    kernels = trace.columns.rows_in(Category.KERNEL).tolist()
    calls = [row for row in kernels if "nccl" in trace.name_of(row)]
    assert len(calls) == 21
    for number in (2, 15):
        kept = np.delete(np.arange(len(trace.columns)), calls[number])
        lacking = replace(trace, columns=trace.columns.take(kept))
        job = replace(whole, ranks=(*whole.ranks[:2], lacking, *whole.ranks[3:]))
        words = rf"#{number}: rank 2 lacks \w+ of \d+ bytes \(\w+\), made by ranks 0, 1, 3;"
        if number < 10:
            faults = import_job(job).report.all_faults
            assert len([fault for fault in faults if re.search(words, fault)]) == 1
        else:
            with pytest.raises(TraceError, match=words):
                import_job(job)
