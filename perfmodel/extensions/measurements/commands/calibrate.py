"""`perfmodel calibrate`: fit constants to measured tables, or check a fit on rows it has not seen.

Collectives and lookups are fitted; kernels and runs that a user measured correct those like them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.options import Option
from perfmodel.base.writing import printable_lines, write_json
from perfmodel.cli.commands import command, command_group
from perfmodel.cli.options import Outputs, argument
from perfmodel.extensions.measurements.commands.validate import (
    Limit,
    MeasuredCollectives,
    QuietRun,
    show_scores,
)
from perfmodel.prediction.scenario import CalibrationFiles

if TYPE_CHECKING:
    from perfmodel.extensions.measurements.api import Calibrated

COLLECTIVES_EPILOG = """\b
Examples:
  perfmodel calibrate collectives all_reduce.log --topology dgx_h100 --out my.yaml
  perfmodel predict --topology dgx_h100 --hosts 4 --calibration my.yaml
  perfmodel calibrate collectives table.csv --cross-validate 5
\b
A few rows (six are enough, small and large sizes) shift the constants that perfmodel has
for such a machine; 200 or more rows of known machines are fitted from scratch.
"""
ConstantsOut = Annotated[str | None, Option(metavar="FILE", help="Where to write the constants.")]
JsonOnly = Annotated[Outputs, "json_file", "is_strict"]
calibrate = command_group()


def _show_written(files: Outputs, fit: Calibrated, out: str) -> None:
    """Say what a *fit* found, and in which file its constants are."""
    lines = [*fit.lines, *fit.cautions.count()]
    if files.json_file is not None:
        about = {"schema_version": 1, "lines": fit.lines, "constants": out}
        write_json(files.json_file, {**about, **fit.cautions.document()})
    if files.is_printed:
        told = [*lines, f"Wrote {files.json_file}"] if files.json_file else lines
        print(printable_lines("\n".join(told)))


@dataclass(frozen=True)
class CollectiveFit(MeasuredCollectives):
    """Measured collectives to fit constants to, or to check a fit with."""

    cross_validate: Annotated[
        int | None,
        Option(metavar="K", min=2, help="Fit on K - 1 of K folds, score the other, e.g. 5."),
    ] = None
    by: Annotated[
        Literal["size_bytes", "hosts", "nranks"],
        Option(help="Column whose values are split into folds."),
    ] = "size_bytes"
    leave_out: Annotated[
        tuple[str, ...],
        Option(
            metavar="NAME[:HOSTS]",
            help="Fit without a machine and score it, e.g. dgx_h100:10; repeatable.",
        ),
    ] = ()
    out: Annotated[
        str | None, Option(name="--out,-o", metavar="FILE", help="Write the constants here.")
    ] = None
    licence: Annotated[
        str, Option(metavar="TEXT", help="Licence of the measurements, for the file.")
    ] = "that of the sources"
    limit: Limit = None


@command(calibrate, epilog=COLLECTIVES_EPILOG)
def collectives(question: CollectiveFit, files: JsonOnly, run: QuietRun) -> None:
    """Fit the constants of collectives, or check a fit on rows it has not seen."""
    tables, place, out = question.tables, question.place, question.out
    folds = question.cross_validate
    is_scored = folds is not None or bool(question.leave_out)
    if question.leave_out:
        board = api.leave_out_collectives(tables, question.leave_out, place=place)
        show_scores(board, files, question.limit)
    if folds is not None:
        with run.open() as where:
            phase = where["on_phase"]
            board = api.cross_validate(
                tables, folds=folds, by=question.by, place=place, on_phase=phase
            )
        show_scores(board, files, question.limit)
    if out is not None:
        with run.open() as where:
            phase = where["on_phase"]
            fit = api.calibrate_collectives(
                tables,
                out,
                place=place,
                licence=question.licence,
                is_strict=files.is_strict,
                on_phase=phase,
            )
        machine = question.topology or "NAME"
        use = f"Use it: perfmodel predict --topology {machine} --calibration {out}"
        if is_scored and files.is_printed:
            files = replace(files, json_file=None)  # It has the scores.
        if not is_scored or files.is_printed:
            _show_written(files, replace(fit, lines=(*fit.lines, f"Wrote {out}", use)), out)
    elif not is_scored:
        raise InputError(
            "calibrate collectives: nothing to do. Give --out FILE to write the constants, "
            "or --cross-validate or --leave-out to check a fit."
        )


@dataclass(frozen=True)
class OwnKernels:
    """Timed kernels to take over."""

    tables: Annotated[tuple[str, ...], argument("TABLE...", "Timed kernels and collectives (CSV).")]
    out: Annotated[str, Option(name="--out,-o", metavar="FILE", help="Write them here (YAML).")]
    device: Annotated[
        str | None,
        Option(metavar="NAME|FILE", help="The GPU of tables without a column `device`."),
    ] = None


@command(calibrate)
def kernels(question: OwnKernels, files: JsonOnly) -> None:
    """Take over timed kernels of all kinds: they correct the prices of these and of like ones."""
    fit = api.calibrate_kernels(
        question.tables, question.out, device=question.device, is_strict=files.is_strict
    )
    use = f"Wrote {fit.sets} times to {question.out}. Use it: --calibration {question.out}"
    _show_written(files, replace(fit, lines=(*fit.lines, use)), question.out)


RUNS_EPILOG = """\b
Examples:
  perfmodel calibrate runs my_runs.csv --out my_anchors.yaml
  perfmodel search llama3_70b --topology dgx_h100 --hosts 16 --calibration my_anchors.yaml
  perfmodel predict llama3_8b --topology dgx_h100 --measured 15.2s --anchor-out one.yaml
  perfmodel calibrate runs my_runs.csv one.yaml --out my_anchors.yaml
