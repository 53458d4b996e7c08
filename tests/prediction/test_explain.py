"""Why an iteration takes as long as it does, also where several steps are explained as one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from perfmodel import api
from perfmodel.base.provenance import Provenance
from perfmodel.engine.history import Hop, Occurrence
from perfmodel.engine.reasons import PathStep, Window
from perfmodel.graph.job import MemoryPart, RankMemory
from perfmodel.graph.ops import HostPart, HostWork
from perfmodel.prediction.answer import CriticalPath, Explanation, PathShare, RankWait, TimeParts
from perfmodel.prediction.explain import (
    BLOCKING,
    fullest,
    merge_numbers,
    name_kind,
    path_start_ns,
    provenance_of_path,
)
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.prediction.time_parts import share_out, shrink_to_iteration


def test_a_class_of_ranks_is_shown_with_the_memory_of_the_fullest():
    memory = [RankMemory((MemoryPart("weights", size),)) for size in (5, 9, 7)]
    assert fullest(memory, (0, 1, 2)).total_bytes == 9
    assert fullest(memory, (0, 2)).total_bytes == 7
    assert fullest((), (0, 1)).parts == ()


def test_the_memory_of_an_answer_is_that_of_the_fullest_rank_of_all():
    scenario = api.Scenario("dgx_a100", samples=2)
    question = build_question(load_setting(scenario))
    needed = [memory.total_bytes for memory in question.memory_of_rank]
    prediction = api.predict(scenario, executor="serial")
    assert prediction.memory is not None
    full = replace(prediction.memory, capacity_bytes=max(needed))
    assert full.fits
    assert not replace(full, capacity_bytes=max(needed) - 1).fits
    no_device = replace(prediction.facts, device_memory_bytes=None)
    assert replace(prediction, facts=no_device).memory is None
    assert len(set(needed)) > 1
    assert prediction.memory.peak_bytes == max(needed)
    alone = question.memory_fit
    assert alone is not None
    assert alone.peak_bytes == max(needed)
    fullest_ranks = [rank for rank, size in enumerate(needed) if size == max(needed)]
    assert alone.fullest.ranks == tuple(fullest_ranks)
    assert alone.capacity_bytes == prediction.memory.capacity_bytes
    for entry in prediction.explanation.rank_classes:
        assert entry.memory.total_bytes == max(needed[rank] for rank in entry.ranks)


def test_of_host_work_only_calls_that_wait_are_told_apart():
    job = build_question(load_setting(api.Scenario("dgx_a100"))).job
    assert name_kind(job, 0, 0) == "host work"
    for part, kind in ((HostPart.WAIT, BLOCKING), (HostPart.LAUNCH, "host work")):
        ops = list(job.ops)
        ops[job.program_of(0).op[0]] = HostWork("item", part)
        assert name_kind(replace(job, ops=tuple(ops)), 0, 0) == kind


def of_window(*by_kind: int) -> Explanation:
    shares = tuple(PathShare(f"kind {place}", ns, 1) for place, ns in enumerate(by_kind))
    waits = (RankWait((0,), 1, "all_reduce", 90),)
    return Explanation(TimeParts({}), (), CriticalPath(shares, shares, 2), waits, {})


def test_the_path_adds_up_to_the_iteration():
    # 310 ns of path in 300 ns of window, for an iteration of 100: 100/310 of each share is
    # 32.26, 32.26 and 35.48, and the nanosecond that rounding down leaves goes to the last.
    shrunk = shrink_to_iteration(of_window(100, 100, 110), iteration_ns=100, window_ns=300)
    assert [share.duration_ns for share in shrunk.critical_path.by_kind] == [32, 32, 36]
    assert shrunk.critical_path.rank_changes == 2


def test_waits_shrink_as_the_window_does():
    shrunk = shrink_to_iteration(of_window(300), iteration_ns=100, window_ns=300)
    assert [wait.duration_ns for wait in shrunk.waits] == [30]
    for window_ns in (0, 1):
        grown = shrink_to_iteration(of_window(1), iteration_ns=3, window_ns=window_ns)
        assert [wait.duration_ns for wait in grown.waits] == [270]


def test_an_empty_path_stays_empty():
    whole = of_window()
    assert shrink_to_iteration(whole, iteration_ns=7, window_ns=7) == whole


def test_weights_of_nothing_get_nothing():
    assert share_out([0, 0], 10) == [0, 0]


def test_provenance_is_by_the_time_that_the_path_spends():
    def rows_of(job, rank):
        return slice(rank, rank + 2)

    kinds = (Provenance.RECORDED, Provenance.ASSUMED, Provenance.RECORDED)
    priced = SimpleNamespace(
        job=None,
        durations=SimpleNamespace(rows_of=rows_of),
        provenance=np.array([kind.value for kind in kinds]),
    )
    steps = [
        PathStep(Occurrence(0, 0, 0), 100, 150, 0, Hop.LANE),
        PathStep(Occurrence(0, 0, 1), 150, 450, 0, Hop.LANE),
        PathStep(Occurrence(0, 1, 1), 450, 500, 0, Hop.LANE),
        PathStep(Occurrence(0, 1, 0), 500, 500, 0, Hop.LANE),
    ]
    assert provenance_of_path(priced, steps) == {
        Provenance.RECORDED: 0.25,
        Provenance.ASSUMED: 0.75,
    }
    assert provenance_of_path(priced, []) == {}


def test_the_path_is_that_of_the_last_iteration():
    def start_ns(*ends_ns):
        ends = np.array(ends_ns)[:, None]
        replay = SimpleNamespace(iteration_end_ns=ends)
        return path_start_ns(
            SimpleNamespace(history=SimpleNamespace(replay=replay), window=Window(7, 9))
        )

    assert (start_ns(30), start_ns(30, 60), start_ns(30, 60, 95)) == (7, 30, 60)


def test_layers_are_merged_and_words_with_digits_are_not():
    assert merge_numbers("layer 12/ffn/up forward") == "layer */ffn/up forward"
    assert merge_numbers("conv2d/step 3") == "conv2d/step *"
