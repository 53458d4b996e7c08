"""The Python door: the same words as the command line, typed.

A scenario goes in and a prediction comes out; where the work runs is said
beside the scenario, because it cannot change the answer. What is heavy is
imported by the function that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfmodel.execution import open_executor
from perfmodel.prediction.answer import Answer, Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.scenario import Interference, JobScenario, Mode, Scenario

if TYPE_CHECKING:
    from perfmodel.graph.job import JobGraph
    from perfmodel.planning.layouts.search import LayoutQuestion, LayoutRanking
    from perfmodel.planning.question import RankQuestion
    from perfmodel.planning.ranking import Ranking
    from perfmodel.prediction.comparison import Comparison
    from perfmodel.recordings.import_files import ImportedJob
    from perfmodel.validation.fits import FitBoard
    from perfmodel.validation.scoreboard import Scoreboard

__all__ = [
    "Answer",
    "Interference",
    "JobScenario",
    "Mode",
    "Prediction",
    "Scenario",
    "import_chakra",
    "import_kineto",
    "load_job",
    "predict",
    "rank",
    "replay",
    "search",
    "validate",
    "validate_fits",
    "validate_runs",
    "whatif",
]


def predict(
    scenario: Scenario | JobScenario,
    *,
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> Prediction:
    """Answer *scenario*, on this machine or on Ray; the place does not change the answer.

    *on_phase* is told which phase begins and which share of the work is done.
    """
    from perfmodel.prediction.answering import predict_scenario

    with open_executor(executor, workers=workers, address=ray_address) as place:
        return predict_scenario(scenario, executor=place, on_phase=on_phase)


def rank(
    question: RankQuestion,
    *,
    executor: str = "serial",
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> Ranking:
    """Order the sharding plans that *question* asks about, fastest first."""
    from perfmodel.planning.rank_plans import rank_plans

    with open_executor(executor, workers=workers, address=ray_address) as place:
        return rank_plans(question, executor=place, on_phase=on_phase)


def search(
    question: LayoutQuestion,
    *,
    executor: str = "serial",
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> tuple[LayoutRanking, ...]:
    """The fastest layouts that *question* asks about, for every number of hosts."""
    from perfmodel.planning.layouts.search import search_layouts

    with open_executor(executor, workers=workers, address=ray_address) as place:
        return search_layouts(question, executor=place, on_phase=on_phase)


def import_kineto(paths: Sequence[str | Path], out: str | Path) -> tuple[ImportedJob, ...]:
    """Turn Kineto traces of all ranks into a job in the folder *out*, and score it.

    *paths* are files of one job, a folder of them, or a folder of such folders;
    several jobs go to folders in *out*.
    """
    from perfmodel.recordings import import_files

    return import_files.import_kineto([Path(path) for path in paths], Path(out))


def import_chakra(paths: Sequence[str | Path], out: str | Path) -> tuple[ImportedJob, ...]:
    """Turn Chakra execution traces of one job into a job in the folder *out*, and score it."""
    from perfmodel.recordings import import_files

    return import_files.import_chakra([Path(path) for path in paths], Path(out))


def load_job(folder: str | Path) -> JobGraph:
    """The graph of the job in *folder*, recorded or built."""
    from perfmodel.graph import storage

    return storage.load_job(Path(folder))


def replay(
    job: JobScenario | str | Path,
    *,
    executor: str = "serial",
    workers: int | None = None,
    ray_address: str | None = None,
) -> Answer:
    """The times of *job*, a folder or a scenario of one, as `predict` finds them."""
    from perfmodel.prediction.answering import answer
    from perfmodel.prediction.question import job_question

    question = job_question(_as_scenario(job))
    unexplained = replace(question, asked=replace(question.asked, is_explained=False))
    with open_executor(executor, workers=workers, address=ray_address) as place:
        return answer(unexplained, executor=place)


def whatif(
    job: JobScenario | str | Path,
    changes: Sequence[str] = (),
    *,
    sweep: str | None = None,
    force: bool = False,
    executor: str = "serial",
    workers: int | None = None,
    ray_address: str | None = None,
) -> Comparison:
    """*job* (a folder or a scenario of one) before and after *changes*, as typed after `--apply`.

    Its machine prices jobs of shapes, and what changes do to work. *sweep* is one more
    change with several values for a parameter. Recordings that replay themselves badly are
    refused unless *force* is set.
    """
    from perfmodel.prediction.answering import prepare_changes
    from perfmodel.prediction.comparison import NamedChange, compare
    from perfmodel.prediction.question import open_job
    from perfmodel.whatif import parse_sweep, parse_transformation

    scenario = _as_scenario(job)
    topology = scenario.topology
    named = [NamedChange(text, parse_transformation(text, topology=topology)) for text in changes]
    swept = None if sweep is None else parse_sweep(sweep, topology=topology)
    question = prepare_changes(open_job(scenario), force=force)
    with open_executor(executor, workers=workers, address=ray_address) as place:
        return compare(question, named, sweep=swept, executor=place)


def _as_scenario(job: JobScenario | str | Path) -> JobScenario:
    return job if isinstance(job, JobScenario) else JobScenario(str(job))


def validate(
    kind: Literal["collectives", "gemm", "attention", "experts", "memory"],
    tables: Sequence[str | Path],
) -> Scoreboard:
    """Compare predictions with *tables* of measured collectives or kernels.

    Kernels come in one table, collectives in one or more.
    """
    paths = [Path(table) for table in tables]
    if kind == "collectives":
        from collectives.measurements import load_measurements
        from perfmodel.validation.collectives import validate_collectives

        return validate_collectives(load_measurements(paths))
    from perfmodel.validation import kernels as attention
    from perfmodel.validation import kernels as gemm
    from perfmodel.validation import kernels as memory

    [path] = paths
    validators = {
        "gemm": gemm.validate_gemm,
        "attention": attention.validate_attention,
        "experts": memory.validate_experts,
        "memory": memory.validate_memory,
    }
    return validators[kind](path)


def validate_fits(tables: Sequence[str | Path]) -> FitBoard:
    """Compare the memory verdict with *tables* of runs; rows without a time failed."""
    from perfmodel.validation.fits import judge_fits
    from perfmodel.validation.runs_table import load_runs

    return judge_fits([load_runs(Path(table)) for table in tables])


def validate_runs(
    table: str | Path | None = None,
    *,
    source: str | None = None,
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
) -> Scoreboard:
    """Compare predictions with a *table* of measured training runs, or those of one *source*.

    Without a table, with the core tables that come with a clone of the repository.
    """
    from perfmodel.validation import runs
    from perfmodel.validation.runs_table import find_core_tables, load_runs, of_source

    paths = [Path(table)] if table is not None else find_core_tables()
    tables = of_source([load_runs(path) for path in paths], source)
    with open_executor(executor, workers=workers, address=ray_address) as place:
        return runs.validate_tables(tables, executor=place)
