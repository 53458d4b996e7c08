"""Memory verdicts: whether runs were predicted to fit, compared with whether they ran.

A row without a time failed. Failures are judged together with the rows of the same source that
ran. Balanced accuracy is the mean of the share of failures that were predicted and the share of
successes that were predicted. Measured peaks of memory are compared with predicted ones, both as
allocators report them: without what the runtime takes before the first tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perfmodel.base.errors import InputError
from perfmodel.base.units import format_size
from perfmodel.extensions.measurements.measured_kernels import Unsupported
from perfmodel.extensions.measurements.validation.runs_question import (
    MEMORY_KNOWN_WITHIN,
    layout_of,
    read_setting,
)
from perfmodel.extensions.measurements.validation.runs_table import RunRow, RunTable
from perfmodel.extensions.measurements.validation.scoreboard import (
    SCHEMA_VERSION,
    Deviation,
    Scoreboard,
)
from perfmodel.graph.job import RUNTIME_BYTES
from perfmodel.workloads.transformer.layout_choice import USABLE_SHARE, ChosenLayout

_BYTES_PER_GB = 1e9
_NOTHING_MEASURED = Scoreboard("memory", ())


@dataclass(frozen=True, slots=True)
class FitVerdict:
    """Whether a row ran, whether it was predicted to fit, and why not."""

    row: str
    group: str
    ran: bool
    fits: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FitScore:
    """Counts of verdicts: failures and how many were caught, runs and false alarms among them."""

    group: str
    failed: int
    caught: int
    ran: int
    false_alarms: int

    @property
    def balanced_accuracy_pct(self) -> float | None:
        """Mean of the two shares of correct verdicts; None if nothing failed or nothing ran."""
        if not self.failed or not self.ran:
            return None
        return 50.0 * (self.caught / self.failed + 1.0 - self.false_alarms / self.ran)


@dataclass(frozen=True, slots=True)
class FitBoard:
    """All verdicts, counted together and by framework and number of stages."""

    verdicts: tuple[FitVerdict, ...]
    unsupported: tuple[Unsupported, ...] = ()
    memory: Scoreboard = _NOTHING_MEASURED
    """Predicted and measured peaks in GB, of all rows that state one."""

    @property
    def scores(self) -> tuple[FitScore, ...]:
        """All verdicts counted, then those of each group."""
        groups = list(dict.fromkeys(verdict.group for verdict in self.verdicts))
        return (
            _count("all", self.verdicts),
            *(_count(name, [one for one in self.verdicts if one.group == name]) for name in groups),
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """A flat row per run: its verdict, or the reason why it could not be judged."""
        judged = [asdict(verdict) for verdict in self.verdicts]
        return judged + [asdict(one) for one in self.unsupported]

    def to_json(self) -> dict[str, Any]:
        """The table and every verdict as plain values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "fits",
            "groups": [
                {**asdict(score), "balanced_accuracy_pct": score.balanced_accuracy_pct}
                for score in self.scores
            ],
            "unsupported": [asdict(one) for one in self.unsupported],
            "rows": [asdict(verdict) for verdict in self.verdicts],
            "memory": self.memory.to_json(),
        }


def judge_fits(tables: Sequence[RunTable]) -> FitBoard:
    """A verdict for each row that failed, and for the rows of its source that ran."""
    rows = [row for table in tables for row in table.rows]
    sources = {row.text("source") for row in rows if row.measured_s is None}
    asked = [row for row in rows if row.text("source") in sources]
    measured = [row for row in rows if row.value("peak_mem_gb") and not row.faults]
    compared = [_compare_memory(row) for row in measured]
    return FitBoard(
        tuple(_judge(row) for row in asked if not row.faults),
        tuple(Unsupported(str(row.name), "; ".join(row.faults)) for row in asked if row.faults),
        Scoreboard(
            "memory",
            tuple(one for one in compared if isinstance(one, Deviation)),
            tuple(one for one in compared if isinstance(one, Unsupported)),
        ),
    )


def _count(group: str, verdicts: Iterable[FitVerdict]) -> FitScore:
    kinds = [(verdict.ran, verdict.fits) for verdict in verdicts]
    return FitScore(
        group=group,
        failed=sum(not ran for ran, _ in kinds),
        caught=kinds.count((False, False)),
        ran=sum(ran for ran, _ in kinds),
        false_alarms=kinds.count((True, False)),
    )


def _judge(row: RunRow) -> FitVerdict:
    group = f"{row.text('framework') or 'not stated'}, pp {row.value('pp') or 1}"
    try:
        found = _layout(row)
        needs = f"needs {format_size(found.peak_bytes)}, more than {USABLE_SHARE:.0%} of a GPU"
        reason = "" if found.is_safe else needs
    except InputError as fault:
        # Without a valid layout it cannot run.
        reason = " ".join(str(fault).split())
    ran = row.measured_s is not None
    return FitVerdict(str(row.name), group, ran=ran, fits=not reason, reason=reason)


def _compare_memory(row: RunRow) -> Deviation | Unsupported:
    try:
        predicted = (_layout(row).peak_bytes - RUNTIME_BYTES) / _BYTES_PER_GB
    except InputError as fault:
        return Unsupported(str(row.name), " ".join(str(fault).split()))
    group = f"{row.text('framework') or 'not stated'}, {row.text('device')}"
    measured: float = row.value("peak_mem_gb")
    return Deviation(
        row=str(row.name),
        group=group,
        measured=measured,
        predicted=predicted,
        low=predicted / MEMORY_KNOWN_WITHIN,
        high=predicted * MEMORY_KNOWN_WITHIN,
    )


def _layout(row: RunRow) -> ChosenLayout:
    return layout_of(read_setting(row))
