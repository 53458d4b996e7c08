"""Saved jobs of which every block reads its own ranks."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import api
from perfmodel.base.errors import ExecutionError, GraphError
from perfmodel.base.writing import to_json
from perfmodel.costs.priced_job import stated_prices
from perfmodel.engine.history import History
from perfmodel.engine.reasons import Window, break_down, critical_path
from perfmodel.engine.replay import replay
from perfmodel.execution.parts import divide_job
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.stored_parts import check_members, store_job
from perfmodel.extensions.whatif.pinning import pin_durations
from perfmodel.graph.storage import load_job, open_job, save_job
from perfmodel.graph.stored_programs import PIECE_ROWS
from perfmodel.prediction import saved_jobs
from perfmodel.prediction.scenario import JobScenario
from perfmodel.prediction.time_parts import sum_waits
from perfmodel.reports.document import to_document
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job, meeting_job
from tests.execution.workers import replay_in_blocks
from tests.strategies import random_jobs


def pin(job, durations):
    return pin_durations(job, durations.vectors(0, 1))


@settings(max_examples=25)
@given(made=random_jobs(), block_count=st.integers(1, 4), source=st.randoms())
def test_blocks_that_read_their_ranks_give_the_same_bits_and_reasons(
    tmp_path_factory, made, block_count, source
):
    # By chance a block is lost, and reads its ranks again.
    folder = tmp_path_factory.mktemp("saved") / "job"
    save_job(pin(made.job, made.durations), folder)
    near, far = stated_prices(load_job(folder)), stated_prices(open_job(folder))
    wanted = replay(near.job, near.durations, iterations=made.iterations)

    found, _ = replay_in_blocks(
        far.job,
        far.durations,
        iterations=made.iterations,
        block_count=block_count,
        source=source,
        stored=store_job(far.job),
    )

    assert_same(found, wanted)
    here, there = (
        History(near.job, near.durations, wanted),
        History(far.job, far.durations, found),
    )
    window = Window(0, int(wanted.iteration_end_ns[-1, 0]))
    assert critical_path(there, from_ns=0) == critical_path(here, from_ns=0)
    for function in (break_down, sum_waits):
        assert there.by_rank(function, window) == here.by_rank(function, window)


def test_a_program_that_lies_in_several_pieces_of_a_column_is_read_whole(tmp_path):
    job, durations = alternating_job(ranks=2, members=PIECE_ROWS // 2 + 5)
    save_job(pin(job, durations), tmp_path / "job")

    whole, outline = load_job(tmp_path / "job"), open_job(tmp_path / "job")

    # Ranks take different time, so each has a program, of more rows than a piece.
    assert [program.task_count for program in outline.programs] == [PIECE_ROWS + 10] * 2
    for here, there in zip(whole.programs, outline.programs, strict=True):
        for name, column in here.columns().items():
            assert np.array_equal(column, getattr(there, name)), name


def stored_block(folder, *, ranks=range(1)):
    prices = stated_prices(open_job(folder))
    return lambda: RankBlock(
        store_job(prices.job), prices.durations, Assignment(ranks, 1, 1), host="10.0.0.7"
    )


def test_a_worker_that_sees_another_job_or_none_says_so(tmp_path):
    job, durations = alternating_job(ranks=2, members=3)
    save_job(pin(job, durations), tmp_path / "job")
    prices = stated_prices(open_job(tmp_path / "job"))
    words = (store_job(prices.job), prices.durations, Assignment(range(1), 1, 1), "10.0.0.7")
    other, of_other = alternating_job(ranks=2, members=4)
    save_job(pin(other, of_other), tmp_path / "job")

    with pytest.raises(ExecutionError, match=r"worker on 10\.0\.0\.7 cannot read .*another job"):
        RankBlock(*words)
    shutil.rmtree(tmp_path / "job")
    with pytest.raises(ExecutionError, match="where all machines see it under this name"):
        RankBlock(*words)


def test_ranks_of_one_block_that_do_not_fit_together_are_refused(tmp_path):
    save_job(meeting_job([[0, 0], [0]], [[0, 1]]), tmp_path / "job")

    with pytest.raises(GraphError, match="ranks 0-1: not a valid job"):
        stored_block(tmp_path / "job", ranks=range(2))()


def test_blocks_that_do_not_fit_together_are_refused(tmp_path):
    save_job(meeting_job([[0, 0], [0]], [[0, 1]]), tmp_path / "job")
    job = open_job(tmp_path / "job")
    division = divide_job(job, block_count=2)
    said = [stored_block(tmp_path / "job", ranks=ranks)().members() for ranks in division.blocks]

    # The second rendezvous, counted from 0, has one member only.
    with pytest.raises(GraphError, match=r"group 'group 0'.*the first that differs is #1"):
        check_members(said, division, job)


def test_a_number_that_stands_for_nothing_is_refused_by_who_reads_it(tmp_path):
    job = meeting_job([[0], [0]], [[0, 1]])
    broken = replace(job.programs[1], label=np.array([7], dtype=np.int32))
    save_job(replace(job, programs=(job.programs[0], broken)), tmp_path / "job")

    with pytest.raises(GraphError, match="column label of program 1 must be 0 to 0"):
        stored_block(tmp_path / "job", ranks=range(1, 2))()


@pytest.mark.ray
def test_a_large_saved_job_is_answered_on_ray_without_being_read_here(tmp_path, monkeypatch):
    job, durations = alternating_job(ranks=5, members=12)
    save_job(pin(job, durations), tmp_path / "job")
    scenario = JobScenario(str(tmp_path / "job"))
    wanted = api.predict(scenario, executor="serial")
    monkeypatch.setattr(saved_jobs, "MOST_NEAR_TASKS", 100)

    found = api.predict(scenario, executor="ray", workers=2, keep_timelines=False)

    assert answer_of(found) == answer_of(wanted)
    assert found.evidence.job.programs.folder == tmp_path / "job"
    with pytest.raises(ExecutionError, match="were lost with the workers"):
        found.evidence.ends_ns(0)


def answer_of(prediction):
    """The JSON of *prediction* without how it was computed."""
    return to_json({**to_document(prediction), "run": None})
