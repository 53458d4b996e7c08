"""Validation of whole runs: every row of a table of measured training runs, predicted or listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.base.units import NS_PER_S
from perfmodel.execution.executor import Executor
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.question import Asked
from perfmodel.validation.runs_prediction import RunAnswer, RunAsked, predict_run
from perfmodel.validation.runs_table import RunRow, RunTable
from perfmodel.validation.scoreboard import Deviation, Scoreboard, Unsupported

KIND = "runs"
MOST_ASSUMPTIONS = 20
"""Sentences that the scoreboard for people shows, those of most rows first."""


@dataclass(frozen=True, slots=True)
class RunScoreboard(Scoreboard):
    """A scoreboard that also says what each prediction took for granted."""

    assumptions: Mapping[str | int, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The machine-readable answer, each row with its assumptions."""
        document = Scoreboard.to_json(self)
        for row in document["rows"]:
            row["assumptions"] = list(self.assumptions.get(row["row"], ()))
        return document

    def lines(self) -> list[str]:
        """The scoreboard for people, with how many rows rest on each assumption."""
        counts = Counter(
            sentence for sentences in self.assumptions.values() for sentence in sentences
        )
        common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        lines = [
            f"assumed in {count} row{'s' if count > 1 else ''}: {sentence}"
            for sentence, count in common[:MOST_ASSUMPTIONS]
        ]
        left = len(common) - len(lines)
        if left:
            lines.append(f"and {left} sentences more; --json has all of them by row.")
        return Scoreboard.lines(self) + lines


def validate_tables(
    tables: Sequence[RunTable],
    *,
    executor: Executor,
    calibration: tuple[str, ...] = (),
    on_phase: OnPhase = ignore_phase,
) -> RunScoreboard:
    """Compare *tables*; groups of several are told apart by what was trained."""
    boards = [
        validate_runs(table, executor=executor, calibration=calibration, on_phase=on_phase)
        for table in tables
    ]
    if len(boards) == 1:
        return boards[0]
    return RunScoreboard(
        KIND,
        tuple(
            replace(one, group=f"{table.family.value}: {one.group}")
            for table, board in zip(tables, boards, strict=True)
            for one in board.deviations
        ),
        tuple(one for board in boards for one in board.unsupported),
        {row: said for board in boards for row, said in board.assumptions.items()},
    )


def validate_runs(
    table: RunTable,
    *,
    executor: Executor,
    calibration: tuple[str, ...] = (),
    on_phase: OnPhase = ignore_phase,
) -> RunScoreboard:
    """Compare *table* with predictions, in seconds as the tables have them."""
    asked = RunAsked(Asked(is_explained=False), calibration)
    answers = map_in_steps(
        executor, predict_run, asked, table.rows, on_phase=on_phase, phase="predicting run"
    )
    pairs = list(zip(table.rows, answers, strict=True))
    return RunScoreboard(
        KIND,
        tuple(_deviation(row, answer) for row, answer in pairs if not answer.reason),
        tuple(Unsupported(row.name, answer.reason) for row, answer in pairs if answer.reason),
        {row.name: answer.assumptions for row, answer in pairs if not answer.reason},
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
