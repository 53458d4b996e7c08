"""Loops: the job of a question priced, its overlaps settled, replayed until its rhythm shows.

Where many equal micro-batches are continued there are two loops, and every
quantity of the whole iteration lies on the straight line through them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.engine.replay import Replay
from perfmodel.engine.steady import SteadyState, find_period
from perfmodel.execution.executor import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.answer import Explanation, Facts, InterferenceLoss
from perfmodel.prediction.continuing import continue_explanation
from perfmodel.prediction.evidence import Evidence, build_evidence
from perfmodel.prediction.explain import explain
from perfmodel.prediction.folded_costs import FoldedCosts, fold_costs
from perfmodel.prediction.interference import SettledCosts, leave_out, settle_interference
from perfmodel.prediction.phases import PhaseClock
from perfmodel.prediction.question import Question
from perfmodel.prediction.sampling import replay_samples
from perfmodel.prediction.scenario import Interference, Mode


def price_question(question: Question) -> PricedJob:
    """The job of *question* with a price for every task."""
    return _price(question, question.job)


def _price(question: Question, job: JobGraph) -> PricedJob:
    if question.cluster is None or question.known is not None:
        from perfmodel.whatif.pinning import stated_prices  # only jobs that state durations do

        return stated_prices(job, question.known)
    assert question.stack is not None
    return price_job(job, cluster=question.cluster, stack=question.stack)


@dataclass(frozen=True, eq=False)
class Loop:
    """A priced job whose overlaps have settled, replayed until its rhythm showed."""

    alone: FoldedCosts
    settled: SettledCosts
    steady: SteadyState
    executor: Executor

    @property
    def priced(self) -> PricedJob:
        """The folded job, overlaps counted."""
        return self.settled.folded.priced

    def iteration_ns(self, mode: Mode) -> int:
        """The answer in *mode*; the first iteration of a loop is an isolated one."""
        if mode is Mode.PERIOD:
            return int(self.steady.period_ns[0])
        return int(self.steady.replay.iteration_end_ns[0, 0])

    def replay_of(self, mode: Mode) -> Replay:
        """The replay that the answer in *mode* is read from."""
        if mode is Mode.PERIOD:
            return self.steady.replay
        return self.executor.replay(self.priced.job, self.priced.durations, 1)

    @cached_property
    def without_interference(self) -> Loop:
        """The same loop with everything as long as alone."""
        if not self.settled.has_losses:
            return self
        return _find_loop(leave_out(self.alone), self.alone, self.executor)

    def lost_ns(self, mode: Mode) -> int:
        """What overlaps cost the iteration."""
        return self.iteration_ns(mode) - self.without_interference.iteration_ns(mode)


def _settle(priced: PricedJob, question: Question, executor: Executor, clock: PhaseClock) -> Loop:
    with clock.phase("folding equal ranks", done=0.35):
        alone = fold_costs(priced)
    with clock.phase("letting overlaps slow down", done=0.4):
        is_counted = question.asked.interference is Interference.COUNTED
        settled = settle_interference(executor.replay, alone) if is_counted else leave_out(alone)
    with clock.phase("replaying", done=0.45):
        return _find_loop(settled, alone, executor)


def _find_loop(settled: SettledCosts, alone: FoldedCosts, executor: Executor) -> Loop:
    priced = settled.folded.priced
    steady = find_period(executor.replay, priced.job, priced.durations)
    return Loop(alone, settled, steady, executor)


@dataclass(frozen=True, slots=True, eq=False)
class Loops:
    """The loop of a question and, where it is continued, that of the larger job."""

    question: Question
    small: Loop
    large: Loop | None

    def reach(self, small: int, large: int) -> int:
        """A quantity of the whole iteration from those of the two jobs."""
        continuation = self.question.continuation
        return small if continuation is None else continuation.reach(small, large)

    def iteration_ns(self, mode: Mode) -> int:
        """The answer in *mode*."""
        large = self.large or self.small
        return self.reach(self.small.iteration_ns(mode), large.iteration_ns(mode))

    def loss(self) -> InterferenceLoss | None:
        """What overlaps cost; None where they were left out."""
        asked = self.question.asked
        if asked.interference is Interference.LEFT_OUT:
            return None
        large = self.large or self.small
        lost_ns = self.reach(self.small.lost_ns(asked.mode), large.lost_ns(asked.mode))
        return InterferenceLoss(lost_ns, self.small.settled.rounds)

    def draw_ns(self) -> tuple[float, ...]:
        """Times under drawn costs; those of a smaller job are kept in proportion."""
        asked, small = self.question.asked, self.small
        if not asked.samples or not small.priced.relative_sigma.any():
            return ()
        is_period = asked.mode is Mode.PERIOD
        times_ns = replay_samples(
            small.executor.replay,
            small.priced.job,
            small.priced.sample(asked.samples, seed=asked.seed),
            iterations=small.steady.replay.iteration_count if is_period else 1,
        )
        if self.large is not None:
            whole_ns = self.iteration_ns(asked.mode)
            times_ns = times_ns * (whole_ns / small.iteration_ns(asked.mode))
        return tuple(times_ns.tolist())

    def explain(self) -> tuple[Evidence, Explanation]:
        """Why the iteration takes as long as it does, and the replay that shows it."""
        evidence, explanation = self._explain(self.small)
        if self.large is None or self.question.continuation is None:
            return evidence, explanation
        _, of_large = self._explain(self.large)
        whole = continue_explanation(
            explanation,
            of_large,
            self.question.continuation,
            iteration_ns=self.iteration_ns(self.question.asked.mode),
        )
        return evidence, whole

    def _explain(self, loop: Loop) -> tuple[Evidence, Explanation]:
        mode = self.question.asked.mode
        evidence = build_evidence(loop.settled.folded, loop.replay_of(mode))
        explanation = explain(
            evidence,
            priced=loop.priced,
            memory_of_rank=self.question.memory_of_rank,
            iteration_ns=loop.iteration_ns(mode),
        )
        return evidence, explanation

    def facts(self) -> Facts:
        """What is said beside the answer."""
        whole = self.question.job
        larger = self.question.continuation and self.question.continuation.larger
        task_count = self.reach(whole.task_count, (larger or whole).task_count)
        is_period = self.question.asked.mode is Mode.PERIOD
        iterations = self.small.steady.replay.iteration_count if is_period else 1
        return replace(find_facts(self.question, iterations), task_count=task_count)


def find_loops(
    question: Question, priced: PricedJob, executor: Executor, clock: PhaseClock
) -> Loops:
    """Settle and replay the *priced* job of *question*, and the larger one if there is one."""
    small, large = _settle(priced, question, executor, clock), None
    if question.continuation is not None:
        bigger = _price(question, question.continuation.larger)
        large = _settle(bigger, question, executor, clock)
    return Loops(question, small, large)


def find_facts(question: Question, iterations_replayed: int) -> Facts:
    """What is said of the job of *question* beside its answer."""
    cluster, stack, job = question.cluster, question.stack, question.job
    return Facts(
        job=job.facts.name,
        device=None if cluster is None else cluster.device.name,
        device_memory_bytes=None if cluster is None else cluster.device.memory_bytes,
        stack=None if stack is None else stack.name,
        batch=question.batch,
        rank_count=job.rank_count,
        task_count=job.task_count,
        iterations_replayed=iterations_replayed,
        work=question.work,
    )
