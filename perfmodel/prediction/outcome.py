"""Outcome: how long a job takes whose tasks state their durations, and why.

A built job is a loop and its time is the period. A recording is replayed once,
and its time is the median of the periods in it, or its span where it has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.costs.estimates import Bound
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.breakdown import Window
from perfmodel.engine.history import History
from perfmodel.engine.steady import Replayer, find_period
from perfmodel.graph.job import JobGraph
from perfmodel.graph.memory import RankMemory
from perfmodel.graph.ops import Fixed
from perfmodel.prediction.answer import Explanation
from perfmodel.prediction.evidence import Evidence, build_evidence
from perfmodel.prediction.explain import explain
from perfmodel.prediction.folded_costs import fold_costs
from perfmodel.prediction.one_iteration import shrink_to_iteration
from perfmodel.prediction.scenario import Mode
from perfmodel.prediction.subject import Notes, Subject
from perfmodel.recordings.hold_back import replay_held
from perfmodel.whatif.pinning import stated_durations


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer for one job: its time, the periods it is the median of, and why.

    *span_ns* is one pass from the first task to the last. The *explanation* is
    that of one iteration.
    """

    iteration_ns: int
    span_ns: int
    periods_ns: tuple[int, ...]
    explanation: Explanation
    rank_count: int
    task_count: int

    def path_by_kind_ns(self) -> dict[str, int]:
        """What the critical path is made of."""
        return {share.name: share.duration_ns for share in self.explanation.critical_path.by_kind}


@dataclass(frozen=True, slots=True, eq=False)
class SeenOutcome:
    """An outcome with every task that it rests on."""

    outcome: Outcome
    evidence: Evidence


def find_outcome(replay: Replayer, subject: Subject, *, mode: Mode = Mode.PERIOD) -> Outcome:
    """Replay *subject*; *mode* is for built jobs only."""
    if subject.notes is None:
        return _built_outcome(replay, subject.job, mode)
    return see_recorded_outcome(replay, subject.job, subject.notes).outcome


def _built_outcome(replay: Replayer, job: JobGraph, mode: Mode) -> Outcome:
    folded = fold_costs(stated_prices(job))
    priced = folded.priced
    isolated = replay(priced.job, priced.durations, 1)
    span_ns = int(isolated.iteration_end_ns[0, 0])
    answer, iteration_ns = isolated, span_ns
    if mode is Mode.PERIOD:
        steady = find_period(replay, priced.job, priced.durations)
        answer, iteration_ns = steady.replay, int(steady.period_ns[0])
    explanation = _explain(build_evidence(folded, answer), priced, job.rank_count, iteration_ns)
    return Outcome(
        iteration_ns, span_ns, (iteration_ns,), explanation, job.rank_count, job.task_count
    )


def see_recorded_outcome(replay: Replayer, job: JobGraph, notes: Notes) -> SeenOutcome:
    """Replay a recorded *job* once, with kernels holding back others as its *notes* say."""
    priced = stated_prices(job)
    held = replay_held(job, priced.durations, notes.hold_rule(job), replayer=replay)
    span_ns = int(held.end_ns.max())
    moments_ns = notes.step_moments_ns(job, held.end_ns) or []
    if len(moments_ns) < 2:
        moments_ns = [0, span_ns]
    periods_ns = tuple(np.diff(moments_ns).tolist())
    evidence = Evidence(
        history=History(held.graph, priced.durations, held.replay),
        iteration=0,
        window=Window(moments_ns[0], moments_ns[-1]),
        class_ranks=tuple((rank,) for rank in range(job.rank_count)),
    )
    iteration_ns = round(float(np.median(periods_ns)))
    explanation = _explain(evidence, priced, job.rank_count, iteration_ns)
    outcome = Outcome(
        iteration_ns, span_ns, periods_ns, explanation, job.rank_count, job.task_count
    )
    return SeenOutcome(outcome, evidence)


def _explain(
    evidence: Evidence, priced: PricedJob, rank_count: int, iteration_ns: int
) -> Explanation:
    explanation = explain(
        evidence,
        priced=priced,
        memory_of_rank=[RankMemory(())] * rank_count,
        iteration_ns=iteration_ns,
    )
    window = evidence.window
    return shrink_to_iteration(
        explanation, iteration_ns=iteration_ns, window_ns=window.to_ns - window.from_ns
    )


def stated_prices(job: JobGraph) -> PricedJob:
    """The stated durations of *job* as prices without doubt."""
    durations = stated_durations(job)
    count = len(durations.values_ns)
    known = np.array(
        [op.provenance if isinstance(op, Fixed) else 0 for op in job.ops], dtype=np.int8
    )
    # One row a program, in the order in which ranks first run them.
    programs = list(dict.fromkeys(job.rank_program.tolist()))
    rows = np.concatenate([job.programs[program].op for program in programs])
    return PricedJob(
        job=job,
        durations=durations,
        float_ns=durations.values_ns[:, 0].astype(np.float64),
        relative_sigma=np.zeros(count),
        provenance=known[rows],
        family=np.full(count, FAMILIES.index("fixed"), dtype=np.int8),
        bound=np.full(count, Bound.UNKNOWN, dtype=np.int8),
        link_use=np.zeros((count, 2)),
    )
