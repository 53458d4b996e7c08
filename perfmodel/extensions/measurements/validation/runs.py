"""Validation of training runs: every measured row is predicted, or listed with the reason why not.

A row is predicted by `predict` itself, from the setting that `runs_question` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

from perfmodel.base.cautions import Cautions, join_cautions
from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_S
from perfmodel.execution.executor import Executor, SerialExecutor, keep_memory
from perfmodel.extensions.measurements.checking import check_run, doubt_scales
from perfmodel.extensions.measurements.measured_kernels import Unsupported
from perfmodel.extensions.measurements.validation.runs_question import read_setting
from perfmodel.extensions.measurements.validation.runs_table import RunRow, RunTable
from perfmodel.extensions.measurements.validation.scoreboard import Deviation, Scoreboard
from perfmodel.prediction.answer import OpenSetting
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question, build_question
from perfmodel.reports.document import open_setting
from perfmodel.workloads.families import FAMILIES

KIND = "runs"
_SAME_JOB = (
    "source", "framework", "release", "model", "device", "machine", "n_gpus", "gbs", "seq_len",
    "compute_precision",
)  # fmt: skip
_CLEARLY_APART = 1.05
"""Two layouts are ranked only if their measured times differ by more than this factor."""


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The prediction of a run in nanoseconds, or the *reason* why there is none."""

    predicted_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    reason: str = ""
    assumptions: tuple[str, ...] = ()
    fits: bool = True
    open_settings: tuple[OpenSetting, ...] = ()


def predict_run(
    options: PredictOptions, row: RunRow, calibration: tuple[str, ...] = ()
) -> RunAnswer:
    """The prediction of *row*, or the reason why it cannot be predicted.

    *calibration* names files of constants that were measured on its machine.
    """
    keep_memory()
    if row.measured_s is None and not row.faults:
        return RunAnswer(reason="no time was measured")
    try:
        question = build_question(read_setting(row, options, calibration=calibration))
        if row.measured_s is not None:
            check_run(question, row.measured_s * NS_PER_S)
        return answer_run(question)
    except InputError as fault:
        return RunAnswer(reason=" ".join(str(fault).split()))


def answer_run(question: Question) -> RunAnswer:
    """The answer that `predict` gives to *question*."""
    found = predict(question, executor=SerialExecutor())
    return RunAnswer(
        predicted_ns=float(found.iteration_ns),
        low_ns=float(found.interval.low_ns),
        high_ns=float(found.interval.high_ns),
        assumptions=found.assumptions,
        fits=question.memory_fit is None or question.memory_fit.fits,
        open_settings=found.open_settings,
    )


@dataclass(frozen=True, slots=True)
class OrderScore:
    """How often the faster of two layouts of one job was predicted: *right* of *pairs*."""

    group: str
    pairs: int
    right: int

    @property
    def right_pct(self) -> float:
        """The share of pairs that were ranked correctly."""
        return 100.0 * self.right / self.pairs


def score_order(table: RunTable, deviations: Sequence[Deviation]) -> tuple[OrderScore, ...]:
    """How often the faster layout is predicted, by framework, on one host and on several.

    Rows are compared if they train the same model with the same batch on the same number of GPUs.
    """
    row_of = {row.name: row for row in table.rows}
    jobs: dict[tuple[str, ...], list[Deviation]] = {}
    for one in deviations:
        key = tuple(row_of[one.row].text(name) for name in _SAME_JOB)
        jobs.setdefault(key, []).append(one)
    counts: dict[str, list[int]] = {}
    for members in jobs.values():
        row = row_of[members[0].row]
        where = "several hosts" if (row.value("n_nodes") or 1) > 1 else "one host"
        for name in (where, f"{row.text('framework')}, {where}"):
            count = counts.setdefault(name, [0, 0])
            for one, other in combinations(members, 2):
                fast, slow = sorted((one, other), key=lambda deviation: deviation.measured)
                if slow.measured > _CLEARLY_APART * fast.measured:
                    count[0] += 1
                    count[1] += fast.predicted < slow.predicted
    return tuple(OrderScore(name, *count) for name, count in sorted(counts.items()) if count[0])


@dataclass(frozen=True, slots=True)
class RunScoreboard(Scoreboard):
    """A scoreboard with the answer to each row, and how well layouts are ranked."""

    answers: Mapping[str | int, RunAnswer] = field(default_factory=dict)
    orders: tuple[OrderScore, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The machine-readable answer, each row with its assumptions and open settings."""
        document = Scoreboard.to_json(self)
        document["order_of_layouts"] = [
            {**asdict(one), "right_pct": one.right_pct} for one in self.orders
        ]
        for row in document["rows"]:
            answer = self.answers[row["row"]]
            row["assumptions"] = list(answer.assumptions)
            row["fits"] = answer.fits
            row["open_settings"] = [open_setting(one) for one in answer.open_settings]
        return document


def validate_tables(
    tables: Sequence[RunTable],
    *,
    executor: Executor,
    calibration: tuple[str, ...] = (),
    on_phase: OnPhase = ignore_phase,
) -> RunScoreboard:
    """Compare *tables* with predictions; with several tables, groups are named by family."""
    boards = [
        validate_runs(table, executor=executor, calibration=calibration, on_phase=on_phase)
        for table in tables
    ]
    if len(boards) == 1:
        return boards[0]
    return RunScoreboard(
        KIND,
        tuple(
            replace(one, group=f"{table.family}: {one.group}")
            for table, board in zip(tables, boards, strict=True)
            for one in board.deviations
        ),
        tuple(one for board in boards for one in board.unsupported),
        join_cautions(board.cautions for board in boards),
        {row: answer for board in boards for row, answer in board.answers.items()},
        tuple(one for board in boards for one in board.orders),
    )


def validate_runs(
    table: RunTable,
    *,
    executor: Executor,
    calibration: tuple[str, ...] = (),
    on_phase: OnPhase = ignore_phase,
) -> RunScoreboard:
    """Compare *table* with predictions, in seconds, the unit of the tables."""
    answers = map_in_steps(
        executor,
        partial(predict_run, calibration=calibration),
        PredictOptions(is_explained=False),
        table.rows,
        on_phase=on_phase,
        phase="predicting run",
    )
    pairs = list(zip(table.rows, answers, strict=True))
    deviations = tuple(_deviation(row, answer) for row, answer in pairs if not answer.reason)
    return RunScoreboard(
        KIND,
        deviations,
        tuple(Unsupported(row.name, answer.reason) for row, answer in pairs if answer.reason),
        Cautions((*doubt_scales({f"row {d.row}": d.measured / d.predicted for d in deviations}),)),
        {row.name: answer for row, answer in pairs if not answer.reason},
        score_order(table, deviations) if FAMILIES[table.family].has_layouts else (),
    )


def _deviation(row: RunRow, answer: RunAnswer) -> Deviation:
    assert row.measured_s is not None
    return Deviation(
        row=row.name,
        group=row.group,
        measured=row.measured_s,
        predicted=answer.predicted_ns / NS_PER_S,
        low=answer.low_ns / NS_PER_S,
        high=answer.high_ns / NS_PER_S,
    )
