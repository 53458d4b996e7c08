"""Layouts are plans, in both directions and to the nanosecond."""

from __future__ import annotations

import random

import numpy as np

from embeddings.plan import Shard
from embeddings.sharders import SHARDERS, build_named_plan
from perfmodel.planning.search import Neighbourhood, PlanSearch
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.plans.layout import COPIED, WHOLE, Cut, LayoutBook, split_table
from perfmodel.prediction.scenario import Mode
from tests.planning.settings import STACK, plan_setting


def _setting(tables: int = 8):
    evaluator, task = plan_setting(tables)
    return evaluator, task, LayoutBook(task, evaluator.catalog)


def test_named_plans_go_to_layouts_and_back():
    _, task, book = _setting()
    for name in SHARDERS:
        plan = build_named_plan(name, task)
        assert book.to_plan(book.from_plan(plan), name) == plan


def test_a_plan_with_uneven_pieces_is_no_layout_but_the_search_still_judges_it():
    evaluator, task, book = _setting(2)
    table = task.tables[0]
    shards = [
        Shard(0, 0, 0, 1, 0, table.width),
        Shard(0, 1, 1, table.rows - 1, 0, table.width),
        split_table(1, task.tables[1], WHOLE)[0],
    ]
    plan = task.plan(shards, "uneven")
    assert book.from_plan(plan) is None
    search = PlanSearch(evaluator, task, mode=Mode.PERIOD, seed=0)
    outcome = search.run([plan], 64)
    uneven_ns = int(evaluator.measure([plan]).time_ns(Mode.PERIOD)[0])
    assert outcome.time_ns <= uneven_ns


def test_a_walk_of_steps_keeps_every_number_placed_once_and_the_time_of_its_plan():
    evaluator, task, book = _setting()
    chance = random.Random(2)
    layout = book.from_plan(build_named_plan("naive", task))
    cuts = set()
    for _ in range(60):
        busy = np.abs(np.array([[chance.random() for _ in range(4)] for _ in range(4)]))
        steps = Neighbourhood(book, chance, busy)
        layout = chance.choice([*steps.propose(layout, 4), *steps.copy_steps(layout)])
        cuts |= set(layout.cuts)
    # Building a plan checks that it is one.
    plan = book.to_plan(layout, "walked")
    layouts = evaluator.measure_columns([layout], lambda _: book.to_plan(layout, "layout"))
    plans = PlanEvaluator(evaluator.spec, evaluator.cluster, STACK).measure([plan])
    assert layouts.times.period_ns[0] == plans.times.period_ns[0]
    assert layouts.peak_bytes[0] == plans.peak_bytes[0]
    # The walk saw tables by rows, by columns and on every rank.
    assert any(cut.rows > 1 for cut in cuts)
    assert any(cut.columns > 1 for cut in cuts)
    assert COPIED in cuts


def test_partial_sums_are_as_wide_as_the_pieces_by_rows():
    _, task, book = _setting(2)
    width = task.tables[0].width
    layout = book.build([Cut(2, 2), WHOLE], [0, 1, 2, 3, 0])
    # Two halves of the width, each twice.
    assert layout.partial_width == 2 * width
    assert layout.ranks_of(0) == [0, 1, 2, 3]
    whole = book.recut(layout, 0, WHOLE, [1])
    assert (whole.partial_width, whole.rank.tolist()) == (0, [1, 0])
