"""Sampled batches: what is drawn has the right mean and spread, and costs what it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embeddings.distribution import UNIFORM, Zipf
from embeddings.popularity import build_popularity
from embeddings.sharders import build_named_plan
from embeddings.sharding_task import cut_table
from experiments.sharding_plans.batches import (
    DISTINCT,
    draw_pieces,
    find_growth,
    sample_batches,
    scale_terms,
)
from perfmodel.costs.embedding_terms import Term
from perfmodel.prediction.plans.default_plan import build_task
from perfmodel.prediction.scenario import Mode
from tests.planning.settings import plan_setting


def _setting(count: int = 4, **changes):
    evaluator, task = plan_setting(count)
    tables = tuple(replace(table, **changes) for table in task.tables)
    return evaluator, build_task(evaluator.spec, tables, evaluator.cluster)


def _by_rows(task, pieces: int):
    """Every table by rows over the first ranks."""
    shards = [
        shard.on_rank(number % pieces)
        for place, table in enumerate(task.tables)
        for number, shard in enumerate(cut_table(place, table, columns=1, rows=pieces))
    ]
    return task.plan(shards, "by rows")


def _draw(evaluator, plan, *, batches: int, seed: int):
    columns = evaluator.catalog.columns_of(plan)
    return draw_pieces(evaluator, plan, columns, batches=batches, seed=seed)


def test_draws_have_the_expected_mean_and_the_deviation_of_a_batch():
    evaluator, task = _setting(pooling_factor=50.0, pooling_deviation=640.0)
    plan = build_named_plan("naive", task)
    drawn = _draw(evaluator, plan, batches=4000, seed=1)
    draws = drawn.terms[:, 0, :, Term.DRAWS] / (16384 * 50.0)
    assert draws.mean(axis=0) == pytest.approx(1, abs=0.01)
    # 640 / 50 / sqrt(16384) = 12.8 / 128 = 0.1.
    assert draws.std(axis=0) == pytest.approx(0.1, rel=0.1)


def test_different_rows_grow_slower_than_lookups_where_rows_repeat():
    evaluator, task = _setting(pooling_factor=50.0, pooling_deviation=640.0, rows=1000)
    plan = build_named_plan("naive", task)
    terms = _draw(evaluator, plan, batches=500, seed=1).terms[:, 0, 0]
    spread = terms.std(axis=0) / np.maximum(terms.mean(axis=0), 1)
    # Nearly all of the 1,000 rows are hit in every batch.
    assert spread[Term.UPDATE_BYTES] < 0.1 * spread[Term.DRAWS]


def test_the_deviation_of_different_rows_is_that_of_counted_draws():
    popularity = build_popularity(np.full(3, 100.0), np.array([10.0, 3.0, 1.0]))
    generator = np.random.default_rng(0)
    chances = np.repeat(popularity.probabilities, 100)
    counted = [(generator.poisson(300 * chances) > 0).sum() for _ in range(4000)]
    found = popularity.distinct_deviation(300) * popularity.distinct_rows(300)
    assert found == pytest.approx(np.std(counted), rel=0.05)


def test_the_piece_with_the_hottest_row_is_asked_for_most():
    evaluator, task = _setting(1, distribution=Zipf(1.2), rows=100_000, pooling_factor=50.0)
    terms = _draw(evaluator, _by_rows(task, 4), batches=200, seed=0).terms[:, 0]
    draws = terms[:, :, Term.DRAWS]
    total = draws.sum(axis=1) / (16384 * 50.0)
    assert total == pytest.approx(np.ones(200), rel=0.02)
    # The hottest of Zipf(1.2) rows has a fifth of all lookups, about as much as a piece.
    assert (draws.max(axis=1) / draws.mean(axis=1)).mean() > 1.4
    assert len(set(draws.argmax(axis=1).tolist())) == 1


def test_uniform_pieces_by_rows_keep_to_their_share():
    evaluator, task = _setting(1, rows=100_000, pooling_factor=50.0, distribution=UNIFORM)
    drawn = _draw(evaluator, _by_rows(task, 4), batches=50, seed=0)
    draws = drawn.terms[:, 0, :, Term.DRAWS]
    assert draws.std() / draws.mean() < 0.01


def test_all_plans_see_the_same_batches():
    evaluator, task = _setting()
    whole = build_named_plan("naive", task)
    moved = build_named_plan("naive_chunk", task)
    first, second = (
        _draw(evaluator, plan, batches=5, seed=3).index_counts for plan in (whole, moved)
    )
    assert np.array_equal(first, second)


def test_a_batch_without_deviation_takes_the_nominal_time():
    evaluator, task = _setting(pooling_deviation=1e-9)
    plan = build_named_plan("naive", task)
    nominal = int(evaluator.measure([plan]).time_ns(Mode.ISOLATED)[0])
    spread = sample_batches(evaluator, plan, mode=Mode.ISOLATED, batches=20, seed=0)
    # Only the number of different rows still varies, by less than a per cent here.
    assert spread.middle_ns == pytest.approx(nominal, rel=0.005)


def test_terms_of_different_rows_follow_their_own_draw_too():
    evaluator, task = _setting(1, pooling_factor=5.0)
    plan = build_named_plan("naive", task)
    (growth,) = find_growth(evaluator, evaluator.catalog.columns_of(plan).piece)
    lookups = np.array([1.0, 1.2, 0.5, 0.0])
    even = scale_terms(growth, lookups, np.zeros(4))
    drawn = scale_terms(growth, lookups, np.array([0.25, -0.5, -1.0, -3.0]))
    distinct = list(DISTINCT)
    others = [term for term in Term if term not in distinct]
    assert (drawn[:, others] == even[:, others]).all()
    times = np.array([1.25, 0.5, 0.0, 0.0])[:, None]
    assert drawn[:, distinct] == pytest.approx(even[:, distinct] * times)
    # Nothing changes where as much is looked up as expected, and tails never do.
    assert (even[0] == 1).all()
    assert (even[:, Term.TAIL_ROWS] == 1).all()
    # Lookups themselves grow in proportion.
    assert even[1:3, Term.DRAWS] == pytest.approx([1.2, 0.5], rel=1e-3)


def test_batches_that_differ_more_spread_the_time_more():
    widths = []
    for deviation in (1.0, 60.0):
        evaluator, task = plan_setting(6, batch=65536)
        tables = tuple(replace(table, pooling_deviation=deviation) for table in task.tables)
        plan = build_named_plan("naive", replace(task, tables=tables))
        spread = sample_batches(evaluator, plan, mode=Mode.ISOLATED, batches=40, seed=0)
        assert spread.low_ns <= spread.middle_ns <= spread.high_ns
        widths.append(spread.high_ns - spread.low_ns)
    assert widths[1] > widths[0]
