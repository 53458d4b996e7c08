"""Saved jobs: a job in a folder as a question, and on another machine than it was recorded on.

A job of shapes is priced on the machine that is named. A job that states its durations, as a
recording does, is replayed as it is, or moved to the machine that is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.extensions import load_extension
from perfmodel.graph import storage
from perfmodel.graph.job import JobGraph, MemoryPart, RankMemory
from perfmodel.graph.ops import Fixed
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.scenario import Interference, JobScenario, Mode
from perfmodel.prediction.yardsticks import IterationWork
from perfmodel.stacks.capabilities import Execution
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster, build_cluster, load_topology

NO_MEMORY = "Memory is not checked: a saved job does not state what its ranks need."
STATED_MEMORY = (
    "Memory is the peak that the job states for its ranks, rounded to blocks as torch does; the "
    "driver, communicators and fragmentation are not included."
)


DEFAULT_STACK = "pytorch_eager"


@dataclass(frozen=True, slots=True)
class PricingMachine:
    """A topology by name or file, with as many hosts as the ranks of a job need.

    *hosts* spreads the ranks over that many hosts instead.
    """

    topology: str
    hosts: int | None = None
    stack: str = DEFAULT_STACK
    calibration: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def cluster(self, rank_count: int) -> Cluster:
        """The machine with room for *rank_count* ranks."""
        return _build(self.topology, self.hosts, rank_count, self.calibration, self.faults)

    def load_stack(self) -> SoftwareStack:
        """The software that runs on it."""
        return _load_stack(self.stack)


_load_stack = lru_cache(maxsize=16)(load_stack)


@lru_cache(maxsize=16)
def _build(
    topology: str,
    hosts: int | None,
    rank_count: int,
    calibration: tuple[str, ...],
    faults: tuple[str, ...],
) -> Cluster:
    loaded = load_topology(topology, calibrations=calibration, faults=faults)
    needed = -(-rank_count // loaded.gpus_per_host) if hosts is None else hosts
    cluster = build_cluster(loaded, hosts=needed, ranks_per_host=-(-rank_count // needed))
    cluster.check_faults()
    return cluster


def is_pinned(job: JobGraph) -> bool:
    """Whether every task of *job* states its duration."""
    if all(isinstance(op, Fixed) for op in job.ops):
        return True
    used = {int(op) for program in job.programs for op in np.unique(program.op)}
    return all(isinstance(job.ops[op], Fixed) for op in used)


def job_question(scenario: JobScenario, *, is_distributed: bool = False) -> Question:
    """The question about the job in the folder that *scenario* names.

    A job that states its durations is moved to the machine that is named; options without an
    effect on it are refused. Of a large job that *is_distributed* to workers, and not moved, only
    the outline is read here.
    """
    question = open_job(scenario, is_distributed=is_distributed and scenario.topology is None)
    if question.cluster is not None:
        return question
    given = {"--calibration": scenario.calibration, "--fault": scenario.faults}
    _check_stated(scenario, _why_stated(question), given)
    if scenario.topology is None:
        return question
    moved: Question = load_extension("whatif", "answering").move_question(question, scenario)
    return moved


def replay_question(scenario: JobScenario) -> Question:
    """The same for a replay of the job as it is: with stated durations a machine is refused."""
    question = open_job(scenario)
    if question.cluster is None:
        given = {"--topology": scenario.topology, "--calibration": scenario.calibration}
        given["--fault"] = scenario.faults
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
    if storage.is_recorded_job(folder):
        if scenario.mode is Mode.ISOLATED:
            raise ScenarioError(
                f"{scenario.job}: was recorded as a loop, so no isolated iteration is known. "
                "Leave --isolated out."
            )
        # Its own rules come with the extension; without them it is not replayed.
        recordings = load_extension("recordings", "recording_info")
        opened: Question = recordings.open_recording(folder, options)
        return replace(opened, scenario=scenario)
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
    machine = PricingMachine(
        scenario.topology, scenario.hosts, stack, scenario.calibration, scenario.faults
    )
    cluster, loaded = machine.cluster(job.rank_count), machine.load_stack()
    if job.facts.stack and loaded.execution is Execution.COMPILED:
        # The job is eager code, whatever it says; one made for a compiled stack names none.
        job = load_extension("whatif", "compiling").compile_job(job)
    return replace(
        question,
        job=job,
        cluster=cluster,
        stack=loaded,
        scenario=replace(scenario, hosts=cluster.host_count, stack=stack),
    )


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
