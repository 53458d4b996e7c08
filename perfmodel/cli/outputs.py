"""Outputs: where an answer goes, on the screen and into files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.errors import OutputError, ScenarioError
from perfmodel.base.writing import (
    STDOUT,
    check_apart,
    check_writable,
    write_csv,
    write_file,
    write_json,
)

if TYPE_CHECKING:
    from perfmodel.prediction.answer import Prediction
    from perfmodel.prediction.comparing import Comparison

TABLE_WIDTH = 160
FEWEST_COMPARED = 2
PAGE_ENDINGS = ("", ".html", ".htm")


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that were asked for. JSON on standard output silences the screen."""

    json_file: str | None = None
    trace_file: Path | None = None
    report_file: Path | None = None
    csv_file: Path | None = None
    plot_file: Path | None = None
    price_per_gpu_hour: float | None = None
    trace_ranks: tuple[int, ...] | None = None
    plan_file: Path | None = None

    @property
    def has_timelines(self) -> bool:
        """Whether a file shows single tasks."""
        return self.trace_file is not None or self.report_file is not None

    def check(self) -> None:
        """Raise unless every file can be written, before any work is done for it."""
        has_json = self.json_file not in (None, STDOUT)
        files = {
            "--trace-out": self.trace_file,
            "--report": self.report_file,
            "--csv": self.csv_file,
            "--plot": self.plot_file,
            "--plan-out": self.plan_file,
            "--json": Path(str(self.json_file)) if has_json else None,
        }
        check_apart(files)
        if self.plot_file is not None:
            from perfmodel.reports.pictures import check_picture_path

            check_picture_path(self.plot_file)
        if self.trace_ranks is not None and self.trace_file is None:
            raise OutputError("--ranks: chooses ranks of the timeline. Give --trace-out FILE too.")
        for option, path in files.items():
            if path is not None and option != "--plot":
                check_writable(option, path)
        if self.report_file is not None and self.report_file.suffix not in PAGE_ENDINGS:
            raise OutputError(
                f"--report {self.report_file}: is a web page, so it must end in .html. "
                "A browser prints it to PDF."
            )

    def write(self, prediction: Prediction) -> None:
        """Write *prediction* everywhere it was asked for."""
        if self.trace_file is not None:
            from perfmodel.reports.chrome_trace import write_trace

            write_trace(prediction, self.trace_file, only_ranks=self.trace_ranks)
        if self.report_file is not None:
            from perfmodel.reports.pages.prediction import build_page

            write_file(self.report_file, build_page(prediction, self.price_per_gpu_hour))
        if self.csv_file is not None:
            write_file(self.csv_file, prediction.to_frame().to_csv(index=False))
        if self.plot_file is not None:
            prediction.plot(self.plot_file)
        if self.json_file is not None:
            from perfmodel.reports.document import to_document

            write_json(self.json_file, to_document(prediction, self.price_per_gpu_hour))
        if self.json_file != STDOUT:
            from rich.console import Console

            from perfmodel.reports.console import WIDTH, print_prediction

            console = Console(width=WIDTH, highlight=False)
            print_prediction(prediction, console, self.price_per_gpu_hour)
            name_files(
                self.json_file, self.trace_file, self.report_file, self.csv_file, self.plot_file
            )


def name_files(*written: str | Path | None) -> None:
    """Say which files were written; those that were not asked for are None."""
    for path in written:
        if path is not None:
            print(f"Wrote {path}")


@dataclass(frozen=True, slots=True)
class ComparisonOutputs:
    """The files of a comparison. JSON on standard output silences the screen."""

    json_file: str | None = None
    csv_file: Path | None = None
    plot_file: Path | None = None
    report_file: Path | None = None

    def check(self) -> None:
        """Raise unless every file can be written, before any work is done for it."""
        Outputs(
            json_file=self.json_file,
            csv_file=self.csv_file,
            plot_file=self.plot_file,
            report_file=self.report_file,
        ).check()

    def write(self, comparison: Comparison) -> None:
        """Write *comparison* everywhere it was asked for."""
        from perfmodel.reports import comparing

        if self.csv_file is not None:
            write_csv(self.csv_file, comparing.to_comparison_rows(comparison))
        if self.plot_file is not None:
            comparison.plot(self.plot_file)
        if self.report_file is not None:
            comparison.save_report(self.report_file)
        if self.json_file is not None:
            write_json(self.json_file, comparing.to_comparison_document(comparison))
        if self.json_file != STDOUT:
            from rich.console import Console

            width = None if sys.stdout.isatty() else TABLE_WIDTH
            comparing.print_comparison(comparison, Console(width=width, highlight=False))
            name_files(self.json_file, self.csv_file, self.plot_file, self.report_file)
        if len(comparison.answered) < FEWEST_COMPARED:
            raise ScenarioError("compare: fewer than two scenarios have an answer.")
