"""What a ranking says of plans, worked out by hand from what is stated."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddings.plan import Shard, ShardingPlan
from perfmodel.planning.plan_work import (
    PlanLoads,
    PlanWork,
    RankWork,
    find_awaited,
    find_loads,
    find_straggler,
)
from perfmodel.planning.rank_plans import PAIR_SIGMA, answer_plan, order_by_time
from perfmodel.planning.ranking import RankedPlan
from perfmodel.prediction.answer import PathShare, RankWait
from perfmodel.prediction.question import PredictOptions, Setting
from perfmodel.workloads.dlrm.run import DlrmRun
from tests.planning.settings import STACK, build_spec
from topologies import build_cluster, load_topology


def ranked(
    time_ns: int, *drawn_ns: float, fits: bool = True, peak: int = 5, **more: Any
) -> RankedPlan:
    nothing: Any = None
    answer: Any = SimpleNamespace(iteration_ns=time_ns, drawn_ns=drawn_ns)
    none = RankWork(0, 0.0, ())
    work = PlanWork("plan", time_ns, {}, none, none, 0)
    more.setdefault("work", work)
    return RankedPlan(
        plan=nothing, answer=answer, place=0, beats_next=None,
        path=(PathShare("lookups", 1, 1),), straggler=nothing,
        loads=PlanLoads((1.0,), (1,), (peak,)), fits=fits, **more,
    )  # fmt: skip


def test_places_are_counted_on_and_the_first_of_each_is_held_against_the_next():
    given = [
        ranked(30, 3.0, 3.0, fits=False),
        ranked(200, 2.0, 2.0),
        ranked(101, 9.0, 9.0, peak=9),
        ranked(100, 1.0, 2.0),
        ranked(20, 4.0, 1.0, fits=False),
    ]
    found = order_by_time(given)
    assert [one.answer.iteration_ns for one in found] == [100, 101, 200, 20, 30]
    assert [one.loads.peak_bytes for one in found[:2]] == [5, 9]
    assert [one.place for one in found] == [1, 1, 3, 4, 5]
    # Of equal times less memory stands first, then more even lookups.
    large, uneven, even = (
        replace(ranked(7), loads=PlanLoads(lookups, (0, 0), memory))
        for lookups, memory in (((4.0, 4.0), (9, 1)), ((6.0, 2.0), (8, 8)), ((4.0, 4.0), (8, 8)))
    )
    ordered = order_by_time([large, uneven, even])
    assert [plan.loads for plan in ordered] == [even.loads, uneven.loads, large.loads]
    assert [(plan.place, plan.beats_next) for plan in ordered] == [(1, None)] * 3
    # 1 against 2 is far faster and 2 against 2 a tie; of those that do not fit 4 is not below 3.
    assert [one.beats_next for one in found[1:3] + found[4:]] == [None] * 3
    assert [found[place].beats_next for place in (0, 3)] == pytest.approx([0.75, 0.5])


def test_a_lead_counts_for_more_between_plans_that_are_alike():
    def spends(time_ns: int, *parts_ns: float) -> RankedPlan:
        none = RankWork(0, 0.0, ())
        parts = dict(zip(("compute", "communication"), parts_ns, strict=True))
        work = PlanWork("plan", time_ns, parts, none, none, 0)
        return ranked(time_ns, float(time_ns), work=work)

    # A lead of 2 %, where 2 % of the iteration differ and where 68 % do, then one of 19 %.
    alike = order_by_time([spends(1000, 500, 500), spends(1020, 520, 500)])
    unlike = order_by_time([spends(1000, 500, 500), spends(1020, 850, 170), spends(1213, 843, 370)])
    # By hand: a spread of 1 % for repeats beside the pair's, which is 2 and 68 % of PAIR_SIGMA.
    assert PAIR_SIGMA == 0.134
    leads = [alike[0].beats_next, unlike[0].beats_next, unlike[1].beats_next]
    assert leads == pytest.approx([0.972, 0.585, 1.0], abs=0.01)


@pytest.mark.parametrize("is_copied", [False, True])
def test_loads_are_what_ranks_look_up_send_and_hold(is_copied):
    spec = build_spec(2 + is_copied, batch=64)
    *held, last = spec.embedding.tables() if is_copied else (*spec.embedding.tables(), None)
    shards = tuple(Shard(p, p, 0, table.rows, 0, table.width) for p, table in enumerate(held))
    plan = ShardingPlan(spec.embedding.tables(), 2, shards, (2,) if is_copied else ())
    loads = find_loads(DlrmRun(spec, 2, STACK), plan, (10, 20))
    # Half of the batch looks a table up that every rank has.
    further = 32 * last.pooling_factor if last else 0
    assert loads.lookups == pytest.approx([64 * table.pooling_factor + further for table in held])
    # Each rank sends the 32 samples of the other one a vector.
    size = spec.embedding.exchange_dtype.size_bytes
    assert loads.sent_bytes == tuple(32 * table.width * size for table in held)
    assert loads.peak_bytes == 20


def test_the_straggler_is_whom_the_others_wait_for_most():
    # Two ranks wait 9 for rank 1, and one 30 for rank 2, of which rank 1 has most with 3 more.
    waits = (
        RankWait((0, 2), 1, "a", 9), RankWait((0,), 2, "a", 20), RankWait((0,), 1, "b", 3),
    )  # fmt: skip
    explanation: Any = SimpleNamespace(waits=waits)
    awaited = find_awaited(explanation, 3)
    assert awaited == pytest.approx((0.0, 7.0, 20 / 3))
    tables = tuple(SimpleNamespace(name=f"t{number}") for number in range(4))
    shards = tuple(SimpleNamespace(table=number) for number in range(4))
    plan: Any = SimpleNamespace(tables=tables, shards_of_rank=[(), shards, ()])
    costs = SimpleNamespace(total_ns=np.array([5.0, 7.0, 1.0, 6.0]))
    of: Any = SimpleNamespace(pieces_alone=lambda tables, shards: costs)
    found = find_straggler(of, plan, awaited)
    assert (found.rank, found.tables) == (1, ("t1", "t3", "t0"))
    assert found.waited_ns == pytest.approx(7.0)
    assert find_straggler(of, plan, (0.0, 0.0, 1.0)).tables == ()


def test_a_plan_is_explained_by_the_replay_that_it_is_ranked_by():
    spec = build_spec(6, batch=65536)
    cluster = build_cluster(load_topology("quad_a100"))
    tables = spec.embedding.tables()
    shards = tuple(Shard(p, min(p, 3), 0, t.rows, 0, t.width) for p, t in enumerate(tables))
    plan = ShardingPlan(tables, 4, shards)
    setting = Setting(spec, cluster, STACK, PredictOptions(samples=0))
    found = answer_plan(setting, plan)
    assert found.prediction.reasons is None
    assert len(found.memory_bytes) == len(found.awaited_ns) == 4
    # Three tables are on the last rank, and all others wait for it.
    assert max(found.awaited_ns) == found.awaited_ns[3] > 0
    # The path fills the iteration.
    spent_ns = sum(share.duration_ns for share in found.path)
    assert spent_ns == found.prediction.iteration_ns
