"""Predicting: from a scenario to its answer, step by step.

Everything but the executor and the clock of phases is decided by the
scenario, so that equal scenarios have equal answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.engine.replay import Replay
from perfmodel.engine.steady import SteadyState, find_period
from perfmodel.execution.executor import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.graph.memory import RankMemory
from perfmodel.prediction.answer import Facts, InterferenceLoss, Prediction, Run
from perfmodel.prediction.assumptions import list_assumptions
from perfmodel.prediction.evidence import build_evidence
from perfmodel.prediction.explain import explain
from perfmodel.prediction.folded_costs import FoldedCosts, fold_costs
from perfmodel.prediction.interference import Settled, leave_out, settle_interference
from perfmodel.prediction.phases import OnPhase, PhaseClock, ignore_phase
from perfmodel.prediction.placing import PlacementFiles, place_workload
from perfmodel.prediction.sampling import build_interval, replay_samples
from perfmodel.prediction.scenario import Interference, JobScenario, Mode, Scenario
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.jobs import build_job, memory_by_rank
from topologies import Cluster, build_cluster, load_topology


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A scenario with everything it names loaded and built."""

    scenario: Scenario | JobScenario
    cluster: Cluster
    stack: SoftwareStack
    batch: int | None
    job: JobGraph
    memory_of_rank: Sequence[RankMemory]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a job runs and on how much; None where nobody said."""

    device: str | None = None
    device_memory_bytes: int | None = None
    stack: str | None = None
    batch: int | None = None

    def facts(self, job: JobGraph, iterations_replayed: int) -> Facts:
        """What is said of *job* beside its answer."""
        return Facts(
            job=job.facts.name,
            device=self.device,
            device_memory_bytes=self.device_memory_bytes,
            stack=self.stack,
            batch=self.batch,
            rank_count=job.rank_count,
            task_count=job.task_count,
            iterations_replayed=iterations_replayed,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PricedQuestion:
    """A question whose tasks all have a price."""

    scenario: Scenario | JobScenario
    whole: PricedJob
    memory_of_rank: Sequence[RankMemory]
    setting: Setting


@dataclass(frozen=True, slots=True, eq=False)
class _Replays:
    """The nominal replays of a folded job."""

    isolated: Replay
    steady: SteadyState

    def of(self, mode: Mode) -> Replay:
        """The replay that the answer in *mode* is read from."""
        return self.steady.replay if mode is Mode.PERIOD else self.isolated

    def iteration_ns(self, mode: Mode) -> int:
        """The answer in *mode*."""
        if mode is Mode.PERIOD:
            return int(self.steady.period_ns[0])
        return int(self.isolated.iteration_end_ns[0, 0])


def predict_scenario(
    scenario: Scenario, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Prediction:
    """Answer *scenario*, replaying on *executor*."""
    clock = PhaseClock(on_phase)
    with clock.phase("building the job", done=0.0):
        question = build_question(scenario)
    return answer_question(question, executor=executor, clock=clock)


def build_question(scenario: Scenario) -> Question:
    """Load what *scenario* names and build its job."""
    topology = load_topology(scenario.topology)
    cluster = build_cluster(topology, hosts=scenario.hosts, ranks_per_host=scenario.ranks_per_host)
    files = PlacementFiles(scenario.tables, scenario.indices, scenario.plan)
    workload = load_workload(scenario.workload, scenario.overrides)
    placed = place_workload(workload, files, cluster)
    spec = placed.workload
    stack = load_stack(scenario.stack or spec.stack)
    return Question(
        scenario=replace(scenario, stack=scenario.stack or spec.stack),
        cluster=cluster,
        stack=stack,
        batch=spec.batch,
        job=build_job(
            spec,
            rank_count=cluster.rank_count,
            ranks_per_host=cluster.ranks_per_host,
            memory_bytes=cluster.device.memory_bytes,
            plan=placed.plan,
            stack=stack,
        ),
        memory_of_rank=memory_by_rank(
            spec,
            rank_count=cluster.rank_count,
            ranks_per_host=cluster.ranks_per_host,
            memory_bytes=cluster.device.memory_bytes,
            plan=placed.plan,
        ),
    )


def answer_question(question: Question, *, executor: Executor, clock: PhaseClock) -> Prediction:
    """Price and replay the job of *question*, and explain what came out."""
    with clock.phase("pricing", done=0.2):
        whole = price_job(question.job, cluster=question.cluster, stack=question.stack)
    device = question.cluster.device
    priced = PricedQuestion(
        scenario=question.scenario,
        whole=whole,
        memory_of_rank=question.memory_of_rank,
        setting=Setting(device.name, device.memory_bytes, question.stack.name, question.batch),
    )
    return answer_priced(priced, executor=executor, clock=clock)


def answer_priced(question: PricedQuestion, *, executor: Executor, clock: PhaseClock) -> Prediction:
    """Replay the job of *question*, and explain what came out."""
    scenario = question.scenario
    with clock.phase("folding equal ranks", done=0.35):
        alone = fold_costs(question.whole)
    with clock.phase("letting overlaps slow down", done=0.4):
        is_counted = scenario.interference is Interference.COUNTED
        settled = settle_interference(executor.replay, alone) if is_counted else leave_out(alone)
        folded = settled.folded
    job = folded.priced.job
    with clock.phase("replaying", done=0.45):
        replays = _replay(folded, executor)
        loss = _find_loss(alone, settled, replays, scenario.mode, executor) if is_counted else None
    answer = replays.of(scenario.mode)
    iteration_ns = replays.iteration_ns(scenario.mode)
    with clock.phase("replaying samples", done=0.55):
        samples = folded.priced.sample(scenario.samples, seed=scenario.seed)
        times_ns = replay_samples(executor.replay, job, samples, iterations=answer.iteration_count)
    with clock.phase("explaining", done=0.9):
        evidence = build_evidence(folded, answer)
        explanation = explain(
            evidence,
            priced=folded.priced,
            memory_of_rank=question.memory_of_rank,
            iteration_ns=iteration_ns,
        )
    return Prediction(
        scenario=scenario,
        period_ns=replays.iteration_ns(Mode.PERIOD),
        isolated_ns=replays.iteration_ns(Mode.ISOLATED),
        interval=build_interval(times_ns, nominal_ns=iteration_ns),
        explanation=explanation,
        assumptions=list_assumptions(folded.priced, replays.steady, settled, loss),
        facts=question.setting.facts(question.whole.job, answer.iteration_count),
        run=Run(executor.description, dict(clock.phase_s)),
        evidence=evidence,
        interference=loss,
    )


def _replay(folded: FoldedCosts, executor: Executor) -> _Replays:
    job, durations = folded.priced.job, folded.priced.durations
    return _Replays(
        isolated=executor.replay(job, durations, 1),
        steady=find_period(executor.replay, job, durations),
    )


def _find_loss(
    alone: FoldedCosts, settled: Settled, replays: _Replays, mode: Mode, executor: Executor
) -> InterferenceLoss:
    """What *replays* take longer than the same job without interference."""
    if not settled.has_losses:
        return InterferenceLoss(0, settled.rounds)
    without = _replay(alone, executor)
    lost_ns = replays.iteration_ns(mode) - without.iteration_ns(mode)
    return InterferenceLoss(lost_ns, settled.rounds)
