"""Scoreboards of `validate` and `calibrate`: their options in common, and where they go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.base.errors import MeasurementError
from perfmodel.base.writing import STDOUT
from perfmodel.cli.outputs import Outputs

if TYPE_CHECKING:
    from perfmodel.prediction.phases import OnPhase
    from perfmodel.validation.scoreboard import Scoreboard

CollectiveTables = Annotated[
    list[Path],
    typer.Argument(
        metavar="TABLE...",
        help="What nccl-tests printed or wrote as JSON, or CSV tables (`perfmodel schema "
        "collectives`).",
    ),
]
RunMachine = Annotated[
    str | None,
    typer.Option("--topology", metavar="NAME|FILE", help="Machine that nccl-tests ran on."),
]
RunHosts = Annotated[
    int | None,
    typer.Option("--hosts", metavar="N", min=1, help="Hosts it ran on; default: as it says."),
]
RunKind = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="Collective it ran; default: as it says."),
]
Limit = Annotated[
    float | None,
    typer.Option(
        metavar="PCT", min=0.0, help="Exit 1 when the mean error is beyond this, e.g. 10."
    ),
]


@dataclass(frozen=True, slots=True)
class ScoreFiles:
    """Where a scoreboard goes besides the screen, and how large its mean error may be."""

    json_file: str | None = None
    limit_pct: float | None = None
    report_file: Path | None = None
    csv_file: Path | None = None

    @property
    def outputs(self) -> Outputs:
        """The files alone."""
        return Outputs(
            json_file=self.json_file, report_file=self.report_file, csv_file=self.csv_file
        )


@contextmanager
def scoring(is_quiet: bool) -> Iterator[OnPhase]:
    """Progress of a comparison with measurements."""
    from perfmodel.reports.progress import show_progress

    with show_progress(is_quiet=is_quiet) as progress:
        progress("predicting", 0.0)
        yield progress


def show(board: Scoreboard, files: ScoreFiles) -> None:
    """Print *board*, write it where asked, and exit 1 beyond the limit."""
    from perfmodel.reports.scores import report_scores

    files.outputs.write(report_scores(board), board.to_json)
    limit = files.limit_pct
    if board.overall is None and files.json_file == STDOUT and limit is None:
        return  # the reasons are in the JSON
    if board.overall is None:
        raise MeasurementError(f"{board.kind}: no row could be predicted; each says why.")
    if limit is not None and board.exceeds(limit):
        found = f"{board.overall.mape_pct:.1f} %"
        print(f"perfmodel: mean error beyond the limit of {limit} %: {found}", file=sys.stderr)
        raise typer.Exit(1)
