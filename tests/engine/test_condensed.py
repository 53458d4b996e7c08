"""Condensed jobs take the nanoseconds of the jobs they were made from."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings

from perfmodel.engine.condensed import FIXED, RankKind, condense_job, evaluate_variants
from perfmodel.engine.condensing import ORIGIN, Moment, choose_kept, condense, lane_ends
from perfmodel.engine.replay import find_period, replay
from perfmodel.graph.builder import JobBuilder, ProgramBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Anchor, Dependency, LaneKind
from tests.builders import JobSketch
from tests.strategies import JobSize, jobs


def run(job, durations, iterations):
    return replay(job, durations, iterations=iterations)


def evaluate(job, durations):
    """One rank alone as a condensed job whose first task is left to the variant."""
    program, row = job.program_of(0), durations.of_rank(job, 0)[:, 0]
    changing = np.full(program.task_count, FIXED, dtype=np.int32)
    changing[0] = 0
    kind = RankKind(program, row, changing)
    own_ns = row[:1].reshape(1, 1, 1)
    kinds = np.zeros((1, 1), dtype=np.int8)
    return evaluate_variants(condense_job([kind, kind]), kinds, own_ns)


def test_a_rhythm_is_not_accepted_while_a_lane_is_slower():
    sketch = JobSketch()
    rank = sketch.rank(clock=LaneKind.HOST, gpu=LaneKind.COMPUTE, loader=LaneKind.LOADER)
    tick = rank.task("tick", "clock", 10)
    rank.task("kernel", "gpu", 10, after=[Dependency(tick, lag_ns=300)])
    rank.task("batch", "loader", 15)

    # As in a replay: 320 + 10 k until the loader overtakes it.
    found = evaluate(*sketch.build())
    assert found.isolated_ns.tolist() == [320]
    assert found.period_ns.tolist() == [15]


def stepping(*waits: tuple[int, int]):
    """A task of 1 ns that starts so long after its end so many iterations before."""
    sketch = JobSketch()
    rank = sketch.rank(gpu=LaneKind.COMPUTE)
    task = rank.task("step", "gpu", 1)
    for distance, lag_ns in waits:
        rank.builder.add_dependency(task, Dependency(task, lag_ns=lag_ns, distance=distance))
    return sketch.build()


@settings(max_examples=30)
@given(made=jobs(JobSize(vectors=1, ranks=1, channels=0)))
def test_a_rank_alone_takes_as_long_condensed_as_replayed(made):
    job, durations = made
    found = evaluate(job, durations)
    wanted = find_period(run, job, durations)
    assert found.isolated_ns.tolist() == wanted.replay.iteration_end_ns[0].tolist()
    assert found.period_ns.tolist() == wanted.period_ns.tolist()
    assert found.iterations.tolist() == [wanted.replay.iteration_count]


@dataclass
class KindSketch:
    """A kind of rank being drawn: its tasks, what they take, and which a variant decides."""

    builder: ProgramBuilder
    fixed_ns: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)

    def place(self, values, dtype):
        """*values* by task as the program has them, lane after lane."""
        placed = np.empty(np.shape(values), dtype=dtype)
        placed[self.builder.place_of_tasks()] = values
        return placed


class TwoKinds:
    """Ranks of two kinds that all meet in every rendezvous; what *seed* draws."""

    def __init__(self, seed: int) -> None:
        self.source = source = random.Random(seed)
        self.jobs = JobBuilder()
        self.kinds = [KindSketch(self.jobs.new_program()) for _ in range(2)]
        lanes = source.randint(1, 3)
        for kind in self.kinds:
            for lane in range(lanes):
                kind.builder.add_lane(f"lane {lane}", LaneKind.COMPUTE)
        self.column_count = 0
        self.members = 0
        steps = source.randint(2, 9)
        # Both kinds have a task at least, and somebody meets.
        for step, who in enumerate(["all", "meet", *(self._who() for _ in range(steps))]):
            self._add_step(f"step {step}", who, source.randrange(lanes))
        for kind in self.kinds:
            self._reach_back(kind)
        for kind in self.kinds:
            self.jobs.add_program(kind.builder.build())

    def _who(self) -> str:
        return self.source.choice(["meet", "all", "first", "second"])

    def _add_step(self, label: str, who: str, lane: int) -> None:
        column = FIXED
        if self.source.random() < 0.4:
            column, self.column_count = self.column_count, self.column_count + 1
        self.members += who == "meet"
        for kind, name in zip(self.kinds, ("first", "second"), strict=True):
            if who in ("meet", "all", name):
                after = self._dependencies(kind.builder.task_count)
                if who == "meet":
                    kind.builder.add_task(lane, Fixed("meet", 0), label=label, slot=0, after=after)
                else:
                    kind.builder.add_task(lane, Fixed("work", 0), label=label, after=after)
                kind.fixed_ns.append(self.source.choice([0, 3, 8, 20]))
                kind.column.append(column)

    def _dependencies(self, count: int) -> list[Dependency]:
        if not count:
            return []
        return [
            Dependency(
                self.source.randrange(count),
                anchor=self.source.choice(list(Anchor)),
                lag_ns=self.source.choice([0, 0, 5]),
                distance=self.source.choice([0, 0, 0, 1]),
            )
            for _ in range(self.source.choice([0, 1, 1, 2]))
        ]

    def _reach_back(self, kind: KindSketch) -> None:
        """Far enough, at times, for rhythms longer than are looked for."""
        for _ in range(self.source.randint(0, 2)):
            source, target = (self.source.randrange(kind.builder.task_count) for _ in range(2))
            dependency = Dependency(
                source,
                anchor=self.source.choice(list(Anchor)),
                lag_ns=self.source.choice([0, 7, 60]),
                distance=self.source.choice([1, 2, 3, 5, 7]),
            )
            kind.builder.add_dependency(target, dependency)

    def condensed(self):
        return condense_job([self._rank_kind(kind) for kind in self.kinds])

    def _rank_kind(self, kind: KindSketch) -> RankKind:
        return RankKind(
            kind.builder.build(),
            kind.place(kind.fixed_ns, np.int64),
            kind.place(kind.column, np.int32),
        )

    def variant(self, ranks: int):
        """The kinds of *ranks*, what tasks that a variant decides take, and the same as a job."""
        kinds = [0, 1, *(self.source.randrange(2) for _ in range(ranks - 2))]
        own_ns = np.array(
            [[self.source.choice([0, 4, 9, 25]) for _ in kinds] for _ in range(self.column_count)],
            dtype=np.int64,
        ).reshape(-1, ranks)
        builder = JobBuilder(self.jobs.tables)
        rows = []
        for kind in self.kinds:
            builder.add_program(kind.builder.build())
        for rank, number in enumerate(kinds):
            builder.add_rank(number)
            kind = self._rank_kind(self.kinds[number])
            row = kind.durations_ns.copy()
            decided = kind.changing != FIXED
            row[decided] = own_ns[kind.changing[decided], rank]
            rows.append(row[:, None])
        builder.add_group("all", range(ranks), slot=0)
        job = builder.build(JobFacts("two kinds"))
        return np.array(kinds, dtype=np.int8), own_ns, job, build_durations(job, rows)


@pytest.mark.parametrize("ten", range(8))
def test_ranks_of_two_kinds_take_as_long_condensed_as_replayed(ten):
    for seed in range(10 * ten, 10 * ten + 10):
        made = TwoKinds(seed)
        condensed = made.condensed()
        variants = [made.variant(4) for _ in range(3)]
        kinds, own_ns = (np.stack([one[place] for one in variants]) for place in range(2))
        found = evaluate_variants(condensed, kinds, own_ns)
        for number, (_, _, job, durations) in enumerate(variants):
            wanted = find_period(run, job, durations)
            assert [int(column[number]) for column in found] == [
                wanted.replay.iteration_end_ns[0, 0],
                wanted.period_ns[0],
                wanted.replay.iteration_count,
                wanted.cyclicity if wanted.is_settled else 0,
            ]


@pytest.mark.parametrize(
    ("waits", "iterations", "cyclicity", "period_ns"),
    [
        (((3, 100),), 12, 3, 34),
        (((4, 100),), 12, 4, 25),
        # Too long a rhythm: iteration k ends at 101 (k // 5) + k % 5 + 1, the last of 96 at 1,920
        # and the 48th at 912: 1,008 / 48.
        (((5, 100),), 96, 0, 21),
    ],
)
def test_rhythms_of_four_show_and_longer_ones_are_averaged(waits, iterations, cyclicity, period_ns):
    job, durations = stepping(*waits)
    found, wanted = evaluate(job, durations), find_period(run, job, durations)
    assert (found.isolated_ns[0], found.period_ns[0]) == (1, period_ns)
    assert (found.iterations[0], found.cyclicity[0]) == (iterations, cyclicity)
    assert wanted.period_ns.tolist() == [period_ns]
    assert (wanted.cyclicity, wanted.is_settled) == (cyclicity or 48, cyclicity > 0)


def chain(*, lag_ns: int):
    """Tasks a, b and c on a lane, and d on another after a, with 4 ns between them on the way."""
    sketch = JobSketch()
    rank = sketch.rank(gpu=LaneKind.COMPUTE, other=LaneKind.COMPUTE)
    rank.task("a", "gpu", 10)
    rank.task("between", "gpu", 4)
    rank.task("b", "gpu", 20)
    rank.task("c", "gpu", 30, after=[Dependency(0, lag_ns=lag_ns)])
    rank.task("d", "other", 1, after=[Dependency(0, anchor=Anchor.START)])
    job, durations = sketch.build()
    kept = np.array([True, False, True, True, True])
    return condense(job.program_of(0), durations.of_rank(job, 0)[:, 0], kept)


def test_what_is_folded_becomes_a_lag_between_what_is_kept():
    found = chain(lag_ns=0)
    # Each comes after those that it waits for.
    order = list(found)
    assert sorted(order) == [0, 2, 3, 4]
    assert order.index(0) < order.index(2) < order.index(3)
    assert order.index(0) < order.index(4)
    end, start = Anchor.END, Anchor.START
    # The first of a lane waits for the last of it, an iteration before.
    assert found[0] == {Moment(ORIGIN, end, 0): 0, Moment(3, end, 1): 0}
    # That a was there says all that the beginning says.
    assert found[2] == {Moment(0, end, 0): 4}
    assert found[3] == {Moment(2, end, 0): 0}
    assert found[4] == {
        Moment(ORIGIN, end, 0): 0,
        Moment(0, start, 0): 0,
        Moment(4, end, 1): 0,
    }


@pytest.mark.parametrize(("lag_ns", "is_kept"), [(3, False), (4, False), (5, True)])
def test_a_wait_stays_where_it_is_longer_than_the_way_through_what_is_kept(lag_ns, is_kept):
    # Through b it takes 4 ns at least, and b may take nothing.
    assert (Moment(0, Anchor.END, 0) in chain(lag_ns=lag_ns)[3]) is is_kept


def test_kept_are_rendezvous_ends_of_lanes_and_what_later_iterations_wait_for():
    sketch = JobSketch()
    rank = sketch.rank(gpu=LaneKind.COMPUTE, idle=LaneKind.HOST, comm=LaneKind.COMMUNICATION)
    rank.task("changes", "gpu", 1)
    rank.task("plain", "gpu", 1)
    awaited = rank.task("awaited", "gpu", 1)
    rank.task("last", "gpu", 1)
    rank.meet("meet", "comm", 1)
    rank.task("end", "comm", 1, after=[Dependency(awaited, distance=1)])
    sketch.group(0)
    job, _ = sketch.build()
    changing = np.zeros(6, dtype=bool)
    changing[0] = True
    kept = choose_kept(job.program_of(0), changing)
    assert kept.tolist() == [True, False, True, True, True, True]
    # A lane without a task has no end.
    assert lane_ends(job.program_of(0)) == [3, 5]
