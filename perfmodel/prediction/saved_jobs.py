"""Saved jobs: a job in a folder as a question, and on another machine than it was recorded on.

A job of shapes is priced on the machine that is named. A job that states its durations, as a
recording does, is replayed as it is, or moved to the machine that is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.recordings.recorded_job import RecordedJob
from perfmodel.extensions.recordings.recording_info import describe_recording
from perfmodel.extensions.recordings.storage import is_recorded_job, load_recorded_job
from perfmodel.extensions.whatif.compiling import compile_job
from perfmodel.extensions.whatif.pinning import DEFAULT_STACK, PricingMachine, is_pinned
from perfmodel.graph import storage
from perfmodel.graph.job import JobGraph, MemoryPart, RankMemory, with_own_origins
from perfmodel.graph.ops import Fixed
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.scenario import Interference, JobScenario, Mode
from perfmodel.prediction.yardsticks import IterationWork
from perfmodel.stacks.capabilities import Execution
from topologies import find_machine

NO_MEMORY = "Memory is not checked: a saved job does not state what its ranks need."
STATED_MEMORY = (
    "Memory is the peak that the job states for its ranks, rounded to blocks as torch does; the "
    "driver, communicators and fragmentation are not included."
)


def job_question(scenario: JobScenario, *, is_distributed: bool = False) -> Question:
    """The question about the job in the folder that *scenario* names.

    A job that states its durations is moved to the machine that is named; options without an
    effect on it are refused. Of a large job that *is_distributed* to workers, and not moved, only
    the outline is read here.
    """
    question = open_job(scenario, is_distributed=is_distributed and scenario.topology is None)
    if question.cluster is not None:
        return question
    _check_stated(scenario, _why_stated(question), {"--calibration": scenario.calibration})
    if scenario.topology is None:
        return question
    return move_question(question, scenario)


def replay_question(scenario: JobScenario) -> Question:
    """The same for a replay of the job as it is: with stated durations a machine is refused."""
    question = open_job(scenario)
    if question.cluster is None:
        given = {"--topology": scenario.topology, "--calibration": scenario.calibration}
        _check_stated(scenario, _why_stated(question), given)
    return question


def _why_stated(question: Question) -> str:
    return "was recorded" if question.recording is not None else "states all its durations"


MOST_NEAR_TASKS = 16_000_000
"""A larger job that states its durations is read by the workers that replay it, not here."""


def _read_job(folder: Path, *, is_distributed: bool) -> JobGraph:
    if is_distributed:
        outline = storage.open_job(folder)
        is_stated = all(isinstance(op, Fixed) for op in outline.ops)
        if is_stated and outline.task_count > MOST_NEAR_TASKS:
            return outline
    return storage.load_job(folder)


def open_job(scenario: JobScenario, *, is_distributed: bool = False) -> Question:
    """The same for a what-if: with stated durations the machine prices only the changes."""
    folder, options = Path(scenario.job), PredictOptions.of(scenario)
    if is_recorded_job(folder):
        if scenario.mode is Mode.ISOLATED:
            raise ScenarioError(
                f"{scenario.job}: was recorded as a loop, so no isolated iteration is known. "
                "Leave --isolated out."
            )
        question = recording_question(load_recorded_job(folder), options)
        return replace(question, scenario=scenario)
    job = _read_job(folder, is_distributed=is_distributed)
    question = Question(
        job=job,
        options=options,
        memory_of_rank=[
            RankMemory((MemoryPart("allocated tensors", size),))
            for size in job.facts.peak_memory_bytes
        ],
        assumptions=(STATED_MEMORY if job.facts.peak_memory_bytes else NO_MEMORY,),
        work=IterationWork(job.facts.samples, job.facts.tokens or None)
        if job.facts.samples
        else None,
        scenario=scenario,
    )
    if is_pinned(job):
        return question
    if scenario.topology is None:
        raise ScenarioError(
            f"{scenario.job}: its tasks have shapes and no durations. Name the machine that runs "
            "them, for example --topology dgx_h100."
        )
    stack = scenario.stack or job.facts.stack or DEFAULT_STACK
    machine = PricingMachine(scenario.topology, scenario.hosts, stack, scenario.calibration)
    cluster, loaded = machine.cluster(job.rank_count), machine.load_stack()
    if job.facts.stack and loaded.execution is Execution.COMPILED:
        # The job is eager code, whatever it says; one made for a compiled stack names none.
        job = compile_job(job)
    return replace(
        question,
        job=job,
        cluster=cluster,
        stack=loaded,
        scenario=replace(scenario, hosts=cluster.host_count, stack=stack),
    )


def recording_question(recorded: RecordedJob, options: PredictOptions) -> Question:
    """The question about a recording, every task of it with an origin of its own."""
    recording = describe_recording(recorded)
    return Question(recording.recorded, options, recording=recording, assumptions=(NO_MEMORY,))


def _check_stated(scenario: JobScenario, why: str, given: Mapping[str, object]) -> None:
    """Refuse what is *given*, or to leave out interference, for a job with stated durations."""
    if scenario.interference is Interference.LEFT_OUT:
        raise ScenarioError(
            f"{scenario.job}: {why}, and its durations include contention, so --no-interference "
            "would change nothing. Leave it out."
        )
    for option, value in given.items():
        if value:
            raise ScenarioError(
                f"{scenario.job}: {why}, so {option} would change nothing. Leave it out, or name "
                "another machine with `perfmodel predict --job JOB --topology NAME`."
            )


def check_trust(question: Question, *, force: bool) -> None:
    """Refuse a recording that does not replay itself, unless *force* is set."""
    score = question.score
    if score is not None and not score.is_trusted and not force:
        raise ScenarioError(
            f"{question.job.facts.name}: {score.distrust}. Record it again, or ask with --force "
            "and do not trust the answer."
        )


def recorded_machine(job: JobGraph) -> str | None:
    """The machine of the catalog that *job* was recorded on, as far as its GPUs show."""
    if not job.facts.device:
        return None
    machine = find_machine(job.facts.device, job.facts.gpus_per_host)
    return None if machine is None else machine.name


def about_machine(job: JobGraph) -> str:
    """How the machine of a recording was found."""
    return (
        f"The recording names {job.facts.gpus_per_host} x {job.facts.device}: assumed to be "
        f"{recorded_machine(job)} of the catalog."
    )


def move_question(question: Question, scenario: JobScenario) -> Question:
    """*question* about the machine that *scenario* names, instead of the recorded one."""
    check_trust(question, force=scenario.force)
    was, assumptions = scenario.was, question.assumptions
    if was is None:
        was = recorded_machine(question.job)
        if was is None:
            raise ScenarioError(
                f"{scenario.job}: does not say which machine its durations are from "
                f"({question.job.facts.device or 'no GPU is named'}), so the effect of "
                f"{scenario.topology} is unknown. Name it with --was, for example --was dgx_a100."
            )
        assumptions = (*assumptions, about_machine(question.job))
    assert scenario.topology is not None
    stack = scenario.stack or DEFAULT_STACK
    target = PricingMachine(scenario.topology, scenario.hosts, stack)
    hosts = target.cluster(question.job.rank_count).host_count
    if question.recording is None:
        question = replace(question, job=with_own_origins(question.job))
    text = f"machine:topology={scenario.topology},was={was}"
    # Imported here: they import every what-if.
    from perfmodel.extensions.whatif.parsing import build_transformation
    from perfmodel.prediction.changing import apply_change

    stated = {"topology": scenario.topology, "was": was, "hosts": scenario.hosts, "stack": stack}
    wish = build_transformation("machine", stated)
    moved, applied = apply_change(question, wish, name=text, force=scenario.force)
    return replace(
        moved,
        assumptions=(*assumptions, *applied.sentences),
        scenario=replace(scenario, hosts=hosts, stack=stack, was=was),
    )
