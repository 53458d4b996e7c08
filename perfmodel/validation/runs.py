"""Validation of whole runs: every row of a table of measured training runs, predicted or listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.units import NS_PER_S
from perfmodel.execution.executor import Executor
from perfmodel.validation.runs_prediction import RunAnswer, predict_run
from perfmodel.validation.runs_question import RunSetting
from perfmodel.validation.runs_table import RunRow, RunTable
from perfmodel.validation.scoreboard import Deviation, Scoreboard, Unsupported

KIND = "runs"


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
        counts: dict[str, int] = {}
        for sentences in self.assumptions.values():
            for sentence in sentences:
                counts[sentence] = counts.get(sentence, 0) + 1
        return Scoreboard.lines(self) + [
            f"assumed in {count} row{'s' if count > 1 else ''}: {sentence}"
            for sentence, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ]


def validate_runs(table: RunTable, *, executor: Executor) -> RunScoreboard:
    """Compare *table* with predictions, in seconds as the tables have them."""
    answers = executor.map(predict_run, RunSetting(), table.rows)
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
