"""Options that several commands share: where the work runs, and where the answer goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from perfmodel.base.cautions import join_cautions
from perfmodel.base.errors import InputError, OutputError, ScenarioError
from perfmodel.base.options import Option, Price
from perfmodel.base.units import parse_duration_ns
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
    from perfmodel.prediction.scenario import RunQuestion
    from perfmodel.reports.blocks import Report

MAX_LISTED_RANKS = 1_000_000
FEWEST_COMPARED = 2
PAGE_ENDINGS = ("", ".html", ".htm")
ExecutorName = Literal["auto", "serial", "ray"]


def argument(metavar: str, meaning: str) -> Option:
    """A value without a name on the command line."""
    return Option(is_argument=True, metavar=metavar, help=meaning)


JsonFile = Annotated[
    str | None,
    Option(name="--json", metavar="FILE", help="Write the answer as JSON; - is stdout."),
]
Strict = Annotated[bool, Option(name="--strict", help="Exit 1 where the answer has warnings.")]
Quiet = Annotated[bool, Option(help="No progress on standard error.")]
JobOut = Annotated[str, Option(metavar="JOB", help="Folder to write the job to.")]


@dataclass(frozen=True)
class RunOptions:
    """Where the work runs, and whether progress is shown."""

    executor: Annotated[
        ExecutorName | None, Option(help="Where the work runs; auto uses Ray where it pays.")
    ] = "auto"
    workers: Annotated[
        int | None, Option(metavar="N", min=1, help="Ray workers; default: one per CPU core.")
    ] = None
    ray_address: Annotated[
        str | None, Option(metavar="ADDR", help="Join this Ray cluster, e.g. host:6379.")
    ] = None
    quiet: Quiet = False

    @contextmanager
    def open(self, phase: str = "starting") -> Iterator[dict[str, Any]]:
        """Show progress, which begins with *phase*; yields the keywords of `perfmodel.api`."""
        from perfmodel.reports.terminal import show_progress

        with show_progress(is_quiet=self.quiet) as progress:
            progress(phase, 0.0)
            yield {
                "executor": self.executor,
                "workers": self.workers,
                "ray_address": self.ray_address,
                "on_phase": progress,
            }


@dataclass(frozen=True)
class LocalRun(RunOptions):
    """A run in this process, unless Ray is asked for."""

    executor: Annotated[
        ExecutorName | None,
        Option(help="Where the work runs; default: ray with an address or workers, else serial."),
    ] = None


def parse_measured(text: str) -> float:
    """Nanoseconds that an iteration took."""
    if (measured_ns := parse_duration_ns(text)) <= 0:
        raise InputError(f"--measured: must be above zero, got {text!r}.")
    return measured_ns


def parse_ranks(text: str) -> tuple[int, ...]:
    """Read a list of ranks such as `0-3,8-11`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise InputError(f"ranks: must be like 0-3,8-11, got {text!r}.")
        low, high = int(first), int(last or first)
        if high < low or high - low > MAX_LISTED_RANKS:
            raise InputError(f"ranks: {part!r} must run upwards, at most {MAX_LISTED_RANKS} ranks.")
        found.extend(range(low, high + 1))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files to write, which must be writable. JSON on standard output silences the screen."""

    json_file: JsonFile = None
    trace_file: Annotated[
        Path | None,
        Option(name="--trace-out", metavar="FILE", help="Write a timeline for Perfetto (or .gz)."),
    ] = None
    report_file: Annotated[
        Path | None, Option(name="--report", metavar="FILE.html", help="Write a web page.")
    ] = None
    csv_file: Annotated[
        Path | None, Option(name="--csv", metavar="FILE", help="Write one line per row as CSV.")
    ] = None
    price_per_gpu_hour: Price = None
    trace_ranks: Annotated[
        tuple[int, ...] | None,
        Option(
            name="--ranks",
            metavar="N[,N...]",
            parse=parse_ranks,
            help="Ranks in the timeline of --trace-out, e.g. 0,8-15.",
        ),
    ] = None
    is_brief: Annotated[
        bool, Option(name="--brief", help="Print the answer alone, without its reasons.")
    ] = False
    plan_file: Annotated[
        Path | None,
        Option(name="--plan-out", metavar="FILE.json", help="Write the first plan as JSON."),
    ] = None
    is_strict: Strict = False

    def __post_init__(self) -> None:
        # A file that cannot be written is an error before the work, not after it.
        has_json = self.json_file not in (None, STDOUT)
        files = {
            "--trace-out": self.trace_file,
            "--report": self.report_file,
            "--csv": self.csv_file,
            "--plan-out": self.plan_file,
            "--json": Path(str(self.json_file)) if has_json else None,
        }
        check_apart(files)
        if self.trace_ranks is not None and self.trace_file is None:
            raise OutputError("--ranks: chooses ranks of the timeline. Give --trace-out FILE too.")
        for option, path in files.items():
            if path is not None:
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
    ) -> None:
        """Write an answer everywhere it was asked for: its *report*, and its JSON.

        Several reports are printed one after the other; a page and a CSV file hold the first.
        """
        reports = report if isinstance(report, Sequence) else (report,)
        if self.is_strict:
            join_cautions(one.cautions for one in reports).refuse()
        if self.report_file is not None:
            from perfmodel.reports.html import to_page

            write_file(self.report_file, to_page(reports[0]))
        if self.csv_file is not None:
            write_csv(self.csv_file, reports[0].rows)
        if self.json_file is not None:
            write_json(self.json_file, document())
        if self.is_printed:
            from perfmodel.reports.runs import shorten
            from perfmodel.reports.terminal import print_report

            print_report(*(map(shorten, reports) if self.is_brief else reports))
            for path in (self.json_file, self.trace_file, self.report_file, self.csv_file):
                if path is not None:
                    print(f"Wrote {path}")

    def write_prediction(self, prediction: Prediction, asked: RunQuestion | None = None) -> None:
        """Write *prediction*, with its timeline and the whole run that was *asked* for."""
        from perfmodel.reports.document import to_document
        from perfmodel.reports.prediction import report_prediction

        if self.trace_file is not None:
            from perfmodel.reports.chrome_trace import write_trace

            write_trace(prediction, self.trace_file, only_ranks=self.trace_ranks)
        price, whole = self.price_per_gpu_hour, None
        if asked is not None and asked.is_asked:
            from perfmodel.prediction.whole_run import plan_run

            whole = plan_run(prediction, asked, price_per_gpu_hour=price)
        self.write(
            report_prediction(prediction, price, whole),
            lambda: to_document(prediction, price, whole),
        )

    def write_comparison(self, comparison: Comparison) -> None:
        """Write *comparison*; an error if fewer than two scenarios have an answer."""
        from perfmodel.reports.comparing import report_comparison

        self.write(report_comparison(comparison), comparison.to_dict)
        if len(comparison.answered) < FEWEST_COMPARED:
            raise ScenarioError("compare: fewer than two scenarios have an answer.")
