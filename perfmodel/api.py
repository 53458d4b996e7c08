"""The Python door: the same words as the command line, typed.

A scenario goes in and a prediction comes out; where the work runs is said
beside the scenario, because it cannot change the answer. What is heavy is
imported by the function that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfmodel.execution import open_executor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.scenario import Interference, JobScenario, Mode, Scenario

if TYPE_CHECKING:
    from perfmodel.emulation.request import Emulation
    from perfmodel.emulation.telling import EmulatedJob
    from perfmodel.graph.job import JobGraph
    from perfmodel.planning.question import RankQuestion
    from perfmodel.planning.ranking import Ranking
    from perfmodel.prediction.comparison import Comparison
    from perfmodel.prediction.replaying import ReplayedJob
    from perfmodel.recordings.import_files import ImportedJob
    from perfmodel.validation.scoreboard import Scoreboard
    from perfmodel.whatif.machine import Machine

__all__ = [
    "Interference",
    "JobScenario",
    "Mode",
    "Prediction",
    "Scenario",
    "emulate",
    "import_chakra",
    "import_kineto",
    "load_job",
    "predict",
    "rank",
    "replay",
    "validate",
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
    with open_executor(executor, workers=workers, address=ray_address) as place:
        if isinstance(scenario, JobScenario):
            from perfmodel.prediction.predict_job import predict_job

            return predict_job(scenario, executor=place, on_phase=on_phase)
        from perfmodel.prediction.predict import predict_scenario

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


def emulate(
    request: Emulation,
    out: str | Path,
    *,
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
) -> EmulatedJob:
    """Run the torch script of *request* on virtual GPUs and write its job to the folder *out*."""
    from perfmodel.emulation import emulate as emulation

    with open_executor(executor, workers=workers, address=ray_address) as place:
        return emulation.emulate(request, Path(out), place=place)


def load_job(folder: str | Path) -> JobGraph:
    """The graph of the job in *folder*, recorded or built."""
    from perfmodel.graph import storage

    return storage.load_job(Path(folder))


def replay(
    folder: str | Path,
    *,
    machine: Machine | None = None,
    executor: str = "serial",
    workers: int | None = None,
    ray_address: str | None = None,
) -> ReplayedJob:
    """Replay the job in *folder*; a recording is scored against what was recorded.

    *machine* prices jobs whose tasks state no duration.
    """
    from perfmodel.prediction.replaying import replay_job

    with open_executor(executor, workers=workers, address=ray_address) as place:
        return replay_job(Path(folder), executor=place, machine=machine)


def whatif(
    folder: str | Path,
    changes: Sequence[str] = (),
    *,
    sweep: str | None = None,
    machine: Machine | None = None,
    mode: Mode = Mode.PERIOD,
    force: bool = False,
    executor: str = "serial",
    workers: int | None = None,
    ray_address: str | None = None,
) -> Comparison:
    """The job in *folder* before and after *changes*, each as typed after `--apply`.

    *sweep* is one more change with several values for a parameter. Recordings that
    replay themselves badly are refused unless *force* is set.
    """
    from perfmodel.prediction.comparison import NamedChange, compare
    from perfmodel.prediction.subject import load_subject
    from perfmodel.whatif import parse_sweep, parse_transformation

    topology = None if machine is None else machine.topology
    named = [NamedChange(text, parse_transformation(text, topology=topology)) for text in changes]
    swept = None if sweep is None else parse_sweep(sweep, topology=topology)
    subject = load_subject(Path(folder), machine=machine, force=force)
    with open_executor(executor, workers=workers, address=ray_address) as place:
        return compare(subject, named, sweep=swept, mode=mode, executor=place)


def validate(
    kind: Literal["collectives", "gemm", "attention", "memory"], tables: Sequence[str | Path]
) -> Scoreboard:
    """Compare predictions with *tables* of measured collectives or kernels.

    Kernels come in one table, collectives in one or more.
    """
    paths = [Path(table) for table in tables]
    if kind == "collectives":
        from collectives.measurements import load_measurements
        from perfmodel.validation.collectives import validate_collectives

        return validate_collectives(load_measurements(paths))
    from perfmodel.validation import attention, gemm, memory

    [path] = paths
    validators = {
        "gemm": gemm.validate_gemm,
        "attention": attention.validate_attention,
        "memory": memory.validate_memory,
    }
    return validators[kind](path)


def validate_runs(
    table: str | Path,
    *,
    source: str | None = None,
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
) -> Scoreboard:
    """Compare predictions with a *table* of measured training runs, or those of one *source*."""
    from perfmodel.validation import runs
    from perfmodel.validation.runs_table import load_runs

    rows = load_runs(Path(table))
    if source is not None:
        rows = rows.of_source(source)
    with open_executor(executor, workers=workers, address=ray_address) as place:
        return runs.validate_runs(rows, executor=place)
