"""Predicting a job that lies in a folder: recorded, or built and saved.

A job of shapes is priced and answered as a workload is. A recording brings its
durations, and its interval is the spread of its own periods.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.costs.stacks import Execution
from perfmodel.execution.executor import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.graph.storage import load_job
from perfmodel.prediction.answer import Interval, Prediction, Run
from perfmodel.prediction.outcome import see_recorded_outcome, stated_prices
from perfmodel.prediction.phases import OnPhase, PhaseClock, ignore_phase
from perfmodel.prediction.predict import (
    PricedQuestion,
    Question,
    Setting,
    answer_priced,
    answer_question,
)
from perfmodel.prediction.sampling import build_interval
from perfmodel.prediction.scenario import Interference, JobScenario, Mode
from perfmodel.prediction.subject import tag_recording
from perfmodel.recordings.recorded_job import RecordedJob
from perfmodel.recordings.self_replay import MAX_TRUSTED_ERROR_PCT, SelfReplay, self_replay
from perfmodel.recordings.storage import is_recorded_job, load_recorded_job
from perfmodel.whatif.compiling import Compile
from perfmodel.whatif.machine import DEFAULT_STACK, Machine
from perfmodel.whatif.pinning import is_pinned
from perfmodel.workloads.memory import MemoryPart, RankMemory

NO_MEMORY = "Memory is not checked: the folder of a job does not say what its ranks need."

MEASURED_MEMORY = (
    "Memory is what the job says its ranks allocate at most, in blocks as torch rounds them; what "
    "the driver, communicators and fragmentation take comes on top."
)


def predict_job(
    scenario: JobScenario, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Prediction:
    """Answer *scenario*, replaying on *executor*."""
    clock, folder = PhaseClock(on_phase), Path(scenario.job)
    if is_recorded_job(folder):
        _check_stated(scenario, "was recorded")
        with clock.phase("loading the job", done=0.0):
            recorded = load_recorded_job(folder)
        answer = _answer_recording(scenario, recorded, executor=executor, clock=clock)
        has_memory = False
    else:
        with clock.phase("loading the job", done=0.0):
            job = load_job(folder)
        answer = _answer_built(scenario, job, executor=executor, clock=clock)
        has_memory = bool(job.facts.peak_memory_bytes)
    sentence = MEASURED_MEMORY if has_memory else NO_MEMORY
    return replace(answer, assumptions=(*answer.assumptions, sentence))


def _answer_built(
    scenario: JobScenario, job: JobGraph, *, executor: Executor, clock: PhaseClock
) -> Prediction:
    memory_of_rank = _memory_of_rank(job)
    if is_pinned(job):
        _check_stated(scenario, "states all its durations")
        stated = PricedQuestion(scenario, stated_prices(job), memory_of_rank, Setting())
        answer = answer_priced(stated, executor=executor, clock=clock)
        sentence = "The interval is empty: the job states its durations and no doubt about them."
        return replace(answer, assumptions=(*answer.assumptions, sentence))
    if scenario.topology is None:
        raise ScenarioError(
            f"{scenario.job}: its tasks have shapes and no durations. Say on which machine they "
            "run, for example --topology dgx_h100."
        )
    machine = Machine(scenario.topology, scenario.hosts, _stack_of(scenario, job))
    stack = machine.load_stack()
    if job.facts.stack and stack.execution is Execution.COMPILED:
        # The job is eager code, whatever it says; one made for a compiled stack names none.
        job = Compile().apply(job)
    cluster = machine.cluster(job.rank_count)
    question = Question(
        scenario=replace(scenario, hosts=cluster.host_count, stack=machine.stack),
        cluster=cluster,
        stack=stack,
        batch=None,
        job=job,
        memory_of_rank=memory_of_rank,
    )
    return answer_question(question, executor=executor, clock=clock)


def _stack_of(scenario: JobScenario, job: JobGraph) -> str:
    return scenario.stack or job.facts.stack or DEFAULT_STACK


def _memory_of_rank(job: JobGraph) -> list[RankMemory]:
    stated = job.facts.peak_memory_bytes
    if not stated:
        return [RankMemory(())] * job.rank_count
    return [RankMemory((MemoryPart("allocated tensors", size),)) for size in stated]


def _answer_recording(
    scenario: JobScenario, recorded: RecordedJob, *, executor: Executor, clock: PhaseClock
) -> Prediction:
    if scenario.mode is Mode.ISOLATED:
        raise ScenarioError(
            f"{scenario.job}: was recorded as a loop, so that no isolated iteration is known. "
            "Ask without --isolated."
        )
    with clock.phase("replaying", done=0.3):
        score = self_replay(recorded, replayer=executor.replay)
    with clock.phase("explaining", done=0.6):
        tagged, notes = tag_recording(recorded)
        seen = see_recorded_outcome(executor.replay, tagged, notes)
    iteration_ns = seen.outcome.iteration_ns
    interval, sentence = _interval(score, iteration_ns)
    own = recorded.graph.facts.assumptions
    return Prediction(
        scenario=scenario,
        period_ns=iteration_ns,
        isolated_ns=None,
        interval=interval,
        explanation=seen.outcome.explanation,
        assumptions=tuple(dict.fromkeys((*own, sentence, *_distrust(score)))),
        facts=Setting().facts(recorded.graph, 1),
        run=Run(executor.description, dict(clock.phase_s)),
        evidence=seen.evidence,
        score=score,
    )


def _interval(score: SelfReplay, iteration_ns: int) -> tuple[Interval, str]:
    """Where the recorded periods lie, and the sentence that says so."""
    count = len(score.periods)
    if count < 2:
        return Interval(iteration_ns, iteration_ns), (
            "The interval is empty: the recording has fewer than two periods, so that nothing "
            "is known about their spread."
        )
    recorded_ns = np.array([period.recorded_ns for period in score.periods], dtype=np.float64)
    return build_interval(recorded_ns, nominal_ns=iteration_ns), (
        f"The interval is the spread of the {count} recorded periods, from the 5th to the 95th "
        "percentile."
    )


def _distrust(score: SelfReplay) -> tuple[str, ...]:
    if score.is_trusted:
        return ()
    sentence = (
        f"The recording replays itself with an error of {score.iteration.error_pct:.1f} %, beyond "
        f"the {MAX_TRUSTED_ERROR_PCT:g} % up to which answers from it mean something."
    )
    return (sentence,)


def _check_stated(scenario: JobScenario, why: str) -> None:
    """Refuse a machine, or to leave out interference, for a job that brings its durations along."""
    if scenario.interference is Interference.LEFT_OUT:
        raise ScenarioError(
            f"{scenario.job}: {why}, and its durations hold what overlaps cost, so that "
            "--no-interference would change nothing. Ask without it."
        )
    given = {
        "--topology": scenario.topology,
        "--hosts": scenario.hosts,
        "--stack": scenario.stack,
    }
    for option, value in given.items():
        if value is not None:
            raise ScenarioError(
                f"{scenario.job}: {why}, so that {option} {value} would change nothing. Ask "
                "without it, or for another machine with `perfmodel whatif JOB --apply machine`; "
                "`perfmodel whatif --list` shows its parameters."
            )
