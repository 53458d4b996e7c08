"""Rules that lengthen and delay tasks are applied until nothing moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from perfmodel.engine.replay import replay
from perfmodel.engine.settle import Effects, Round, Rules, settle
from tests.builders import job_of

ALONE_NS = (100.0, 40.4, 10.0)
"""Tasks a and b on one lane, c on another."""


def sketched(ranks: int = 1):
    return job_of(f"{ranks} x gpu a 100; gpu b 40; side c 10")[0], np.array(ALONE_NS * ranks)


@dataclass
class Scripted:
    """A rule that finds the next of some losses of task b in each round, then the last again."""

    losses_ns: list[float]
    seen: list[tuple[float, int]]

    def __call__(self, last: Round, found: Effects) -> None:
        self.seen.append((float(last.lost_ns[:, 1].sum()), int(last.end_ns[1] - last.start_ns[1])))
        found.lost_ns[0, 1] += self.losses_ns[min(len(self.seen), len(self.losses_ns)) - 1]


@dataclass
class Delays:
    """A rule that delays c of some ranks until long after the start of b."""

    ranks: tuple[int, ...]

    def __call__(self, last: Round, found: Effects) -> None:
        found.delays.update({rank: np.array([[2, 1, 5]], dtype=np.int64) for rank in self.ranks})


def run(*losses_ns: float, rounds: int = 6, **limits):
    rule = Scripted(list(losses_ns), [])
    settled = settle(replay, *sketched(), Rules([rule], rounds=rounds, iterations=1, **limits))
    return settled, rule.seen


def test_without_rules_the_first_round_is_the_last():
    job, alone_ns = sketched()
    settled = settle(replay, job, alone_ns, Rules([], rounds=9, iterations=1))
    assert (settled.count, settled.unsettled) == (1, 0)
    assert settled.job is job
    assert settled.end_ns.tolist() == [100, 140, 10]
    assert settled.start_ns.tolist() == [0, 100, 0]


def test_losses_are_added_before_the_clock_rounds():
    settled, seen = run(20.2)
    # 40.4 + 20.2 = 60.6.
    assert settled.durations.values_ns[:, 0].tolist() == [100, 61, 10]
    assert settled.lost_ns[0].tolist() == [0, 20.2, 0]
    assert seen == [(0.0, 40), (20.2, 61)]
    assert (settled.count, settled.unsettled) == (2, 0)


def test_a_difference_too_small_to_notice_ends_the_rounds():
    settled, _ = run(20.0, 24.0, 30.0, noticed_ns=5)
    assert settled.lost_ns[0, 1] == 20.0
    assert settled.count == 2


@pytest.mark.parametrize("rounds", [3, 4])
def test_rules_that_never_rest_are_stopped_after_a_replay_of_what_they_found(rounds):
    settled, seen = run(10.0, 20.0, 10.0, 20.0, rounds=rounds)
    assert len(seen) == rounds - 1
    assert (settled.count, settled.unsettled) == (rounds, 1)
    assert settled.end_ns[1] == 140 + settled.lost_ns[0, 1].round()


def test_with_a_ratio_a_round_that_moves_little_is_the_last():
    # 140, 150 and 151: the last moved it by 1/151.
    settled, seen = run(10.0, 11.0, 99.0, still_ratio=0.01)
    assert settled.moved_ratio == 1 / 151
    assert settled.lost_ns[0, 1] == 11.0
    assert len(seen) == 2


def test_moves_that_do_not_shrink_are_halved():
    # From 140 to 340 is 0.59 of it and more than half of 1, so that half of 200 -> 0 is applied.
    # To 240 is 0.42, more than half of 0.59: half of 100 -> 200. To 290 is 0.17: all of 150 -> 200.
    settled, seen = run(200.0, 0.0, 200.0, 200.0, rounds=4, still_ratio=1e-9)
    assert [lost_ns for lost_ns, _ in seen] == [0.0, 200.0, 100.0, 150.0]
    # What the last round found counts, though it was not replayed.
    assert settled.lost_ns[0, 1] == 200.0
    assert settled.durations.values_ns[1, 0] == 240
    assert settled.end_ns[1] == 290


def test_a_delay_is_a_wait_for_the_start_of_another_task_on_its_rank_alone():
    job, alone_ns = sketched(ranks=2)
    settled = settle(replay, job, alone_ns, Rules([Delays((1,))], rounds=5, iterations=1))
    assert settled.start_ns.tolist() == [0, 100, 0, 0, 100, 105]
    assert (settled.count, settled.unsettled) == (2, 0)
    programs = [settled.job.program_of(rank) for rank in range(2)]
    assert [len(program.dep_task) for program in programs] == [0, 1]


def test_rules_apply_together():
    job, alone_ns = sketched()
    lengthen = Scripted([20.0], [])
    settled = settle(replay, job, alone_ns, Rules([lengthen, Delays((0,))], 5, 1))
    assert settled.start_ns.tolist() == [0, 100, 105]
    assert settled.end_ns.tolist() == [100, 160, 115]


def test_changes_of_losses_and_delays_are_counted():
    row = np.array([[2, 1, 5]], dtype=np.int64)
    one = Effects(np.array([[0.0, 1.0], [0.0, 1.0]]), {0: row})
    other = Effects(np.array([[0.0, 3.0], [0.0, 0.0]]), {1: row})
    # The second task moved by 1; the delay of rank 0 went and that of rank 1 came.
    assert one.count_changes(other, noticed_ns=0) == 3
    assert one.count_changes(other, noticed_ns=1) == 2
    assert one.count_changes(one, noticed_ns=0) == 0
