"""Steps, starts, assignments, candidates and draws of small questions, as recorded.

Costs are made up, so that only the rules of planning take part.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddings.distribution import Zipf
from embeddings.sharders import ShardingTask, build_named_plan
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError, ScenarioError
from perfmodel.planning.batches import BatchSpread, draw_table
from perfmodel.planning.layouts.ranking import pareto
from perfmodel.planning.making import iter_assignments
from perfmodel.planning.plan_work import PlanLoads
from perfmodel.planning.question import LayoutQuestion
from perfmodel.planning.ranking import beats_next, number_ties
from perfmodel.planning.search import Neighbourhood, PlanSearch, SearchLimit
from perfmodel.planning.starts import Pieces, SearchStarts, assign_greedily
from perfmodel.prediction.layouts.candidates import iter_candidates
from perfmodel.prediction.plans.layout import LayoutBook
from perfmodel.prediction.plans.plan_costs import AloneCosts
from perfmodel.prediction.scenario import Mode
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload
from tests import recorded
from topologies import build_cluster, load_topology

TABLES = tuple(
    EmbeddingTable(
        f"t{number}",
        rows=(3, 40, 5_000, 90_000)[number % 4],
        width=(16, 64, 128, 256)[number * 3 % 4],
        pooling_factor=1.0 + number,
        pooling_deviation=(0.0, 2.0)[number % 2],
        distribution=Zipf(0.2 * number),
    )
    for number in range(7)
)
SMALL = (
    "batch=24", "sequence_length=1024", "model.max_positions=16384", "model.layers=6",
    "model.heads=12", "model.hidden=768", "model.ffn=3072",
)  # fmt: skip
QUESTIONS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "open": (1, (), ()),
    "two hosts": (2, ("batch=20",), ("training.recompute", "parallel.sharding")),
    "long": (1, ("sequence_length=16384",), ("training.recompute",)),
    "experts": (1, ("model.experts=6", "model.top_k=2", "model.moe_ffn=512"), ("parallel.tp",)),
    "fixed": (
        1,
        ("parallel.tp=2", "parallel.pp=2", "parallel.micro_batch=3", "parallel.interleaving=3"),
        ("parallel.tp", "parallel.pp", "parallel.micro_batch", "parallel.interleaving"),
    ),
}


def _copied_ns(tables: Any) -> Any:
    return np.array([0.004 * table.size_bytes for table in tables])


class Costs:
    """Costs of pieces by their size alone, in place of an evaluator's."""

    pricer = SimpleNamespace(width_ns=3.0, copied_ns=_copied_ns)

    def pieces_alone(self, tables: Any, shards: Any) -> AloneCosts:
        asked = np.array([tables[one.table].pooling_factor for one in shards])
        sizes = np.array([float(one.rows * one.width) for one in shards])
        width = np.array([float(one.width) for one in shards])
        return AloneCosts(asked * width, 0.5 * width, np.sqrt(sizes))

    def pieces_bytes(self, tables: Any, shards: Any) -> Any:
        return np.array([4 * one.rows * one.width for one in shards], dtype=np.int64)


class Evaluator(Costs):
    """Measures layouts by the sums of their pieces, and notes what it is asked for."""

    def __init__(self, task: ShardingTask, memory_bytes: int) -> None:
        self.cluster = SimpleNamespace(device=SimpleNamespace(memory_bytes=memory_bytes))
        self.catalog, self.asked = _Numbers(), list[Any]()
        self._task, self._frames = task, set[Any]()

    def knows(self, layout: Any) -> bool:
        return layout.copied in self._frames

    def price(self, layouts: Any) -> Any:
        return SimpleNamespace(own_ns=np.stack([self._own_ns(one) for one in layouts]))

    def _own_ns(self, layout: Any) -> Any:
        shards = [self.catalog.shards[number] for number in layout.piece]
        return self._sums(shards, layout.rank) + 70.0 * len(layout.copied)

    def _sums(self, shards: Any, ranks: Any) -> Any:
        alone = self.pieces_alone(self._task.tables, shards)
        sums = [
            np.bincount(ranks, part, self._task.rank_count)
            for part in (alone.lookup_ns, alone.update_ns)
        ]
        # Ranks differ, so that the first layouts are not the best.
        return np.stack(sums) * [[1.0, 1.1, 1.3, 0.7], [1.0, 0.7, 1.2, 1.1]]

    def measure_columns(self, layouts: Any, plan_of: Any) -> Any:
        self._frames.update(one.copied for one in layouts)
        shards = [plan_of(place).shards for place in range(len(layouts))]
        return self._measures(self.price(layouts).own_ns, shards)

    def measure(self, plans: Any) -> Any:
        shards = [plan.shards for plan in plans]
        own_ns = [
            self._sums(plan.shards, [shard.rank for shard in plan.shards])
            + 70.0 * (len(self._task.tables) - len({shard.table for shard in plan.shards}))
            for plan in plans
        ]
        return self._measures(np.stack(own_ns), shards)

    def _measures(self, own_ns: Any, shards: Any) -> Any:
        peaks = [
            np.bincount([shard.rank for shard in some], self.pieces_bytes((), some)).max()
            for some in shards
        ]
        # Much of an iteration is the same for all plans, so that steps differ by thousandths.
        total_ns = 60_000 + own_ns.max(axis=2).sum(axis=1).round()
        self.asked.append([len(shards), total_ns.min(), total_ns.argmin()])
        return SimpleNamespace(
            peak_bytes=np.array(peaks),
            busiest_ns=own_ns.max(axis=(1, 2)),
            time_ns=lambda mode: total_ns + (mode is Mode.PERIOD),
        )


