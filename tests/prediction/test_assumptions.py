"""What an answer takes for granted is said where it holds, and only there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel.base.provenance import Provenance
from perfmodel.costs.interference import GenerationSlowdowns, Phase
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_shared_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.answer import InterferenceLoss
from perfmodel.prediction.assumptions import NO_DOUBT, list_assumptions
from perfmodel.prediction.interference import FoldedCosts
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.scenario import Interference
from perfmodel.stacks.spread import Spread
from tests.prediction.test_interference import price

SLOWED = {("gemm", Phase.MOVING): 1.25, ("memory", Phase.MOVING): 1.5}


def priced(*assumed: str, alike: int = 1, **tasks_ns: int) -> PricedJob:
    """So many ranks alike with such tasks, and one more with a task of 150 ns."""
    builder = JobBuilder()
    for count, tasks in ((alike, tasks_ns), (1, {"other 7": 150})):
        program = builder.new_program()
        gpu = program.add_lane("gpu", LaneKind.COMPUTE)
        for name, duration_ns in tasks.items():
            program.add_task(gpu, Fixed(name, duration_ns), label=name)
        number = builder.add_program(program.build())
        for _ in range(count):
            builder.add_rank(number)
    job = builder.build(JobFacts("some"))
    ops = [[job.ops[op] for op in one.op] for one in job.programs]
    rows = [np.array([op.duration_ns for op in some], dtype=np.int64) for some in ops]
    found = price(job, build_shared_durations(job, rows)).priced
    is_assumed = np.array([op.name in assumed for some in ops for op in some])
    provenance = np.where(is_assumed, Provenance.ASSUMED, Provenance.RECORDED).astype(np.int8)
    return replace(found, provenance=provenance)


def said(
    of: PricedJob,
    *,
    is_steady: bool = True,
    settled: FoldedCosts | None = None,
    loss: InterferenceLoss | None = None,
    is_drawn: bool = True,
    **known: Any,
) -> tuple[str, ...]:
    settled = replace(settled or FoldedCosts(of, ()), priced=of)
    loop: Any = SimpleNamespace(settled=settled, is_steady=is_steady)
    return list_assumptions(Question(of.job, **known), loop, loss, is_drawn=is_drawn)


def test_what_is_assumed_is_named_longest_first_and_once_for_ranks_alike():
    assert said(priced(a=100)) == ()
    # Ranks that share their prices are counted once: 150 before 100, and numbers are left out.
    [names] = said(priced("a", "b", "other 7", alike=2, a=100, b=40, c=900))
    assert names == "Some durations are assumed, not modelled, in: other *, a, b."
    [equal] = said(priced("b", "a", a=10, b=10))
    assert equal.endswith("in: a, b.")
    # What takes no time needs no assumption.
    [some] = said(priced("a", "b", a=0, b=1))
    assert some.endswith("in: b.")
    [several] = said(priced("x 1", "x 2", "y", **{"x 1": 10, "x 2": 10, "y": 15}))
    assert several.endswith("in: x *, y.")


@pytest.mark.parametrize(("count", "end"), [(6, "t, u."), (7, "t, u and 1 more.")])
def test_no_more_than_six_are_named(count, end):
    tasks = {name: 100 - place for place, name in enumerate("pqrstuv"[:count])}
    [names] = said(priced(*tasks, **tasks))
    assert names.endswith(f"in: p, q, r, s, {end}")


def test_a_loop_that_had_not_settled_says_so():
    [sentence] = said(priced(a=1), is_steady=False)
    assert sentence.startswith("The loop had not settled after")


def test_the_spread_is_told_where_something_is_not_recorded():
    spread = Spread(0.1, "All of it may be off.")
    assert said(replace(priced(a=1), spread=spread)) == ()
    assert said(replace(priced("a", a=1), spread=spread))[1:] == ("All of it may be off.",)
    assert len(said(priced("a", a=1))) == 1


def test_interference_is_told_where_it_was_left_out_or_costs_something():
    job = priced(a=1)
    [left_out] = said(job, options=PredictOptions(interference=Interference.LEFT_OUT))
    assert left_out.startswith("Contention is not modelled")
    lost = FoldedCosts(job, (), rounds=3)
    loss = InterferenceLoss(2_000, 3)
    assert said(job, settled=replace(lost, rounds=1), loss=loss) == ()
    assert said(job, settled=lost) == ()
    begin = "Interference adds 2 us to the iteration: collectives on one link share its bandwidth"
    longer = "GEMMs take 1.25 and memory-bound kernels 1.50 times as long, "
    for slowed, is_own, words in (
        ({}, True, f"{begin}."),
        (SLOWED, True, f"{longer}measured on"),
        (SLOWED, False, f"{longer}assumed as on hopper"),
    ):
        slowdowns = GenerationSlowdowns("hopper", slowed, is_own=is_own)
        [sentence] = said(replace(job, slowdowns=slowdowns), settled=lost, loss=loss)
        assert words in sentence
        assert sentence.startswith(begin)
    [restless] = said(job, settled=replace(lost, moved_ratio=0.25))
    assert restless.startswith("Contention had not settled after 8 rounds; the last one still")
    assert restless.endswith("changed the iteration by 25.00%.")
    # A round that moves exactly as much as counts as standing still is not the last.
    assert not replace(lost, moved_ratio=1e-4).is_settled
    assert replace(lost, moved_ratio=0.99e-4).is_settled


def test_what_came_from_elsewhere_is_named():
    of = priced(a=1)
    for files, sentences in (((), ()), (("a", "b"), ("a, b override the shipped constants.",))):
        cluster = SimpleNamespace(
            device=SimpleNamespace(calibrations=files),
            topology=SimpleNamespace(lost_constants="", assumed=()),
            faults=(),
        )
        assert said(of, cluster=cluster) == sentences
    [said_of_many] = said(of, extrapolation=SimpleNamespace(micro_batches=64))
    assert said_of_many.startswith("The 64 equal micro-batches are extrapolated")
    assert said(of, assumptions=("x", "y"), chosen=("y", "z")) == ("x", "y", "z")


def test_without_a_draw_the_interval_is_said_to_be_empty():
    for samples, sentences in ((0, ()), (2, (NO_DOUBT,))):
        options = PredictOptions(samples=samples)
        assert said(priced(a=1), options=options, is_drawn=False) == sentences
