"""Outputs: where an answer goes, on the screen and into files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfmodel.base.errors import OutputError, ScenarioError
from perfmodel.base.options import Option
from perfmodel.base.writing import (
    STDOUT,
    check_apart,
    check_writable,
    write_csv,
    write_file,
    write_json,
)
from perfmodel.cli.options import parse_ranks

if TYPE_CHECKING:
    from perfmodel.prediction.answer import Prediction
    from perfmodel.prediction.comparing import Comparison
    from perfmodel.reports.blocks import Report

FEWEST_COMPARED = 2
PAGE_ENDINGS = ("", ".html", ".htm")


JsonFile = Annotated[
    str | None,
    Option(name="--json", metavar="FILE", help="Write the answer as JSON; - is stdout."),
]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files to write, which must be writable. JSON on standard output silences the screen."""

    json_file: JsonFile = None
    trace_file: Annotated[
        Path | None,
        Option(name="--trace-out", metavar="FILE", help="Write a timeline for Perfetto."),
    ] = None
    report_file: Annotated[
        Path | None, Option(name="--report", metavar="FILE.html", help="Write a web page.")
    ] = None
    csv_file: Annotated[
        Path | None, Option(name="--csv", metavar="FILE", help="Write one line per row as CSV.")
    ] = None
    plot_file: Annotated[
        Path | None, Option(name="--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")
    ] = None
    price_per_gpu_hour: Annotated[
        float | None,
        Option(name="--price", metavar="MONEY", min=0, help="Price per GPU and hour."),
    ] = None
    trace_ranks: Annotated[
        tuple[int, ...] | None,
        Option(
            name="--ranks",
            metavar="N[,N...]",
            parse=parse_ranks,
            help="Ranks of that timeline, e.g. 0,8-15.",
        ),
    ] = None
    plan_file: Annotated[
        Path | None,
        Option(name="--plan-out", metavar="FILE.json", help="Write the first plan as JSON."),
    ] = None

    def __post_init__(self) -> None:
        # A file that cannot be written is an error before the work, not after it.
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

    @property
    def has_timelines(self) -> bool:
        """Whether a file shows single tasks."""
        return self.trace_file is not None or self.report_file is not None

    @property
    def is_printed(self) -> bool:
        """Whether the answer is printed for people."""
        return self.json_file != STDOUT

    def write(
        self,
        report: Report | Sequence[Report],
        document: Callable[[], Mapping[str, Any]],
        draw: Callable[[Path], object] | None = None,
    ) -> None:
        """Write an answer everywhere it was asked for: its *report*, its JSON, its picture.

        Several reports are printed one after the other; a page and a CSV file hold the first.
        """
        reports = report if isinstance(report, Sequence) else (report,)
        if self.report_file is not None:
            from perfmodel.reports.html import to_page

            write_file(self.report_file, to_page(reports[0]))
        if self.csv_file is not None:
            write_csv(self.csv_file, reports[0].rows)
        if self.plot_file is not None and draw is not None:
            draw(self.plot_file)
        if self.json_file is not None:
            write_json(self.json_file, document())
        if self.is_printed:
            from perfmodel.reports.terminal import print_report

            print_report(*reports)
            written = (self.json_file, self.trace_file, self.report_file, self.csv_file)
            for path in (*written, self.plot_file):
                if path is not None:
                    print(f"Wrote {path}")

    def write_prediction(self, prediction: Prediction) -> None:
        """Write *prediction*, with its timeline where that was asked for."""
        from perfmodel.reports.document import to_document
        from perfmodel.reports.prediction import report_prediction

        if self.trace_file is not None:
            from perfmodel.reports.chrome_trace import write_trace

            write_trace(prediction, self.trace_file, only_ranks=self.trace_ranks)
        price = self.price_per_gpu_hour
        self.write(
            report_prediction(prediction, price),
            lambda: to_document(prediction, price),
            prediction.plot,
        )

    def write_comparison(self, comparison: Comparison) -> None:
        """Write *comparison*; an error if fewer than two scenarios have an answer."""
        from perfmodel.reports.comparing import report_comparison

        self.write(report_comparison(comparison), comparison.to_dict, comparison.plot)
        if len(comparison.answered) < FEWEST_COMPARED:
            raise ScenarioError("compare: fewer than two scenarios have an answer.")