def searches() -> dict[str, Any]:
    """Whole searches: what they asked for, round by round, and what they found."""
    found: dict[str, Any] = {}
    task = ShardingTask(TABLES, 4, 10**9, 512, "sgd", 2)
    wholes = [build_named_plan(name, task) for name in ("row_wise", "naive")]
    for name, (limit, seed, starts, memory_bytes) in {
        "long": (SearchLimit(1e6, plans=1500), 0, wholes, 2**40),
        "of another seed": (SearchLimit(1e6, plans=450), 1, wholes[::-1], 2**40),
        "without starts": (SearchLimit(1e6, plans=450), 0, [], 2**40),
        "in little memory": (SearchLimit(1e6, plans=450), 2, wholes, 12_160_000),
        "without time": (SearchLimit(0.0, plans=450), 0, wholes, 2**40),
        "late": (SearchLimit(1e-9), 0, wholes, 2**40),
    }.items():
        evaluator: Any = Evaluator(task, memory_bytes)
        best = PlanSearch(evaluator, task, mode=Mode.PERIOD, seed=seed).run(starts, limit)
        shards = [[one.table, one.rank, one.rows, one.width] for one in best.plan.shards]
        found[f"search {name}"] = [best.time_ns, best.plans_judged, shards, evaluator.asked]
    return found


def values() -> dict[str, Any]:
    """All that is recorded."""
    found: dict[str, Any] = {}
    for ranks, room_bytes in ((2, 10**9), (4, 40_000_000), (6, 10**8)):
        task = ShardingTask(TABLES, ranks, room_bytes, 512, "sgd", 2)
        catalog = _Numbers()
        book = LayoutBook(task, catalog)
        found[f"steps of {ranks}"] = _steps(book, task)
        starts = SearchStarts(Costs(), book)
        found[f"starts of {ranks}"] = [_plain(one) for one in starts.build(0.0)]
        found[f"worth copying on {ranks}"] = starts.worth_copying()
        found[f"cuts of {ranks}"] = [starts._cuts(share) for share in (0.3, 1.0, np.inf)]
    for ranks in (1, 2, 3):
        few = ShardingTask(TABLES[:4], ranks, 10**9, 512)
        found[f"assignments to {ranks}"] = list(iter_assignments(few))
    pieces = _pieces(room_bytes=30.0)
    found["greedily"] = [assign_greedily(pieces, rank_count=count) for count in (2, 3, 5)]
    found["crowded"] = assign_greedily(_pieces(room_bytes=9.0), rank_count=3)
    for name, (hosts, changes, stated) in QUESTIONS.items():
        found[f"candidates, {name}"] = _candidates(hosts, changes, stated)
    drawn = [draw_table(table, 100, 4, [7, place]) for place, table in enumerate(TABLES)]
    found["draws"] = [dict(zip(("lookups", "distinct"), one, strict=True)) for one in drawn]
    found["ties"] = number_ties([100.0, 101.0, 101.5, 102.0, 102.6, 200.0])
    found["beats"] = beats_next([np.array([1.0, 2.0, 3.0, 9.0]), np.array([2.0, 2.0, 4.0, 1.0])])
    loads = PlanLoads((4.0, 1.0, 1.0), (5, 6, 7), (8, 90, 3))
    found["loads"] = [loads.peak_bytes, loads.unevenness]
    found["scaled"] = BatchSpread(4.0, 1.5, 3.0, 9.0, 5).scaled(2.0)
    return found | searches()


