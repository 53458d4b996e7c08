"""Questions and their answers: predict, compare, sweep, rank, search, replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from perfmodel.prediction.phases import OnPhase, PhaseClock, ignore_phase
from perfmodel.prediction.scenario import JobScenario, Scenario

if TYPE_CHECKING:
    from perfmodel.execution import Executor
    from perfmodel.planning.fits import MemoryAnswer
    from perfmodel.planning.layouts.ranking import Search
    from perfmodel.planning.question import LayoutQuestion, RankQuestion
    from perfmodel.planning.ranking import Ranking
    from perfmodel.prediction.answer import Prediction
    from perfmodel.prediction.comparing import Comparison, NamedScenario
    from perfmodel.prediction.question import Question

File = str | Path
Files = Sequence[File]
AnyScenario = Scenario | JobScenario
"""A model on a machine, or a job."""


class Where(TypedDict, total=False):
    """Where the work runs: the keywords that all questions take.

    *executor* is auto, serial or ray; *workers* and *ray_address* are of Ray. *on_phase* is called
    with the phase that begins and the share of the work that is done.
    """

    executor: str | None
    workers: int | None
    ray_address: str | None
    on_phase: OnPhase


AUTO = Where(executor="auto")
"""Where questions run that may take long."""


def open_place(
    executor: str | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> AbstractContextManager[Executor]:
    """The named *executor*; by default Ray if an address or workers are given, else serial.

    *on_phase* hears of workers that do not answer for long.
    """
    from perfmodel.execution import open_executor

    is_remote = ray_address is not None or (workers or 1) > 1
    name = executor or ("ray" if is_remote else "serial")
    return open_executor(
        name,
        workers=workers,
        address=ray_address,
        on_wait=lambda sentence: on_phase(f"note: {sentence}", 0.0),
    )


def predict(
    scenario: AnyScenario | File,
    *,
    require_fit: bool = False,
    keep_timelines: bool = True,
    **where: Unpack[Where],
) -> Prediction:
    """Predict *scenario* (or the scenario in a file), in this process or on Ray.

    What the scenario leaves open, such as the layout of a Transformer, is chosen, and the answer
    says so. With *require_fit* a scenario that does not fit in memory is refused before the replay.
    Without *keep_timelines* Ray workers drop single tasks, and the answer has no trace or report.
    """
    from perfmodel.prediction import predict as prediction

    on_phase = where.get("on_phase", ignore_phase)
    asked, clock = load_question(scenario), PhaseClock(on_phase)
    if isinstance(asked, Scenario):
        with clock.phase("building the job", done=0.0):
            question = build_scenario(asked, on_phase)
        _check_memory(asked, question, on_phase, require_fit=require_fit)
    with open_place(**AUTO | where) as place:
        if isinstance(asked, JobScenario):
            from perfmodel.prediction.saved_jobs import job_question

            with clock.phase("building the job", done=0.0):
                question = job_question(asked, is_distributed=place.reads_jobs)
        found = prediction.predict(question, executor=place, clock=clock)
        remote = found.evidence.history.replay.remote
        if remote is not None and not keep_timelines:
            remote.release()
    return found


def build_scenario(scenario: AnyScenario, on_phase: OnPhase = ignore_phase) -> Question:
    """The job of *scenario*; what it leaves open is completed."""
    from perfmodel.prediction.question import build_question, load_setting

    if isinstance(scenario, JobScenario):
        from perfmodel.prediction.saved_jobs import job_question

        return job_question(scenario)
    return build_question(load_setting(scenario), on_phase)


BY_FAR = 1.2
"""A peak above this multiple of the memory is reported before the prediction."""


def _check_memory(
    scenario: Scenario, question: Question, on_phase: OnPhase, *, require_fit: bool
) -> None:
    from perfmodel.base.errors import ScenarioError
    from perfmodel.reports.text import describe_fit

    memory = question.memory_fit
    if memory is None or memory.fits:
        return
    verdict = describe_fit(memory)
    if require_fit:
        raise ScenarioError(f"{scenario.workload} on {scenario.topology}: {verdict}")
    if memory.peak_bytes > BY_FAR * memory.capacity_bytes:
        on_phase(f"note: {verdict}", 0.0)


def compare(
    scenarios: Mapping[str, AnyScenario] | Sequence[AnyScenario | File],
    **where: Unpack[Where],
) -> Comparison:
    """Compare *scenarios*, named by their keys, their files, or their contents."""
    from perfmodel.prediction.comparing import compare_scenarios

    if isinstance(scenarios, Mapping):
        named = list(scenarios.items())
    else:
        named = [(_name(one), load_question(one)) for one in scenarios]
    _check_machines(named)
    with open_place(**AUTO | where) as place:
        return compare_scenarios(
            named,
            build=build_scenario,
            executor=place,
            on_phase=where.get("on_phase", ignore_phase),
        )


def name_jobs(folders: Files, *, topology: str, stack: str | None = None) -> dict[str, JobScenario]:
    """The jobs in *folders* on one machine, by name of the folder: for `compare`."""
    return {
        Path(folder).name: JobScenario(str(folder), topology=topology, stack=stack)
        for folder in folders
    }


def _check_machines(named: Sequence[NamedScenario]) -> None:
    """Raise at once if a machine or stack cannot be read, not after others were predicted."""
    from perfmodel.stacks.profiles import load_stack
    from topologies import load_topology

    for topology, faults in {(one.topology, one.faults): None for _, one in named if one.topology}:
        load_topology(str(topology), faults=faults)
    for stack in {one.stack: None for _, one in named if one.stack}:
        load_stack(str(stack))


def sweep(
    scenario: AnyScenario | File,
    over: Mapping[str, Sequence[object]] | Sequence[str] | str,
    **where: Unpack[Where],
) -> Comparison:
    """Predict *scenario* for every combination of values of its fields or its workload's.

    *over* is `{"batch": [4096, 8192]}`, or text as after `--sweep`.
    """
    from perfmodel.prediction.comparing import (
        SweepAxis,
        compare_scenarios,
        parse_axis,
        sweep_scenario,
    )

    if isinstance(over, Mapping):
        axes = [SweepAxis(key, tuple(map(str, values))) for key, values in over.items()]
    else:
        axes = [parse_axis(text) for text in ([over] if isinstance(over, str) else over)]
    asked = sweep_scenario(load_question(scenario), axes)
    _check_machines(asked)
    on_phase = where.get("on_phase", ignore_phase)
    with open_place(**AUTO | where) as place:
        return compare_scenarios(
            asked, build=build_scenario, axes=axes, executor=place, on_phase=on_phase
        )


def load_question(scenario: AnyScenario | File) -> AnyScenario:
    """The scenario itself, in a file, or of the job in a folder."""
    if isinstance(scenario, Scenario | JobScenario):
        return scenario
    from perfmodel.prediction.scenario_file import load_scenario

    return JobScenario(str(scenario)) if Path(scenario).is_dir() else load_scenario(scenario)


def _name(scenario: AnyScenario | File) -> str:
    if isinstance(scenario, JobScenario):
        return scenario.job
    if isinstance(scenario, Scenario):
        words = (f"{scenario.hosts} x {scenario.topology}", scenario.workload, *scenario.overrides)
        return ", ".join(words)
    return Path(scenario).stem


def rank(question: RankQuestion, **where: Unpack[Where]) -> Ranking:
    """Rank the sharding plans that *question* asks about, fastest first."""
    from perfmodel.planning.rank_plans import rank_plans

    with open_place(**where) as place:
        on_phase = where.get("on_phase", ignore_phase)
        return rank_plans(question, executor=place, on_phase=on_phase)


def search(question: LayoutQuestion, **where: Unpack[Where]) -> Search:
    """The fastest layouts that *question* asks about, for every number of hosts."""
    from perfmodel.planning.layouts.search import search_layouts

    with open_place(**where) as place:
        on_phase = where.get("on_phase", ignore_phase)
        return search_layouts(question, executor=place, on_phase=on_phase)


def fits(scenario: Scenario) -> MemoryAnswer:
    """Whether the layout that *scenario* states fits in memory, or which layouts do."""
    from perfmodel.planning.fits import find_fits

    return find_fits(scenario)


def replay(
    job: JobScenario | File,
    *,
    is_explained: bool = False,
    **where: Unpack[Where],
) -> Prediction:
    """The times of *job*, a folder or a scenario of one, as `predict` finds them.

    Without *is_explained* the prediction has no explanation.
    """
    from perfmodel.prediction import predict as prediction
    from perfmodel.prediction.saved_jobs import replay_question

    question = replay_question(as_scenario(job))
    asked = replace(question, options=replace(question.options, is_explained=is_explained))
    with open_place(**where) as place:
        clock = PhaseClock(where.get("on_phase", ignore_phase))
        return prediction.predict(asked, executor=place, clock=clock)


def as_scenario(job: JobScenario | File) -> JobScenario:
    """*job* as a scenario; a folder is one with nothing else stated."""
    return job if isinstance(job, JobScenario) else JobScenario(str(job))
