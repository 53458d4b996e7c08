"""Why an iteration takes as long as it does."""

from __future__ import annotations

from dataclasses import replace

from perfmodel import api
from perfmodel.graph.job import MemoryPart, RankMemory
from perfmodel.graph.ops import HostPart, HostWork
from perfmodel.prediction.explain import BLOCKING, fullest, name_kind
from perfmodel.prediction.question import build_question, load_setting


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