class _Numbers:
    """Pieces numbered as they come."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    @property
    def shards(self) -> list[Any]:
        return list(self._known)

    def reduces(self, table: Any, row_pieces: int) -> bool:
        del table, row_pieces
        return False

    def pieces(self, tables: Any, shards: Any, reduced: Any) -> Any:
        del tables, reduced
        numbers = [self._known.setdefault(shard, len(self._known)) for shard in shards]
        return np.array(numbers, dtype=np.int32)


def _steps(book: LayoutBook, task: ShardingTask) -> list[Any]:
    """A walk that visits many cuts, each step from ranks that are busy in turn."""
    chance = random.Random(5)
    layout = book.from_plan(build_named_plan("naive", task))
    assert layout is not None
    seen = []
    for number in range(40):
        own_ns = np.array(
            [
                [(7 * rank + number * part) % 11 for rank in range(task.rank_count)]
                for part in (1, 3)
            ]
        )
        near = Neighbourhood(book, chance, own_ns.astype(np.float64))
        options = near.propose(layout, 3)
        copies = near.copy_steps(layout)
        layout = ([*copies, *options] if number % 3 else [*options, *copies] or [layout])[0]
        seen.append([len(options), len(copies), _plain(layout)])
    return seen


def _plain(layout: Any) -> list[Any]:
    return [
        [(cut.columns, cut.rows) for cut in layout.cuts],
        layout.start, layout.piece, layout.rank, layout.partial_width, layout.copied,
    ]  # fmt: skip


def _pieces(room_bytes: float) -> Pieces:
    numbers = np.arange(1.0, 9.0)
    costs = AloneCosts(numbers * 3 % 7, numbers * 5 % 8, np.where(numbers > 6, 4.0, 0.0))
    return Pieces(costs, numbers * 2 % 5, numbers % 4 + 2, 1.5, room_bytes)


def _candidates(hosts: int, changes: tuple[str, ...], stated: tuple[str, ...]) -> list[Any]:
    spec = load_workload("gpt2_xl", (*SMALL, *changes))
    cluster = build_cluster(load_topology("quad_a100" if hosts == 1 else "dgx_a100"), hosts=hosts)
    stack = load_stack("pytorch_fused")
    everything = list(iter_candidates(spec, cluster, stack, stated=stated))
    shown = [" ".join(map(str, one.overrides.values())) for one in everything]
    step = max(1, len(shown) // 40)
    return [len(shown), shown[::step], [one.promise for one in everything[::step]]]


def test_small_questions_of_planning_give_what_was_recorded(found):
    recorded.check(__file__, found)


def test_one_of_them_by_hand(found):
    # Four tables on two ranks whose names do not matter: half of 2 ** 4.
    assert len(found["assignments to 2"]) == 8
    # 101.5 is more than one per cent above 100.
    assert found["ties"] == [1, 1, 3, 3, 5, 6]


def test_a_search_is_refused_where_no_plan_fits():
    task = ShardingTask(TABLES, 4, 10**9, 512, "sgd", 2)
    evaluator: Any = Evaluator(task, memory_bytes=1)
    with pytest.raises(PlanError, match="memory of 4 ranks"):
        PlanSearch(evaluator, task, mode=Mode.PERIOD, seed=0).run((), SearchLimit(0.0))


def test_the_front_holds_a_number_of_hosts_only_if_it_is_faster_than_all_smaller_ones():
    def ranking(ranks: int, time_ns: int) -> Any:
        return SimpleNamespace(rank_count=ranks, best=SimpleNamespace(time_ns=time_ns))

    given = [ranking(8, 90), ranking(8, 80), ranking(16, 80), ranking(32, 79), ranking(4, 95)]
    assert [(one.rank_count, one.best.time_ns) for one in pareto(given)] == [
        (4, 95), (8, 80), (32, 79),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{"hosts": ()}, {"hosts": (1, 0)}, {"top": 0}, {"seconds": 0.0}]
)
def test_a_search_needs_hosts_layouts_and_time(changes):
    with pytest.raises(ScenarioError, match=r"search: (hosts|top|seconds) must be"):
        LayoutQuestion("dgx_a100", "gpt2_xl", **changes)
    assert LayoutQuestion("dgx_a100", "gpt2_xl", hosts=(1,), top=1, seconds=0.1)