\b
Columns are those of `perfmodel schema runs`.
"""


@dataclass(frozen=True)
class RunFit:
    """Measured runs to learn from."""

    tables: Annotated[tuple[str, ...], argument("TABLE...", "Measured runs (CSV), or anchors.")]
    out: Annotated[
        str, Option(name="--out,-o", metavar="FILE", help="Write what they say here (YAML).")
    ]
    calibration: CalibrationFiles = ()


@command(calibrate, epilog=RUNS_EPILOG)
def runs(question: RunFit, files: JsonOnly, run: QuietRun) -> None:
    """Learn from measured runs what they say of other runs on the same GPUs."""
    with run.open() as where:
        fit = api.calibrate_runs(
            question.tables,
            question.out,
            calibration=question.calibration,
            is_strict=files.is_strict,
            on_phase=where["on_phase"],
        )
    count = f"{fit.sets} run{'s' * (fit.sets > 1)}"
    use = f"Wrote {count} to {question.out}. Use it: --calibration {question.out}"
    _show_written(files, replace(fit, lines=(*fit.lines, use)), question.out)


@command(calibrate)
def embedding(
    *,
    cases: Annotated[
        str,
        argument(
            "CASES.yaml|LOG",
            "A file of measured cases; with --device what FBGEMM's benchmark (device, "
            "device-with-speclist) printed.",
        ),
    ],
    data: Annotated[
        str, Option(metavar="FOLDER", help="Folder of the files that cases name.")
    ] = ".",
    device: Annotated[
        str | None, Option(metavar="NAME|FILE", help="The GPU that the benchmark ran on.")
    ] = None,
    out: ConstantsOut = None,
    files: JsonOnly,
) -> None:
    """Fit embedding lookups and updates: a few constants per GPU generation, or of one GPU.

    Every case is also predicted by constants that were fitted without it.
    """
    from perfmodel.extensions.measurements.report import report_embedding_fit

    fit = api.calibrate_embedding(cases, data=data, device=device, out=out)
    rows = [asdict(error) for error in fit.errors]
    document = {"schema_version": 1, "kind": "embedding", "rows": rows}
    files.write(report_embedding_fit(fit.errors), lambda: document)
    if files.is_printed:
        print(
            "Nothing written; --out FILE writes the constants." if out is None else f"Wrote {out}"
        )


@command(calibrate)
def host(
    table: Annotated[
        str,
        argument("TABLE.csv", "host_overheads.csv of `trace extract`."),
    ],
    out: Annotated[str, Option(metavar="STACK.yaml", help="The stack file to write.")],
    extends: Annotated[
        str, Option(metavar="STACK", help="Stack to take everything but host times from.")
    ] = "pytorch_eager",
) -> None:
    """Make a software stack from recorded host overheads."""
    from perfmodel.extensions.measurements.report import report_host_stack

    Outputs().write(report_host_stack(api.calibrate_host(table, out, extends=extends)), dict)
    print(f"Wrote {out}")
    print(f"perfmodel predict --job JOB --topology NAME --stack {out}")
