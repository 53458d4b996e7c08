"""What a ranking says of plans, worked out by hand from what is stated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddings.plan import Shard, ShardingPlan
from perfmodel.costs.models import FAMILIES
from perfmodel.planning import rank_plans
from perfmodel.planning.batches import BatchSpread
from perfmodel.planning.making import MadePlans
from perfmodel.planning.plan_costs import GRADIENTS, INDICES, LOOKUP, POOLED, UPDATE
from perfmodel.planning.question import RankBy, RankQuestion
from perfmodel.planning.rank_plans import (
    _assumptions,
    _facts,
    _predict_options,
    _rank_one,
    _spread,
    _straggler,
    _whole_gains,
    _with_places,
    find_gains,
    find_loads,
    order_time,
)
from perfmodel.planning.ranking import PlanBound, PlanLoads, RankedPlan
from perfmodel.prediction.scenario import Mode
from tests.planning.settings import build_spec

SPREAD = BatchSpread(mean_ns=30.0, low_ns=10.0, middle_ns=25.0, high_ns=50.0, batches=4)


def ranked(
    time_ns: int, *drawn_ns: float, fits: bool = True, peak: int = 5, **more: Any
) -> RankedPlan:
    nothing: Any = None
    answer: Any = SimpleNamespace(iteration_ns=time_ns, drawn_ns=drawn_ns)
    fields: Any = {"spread": None, **more}
    return RankedPlan(
        plan=nothing, answer=answer, place=0, beats_next=None, bound=PlanBound.LOOKUP, gains_ns={},
        straggler=nothing, loads=PlanLoads((1.0,), (1,), (peak,)), fits=fits, **fields,
    )  # fmt: skip


def test_plans_are_ordered_by_the_time_that_was_asked_for():
    def time(rank_by: RankBy, spread: Any) -> float:
        question: Any = SimpleNamespace(rank_by=rank_by)
        return order_time(ranked(20, spread=spread), question)

    assert [time(one, SPREAD) for one in RankBy] == [20.0, 30.0, 50.0]
    assert [time(one, None) for one in RankBy] == [20.0, 20.0, 20.0]


def test_places_are_counted_on_and_the_first_of_each_is_held_against_the_next():
    question: Any = SimpleNamespace(rank_by=RankBy.NOMINAL)
    given = [
        ranked(30, 3.0, 3.0, fits=False),
        ranked(200, 2.0, 2.0),
        ranked(101, 9.0, 9.0, peak=9),
        ranked(100, 1.0, 2.0),
        ranked(20, 4.0, 1.0, fits=False),
    ]
    found = _with_places(given, question)
    assert [one.answer.iteration_ns for one in found] == [100, 101, 200, 20, 30]
    assert [one.place for one in found] == [1, 1, 3, 4, 5]
    # 1 against 2 is faster and 2 against 2 a tie; of those that do not fit 4 is not below 3, 1 is.
    assert [one.beats_next for one in found] == [0.75, None, None, 0.5, None]


def test_tables_on_every_rank_are_looked_up_by_all():
    spec = build_spec(3, batch=64)
    tables = spec.embedding.tables()
    shards = tuple(Shard(p, p, 0, tables[p].rows, 0, tables[p].width) for p in range(2))
    loads = find_loads(spec, ShardingPlan(tables, 2, shards, (2,)), (10, 20))
    assert loads.lookups == pytest.approx(
        [64 * tables[p].pooling_factor + 32 * tables[2].pooling_factor for p in range(2)]
    )


def evaluator(**more: Any) -> Any:
    table = SimpleNamespace(size_bytes=3 * 2**30)
    embedding = SimpleNamespace(tables=lambda: (table, table))
    spec = SimpleNamespace(name="model", batch=4096, embedding=embedding)
    fields = {"rank_count": 16, "host_count": 2, "device": SimpleNamespace(memory_bytes=100)}
    return SimpleNamespace(
        spec=spec, cluster=SimpleNamespace(**{**fields, **more}), stack=SimpleNamespace(name="some")
    )


def test_facts_say_what_was_asked():
    question = RankQuestion("dgx_a100")
    assert _facts(evaluator(), question) == (
        "dgx_a100: 2 hosts, 16 ranks",
        "model: 2 tables, 6.0 GiB of weights",
        "batch 4,096, 256 samples per rank",
        "stack some",
    )
    assert _facts(evaluator(host_count=1), question)[0] == "dgx_a100: 1 host, 16 ranks"
    asked = _predict_options(RankQuestion("dgx_a100", mode=Mode.ISOLATED, samples=7, seed=3))
    assert (asked.mode, asked.samples, asked.seed) == (Mode.ISOLATED, 7, 3)
    assert not asked.is_explained


def test_a_plan_fits_if_its_fullest_rank_does(monkeypatch):
    for name in ("_straggler", "find_loads", "_spread"):
        monkeypatch.setattr(rank_plans, name, lambda *given: None)
    gains = {PlanBound.LOOKUP: 1.0, PlanBound.HOST: 3.0, PlanBound.MLP: 2.0}
    monkeypatch.setattr(rank_plans, "find_gains", lambda *given: gains)
    nothing: Any = SimpleNamespace(iteration_ns=1)
    for memory, fits in (((100, 1), True), ((1, 101), False)):
        found = _rank_one(evaluator(), RankQuestion("x"), nothing, nothing, memory)
        assert found.fits is fits
        assert found.bound is PlanBound.HOST


def test_a_spread_is_laid_around_the_time_that_was_answered(monkeypatch):
    monkeypatch.setattr(rank_plans, "sample_batches", lambda *given, **more: SPREAD)
    times = SimpleNamespace(time_ns=lambda mode: np.array([20]))
    of: Any = SimpleNamespace(measure=lambda plans: times)
    nothing: Any = None
    for batches in (0, 1):
        assert _spread(of, nothing, RankQuestion("x", batches=batches), 40) is None
    assert _spread(of, nothing, RankQuestion("x", batches=2), 40) == SPREAD.scaled(2.0)


def straggler(monkeypatch, costs: list[float], *, own: Any = None, ready: Any = None) -> Any:
    """Of three ranks, with pieces of such costs on each."""
    tables = tuple(SimpleNamespace(name=f"t{number}") for number in range(len(costs)))
    shards = tuple(SimpleNamespace(table=number) for number in range(len(costs)))
    plan: Any = SimpleNamespace(rank_count=3, tables=tables, shards_of_rank=[shards] * 3)
    frame = SimpleNamespace(is_rendezvous=np.array([True, False, True]))
    of: Any = SimpleNamespace(
        price_whole=lambda plan: None,
        frame=lambda plan: frame,
        price=lambda plans: SimpleNamespace(kinds=[None], durations_ns=[None]),
        pieces_alone=lambda tables, shards: SimpleNamespace(total_ns=np.array(costs)),
    )
    monkeypatch.setattr(rank_plans, "has_steps", lambda plan: own is not None)
    monkeypatch.setattr(rank_plans, "lookups_of_ranks_ns", lambda priced: np.array(own))
    monkeypatch.setattr(rank_plans, "start_and_end", lambda *given: (np.array(ready), None))
    return _straggler(of, plan)


def test_the_straggler_is_whom_the_others_wait_for_most(monkeypatch):
    # Rank 2 comes last to the first meeting, 3 and 6 late; rank 1 to the third, by 9 and 9.
    ready = [[6, 3, 9], [0, 0, 99], [1, 10, 1]]
    found = straggler(monkeypatch, [5.0, 7.0, 1.0, 6.0], ready=ready)
    assert (found.rank, found.waited_ns) == (1, 6.0)
    assert found.tables == ("t1", "t3", "t0")
    stepped = straggler(monkeypatch, [5.0], own=[10.0, 20.0, 60.0])
    assert (stepped.rank, stepped.waited_ns, stepped.tables) == (2, 30.0, ("t0",))
    assert straggler(monkeypatch, [], ready=ready).tables == ()


def test_what_was_tried_and_drawn_is_said():
    best: Any = SimpleNamespace(assumptions=("one",))
    few = _assumptions(best, MadePlans((), (), 0), RankQuestion("x"))
    tried = _assumptions(best, MadePlans((), (), 1200), RankQuestion("x"))
    drawn = _assumptions(best, MadePlans((), (), 0), RankQuestion("x", batches=2))
    assert (len(few), len(tried), len(drawn)) == (2, 3, 3)
    assert few[0] == "one"
    assert tried[2].startswith("The 1,200 plans tried")
    assert drawn[2].startswith("Sampled batches differ")


FAMILY = np.array([FAMILIES.index(name) for name in ("gemm", "communication", "host", "memory")])


def test_gains_are_what_a_tenth_less_of_each_part_saves(monkeypatch):
    fixed = np.array([[100], [200], [400], [800]])
    priced = SimpleNamespace(
        durations=SimpleNamespace(values_ns=fixed), float_ns=fixed[:, 0] * 1.0, family=FAMILY
    )
    changing = np.zeros((1, 8, 1), dtype=np.int64)
    for place, column in enumerate((LOOKUP, UPDATE, POOLED, GRADIENTS, INDICES)):
        changing[0, column] = 1000 * 2**place
    of: Any = SimpleNamespace(
        price_variants=lambda plan: priced,
        price=lambda plans: SimpleNamespace(kinds=None, durations_ns=changing),
    )

    def evaluate(frame: Any, kinds: Any, durations_ns: Any, *, vector: int) -> Any:
        total = np.array([frame[:, vector].sum() + durations_ns.sum()])
        return SimpleNamespace(period_ns=total, isolated_ns=2 * total)

    monkeypatch.setattr(rank_plans, "has_steps", lambda plan: False)
    monkeypatch.setattr(rank_plans, "build_frame", lambda priced, vectors: vectors)
    monkeypatch.setattr(rank_plans, "evaluate_variants", evaluate)
    nothing: Any = None
    expected = {
        PlanBound.LOOKUP: 300.0, PlanBound.ALL_TO_ALL: 2800.0, PlanBound.MLP: 90.0,
        PlanBound.REDUCTION: 20.0, PlanBound.HOST: 40.0,
    }  # fmt: skip
    assert find_gains(of, nothing, Mode.PERIOD) == expected
    twice = {bound: 2 * gain for bound, gain in expected.items()}
    assert find_gains(of, nothing, Mode.ISOLATED) == twice


def test_gains_of_a_whole_job_tell_exchanges_from_reductions(monkeypatch):
    # Rows: product, exchange of vectors, reduction, host, lookup.
    names = ("gemm", "communication", "communication", "host", "embedding")
    operators = ("mlp/up", "embedding/pooled", "mlp/reduce", "mlp/up", "embedding/lookup")
    job = SimpleNamespace(
        rank_count=1,
        origins=[SimpleNamespace(operator=one) for one in operators],
        program_of=lambda rank: SimpleNamespace(origin=range(5)),
    )
    priced: Any = SimpleNamespace(
        job=job,
        float_ns=np.array([1000.0, 2000.0, 4000.0, 8000.0, 16000.0]),
        family=np.array([FAMILIES.index(name) for name in names]),
        rows_of_rank=lambda rank: slice(0, 5),
        durations=SimpleNamespace(rank_offset=np.zeros(1, dtype=np.int64)),
    )

    def period(replayer: Any, job: Any, table: Any) -> Any:
        return SimpleNamespace(period_ns=table.values_ns.sum(axis=0))

    def replay(job: Any, table: Any, *, iterations: int) -> Any:
        ends = [3 * table.values_ns.sum(axis=0), table.values_ns.sum(axis=0)][:iterations]
        return SimpleNamespace(iteration_end_ns=np.array(ends))

    monkeypatch.setattr(rank_plans, "find_period", period)
    monkeypatch.setattr(rank_plans, "replay", replay)
    expected = {
        PlanBound.LOOKUP: 1600.0, PlanBound.ALL_TO_ALL: 200.0, PlanBound.MLP: 100.0,
        PlanBound.REDUCTION: 400.0, PlanBound.HOST: 800.0,
    }  # fmt: skip
    assert _whole_gains(priced, Mode.PERIOD) == expected
    assert _whole_gains(priced, Mode.ISOLATED) == {one: 3 * ns for one, ns in expected.items()}
