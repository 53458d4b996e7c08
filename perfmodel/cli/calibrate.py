"""`perfmodel calibrate`: fit constants to measured tables, or see how well they hold.

With `--cross-validate` nothing is written: every row is predicted by a fit
that did not see it, in the same form as `perfmodel validate`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from perfmodel import api
from perfmodel.api.calibrating import RECORDED_LICENCE
from perfmodel.api.measured import KernelKind
from perfmodel.base.errors import InputError
from perfmodel.base.writing import STDOUT, write_json
from perfmodel.cli.options import JsonFile, Quiet
from perfmodel.cli.scores import (
    CollectiveTables,
    Limit,
    RunHosts,
    RunKind,
    RunMachine,
    ScoreFiles,
    show,
)

if TYPE_CHECKING:
    from perfmodel.calibration.embedding import CaseError
    from perfmodel.validation.scoreboard import Scoreboard


class FoldColumn(Enum):
    """The columns whose values can be dealt into folds."""

    SIZE_BYTES = "size_bytes"
    HOSTS = "hosts"
    NRANKS = "nranks"


CALIBRATE_EPILOG = """\b
Examples:
  perfmodel calibrate collectives all_reduce.log --topology dgx_h100 --out my.yaml
  perfmodel predict --topology dgx_h100 --hosts 4 --calibration my.yaml
  perfmodel calibrate collectives table.csv --cross-validate 5
\b
Few rows (six will do, small and large sizes) shift the constants that perfmodel has
for such a machine; 200 or more of machines that it knows are fitted from scratch.
"""


def calibrate_collectives(
    tables: CollectiveTables,
    topology: RunMachine = None,
    hosts: RunHosts = None,
    kind: RunKind = None,
    cross_validate: Annotated[
        int | None,
        typer.Option(metavar="K", min=2, help="Fit on K - 1 of K folds, score the other, e.g. 5."),
    ] = None,
    by: Annotated[
        FoldColumn, typer.Option(help="Column whose values are dealt into folds.")
    ] = FoldColumn.SIZE_BYTES,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:HOSTS]",
            help="Fit without a machine and score it, e.g. dgx_h100:10; repeatable.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the constants here."),
    ] = None,
    licence: Annotated[
        str, typer.Option(metavar="TEXT", help="Licence of the measurements, for the file.")
    ] = "that of the sources",
    limit: Limit = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Fit the constants of collectives, or check a fit on rows it has not seen."""
    from collectives.nccl_tests import RunPlace
    from perfmodel.reports.progress import show_progress

    files = ScoreFiles(json_file, limit)
    files.check()
    place = RunPlace(topology, hosts, kind)
    if leave_out:
        show(api.leave_out_collectives(tables, leave_out, place=place), files)
    if cross_validate is not None:
        with show_progress(is_quiet=quiet) as progress:
            board = api.cross_validate(
                "collectives",
                tables,
                folds=cross_validate,
                by=[by.value],
                place=place,
                on_phase=progress,
            )
        show(board, files)
    if output is not None:
        with show_progress(is_quiet=quiet) as progress:
            lines = api.calibrate_collectives(
                tables, output, place=place, licence=licence, on_phase=progress
            )
        print("\n".join(lines))
        print(f"Wrote {output}")
        print(f"Use it: perfmodel predict --topology {topology or 'NAME'} --calibration {output}")
    elif cross_validate is None and not leave_out:
        raise InputError(
            "calibrate collectives: nothing to do. Give --out FILE to write the constants, "
            "or --cross-validate or --leave-out to check a fit."
        )


def calibrate_embedding(
    cases: Annotated[Path, typer.Argument(metavar="CASES.yaml", help="A file of measured cases.")],
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the files that cases name lie.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the constants.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Fit embedding lookups and updates: a few constants a GPU generation.

    Every case is also predicted by constants that were fitted without it.
    """
    from perfmodel.calibration.embedding import format_errors

    fit = api.calibrate_embedding(cases, data=data, out=out)
    if json_file is not None:
        _write_json(fit.errors, json_file)
    if json_file != STDOUT:
        print("\n".join(format_errors(fit.errors)))
        print(
            "Nothing written; --out FILE writes the constants." if out is None else f"Wrote {out}"
        )


def _write_json(errors: tuple[CaseError, ...], json_file: str) -> None:
    from dataclasses import asdict

    rows = [asdict(error) for error in errors]
    write_json(json_file, {"schema_version": 1, "kind": "embedding", "rows": rows})


class DeviceChoice(Enum):
    """What can be measured."""

    CPU = "cpu"
    CUDA = "cuda"


def measure(
    device: Annotated[DeviceChoice, typer.Option(help="What to measure on this machine.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE.yaml", help="Topology to write; the device goes beside.")
    ],
    ranks: Annotated[
        int, typer.Option(metavar="N", min=1, help="Ranks of the collectives; 1 measures none.")
    ] = 2,
    samples: Annotated[
        int, typer.Option(metavar="N", min=3, help="Samples of every kernel and collective.")
    ] = 9,
) -> None:
    """Measure kernels and collectives of this machine and write files that predict accepts."""
    found = api.measure_machine(
        device.value, out, ranks=ranks, samples=samples, on_phase=lambda one, _: print(f"{one} ...")
    )
    for family, error in found.errors.items():
        print(
            f"{family:<12} {error.count:>3} measured   median error {error.median_pct:5.1f} %   "
            f"bias {error.bias_pct:+6.1f} %"
        )
    print(
        f"others had the core {100 * found.lost_ratio:.0f} % of the time; samples spread over "
        f"{100 * found.spread_ratio:.0f} %"
    )
    print(f"Wrote {found.topology} and {found.device}")
    hosts = f" --hosts {ranks}" if device is DeviceChoice.CPU and ranks > 1 else ""
    print(f"perfmodel predict --topology {found.topology} --stack {found.stack}{hosts}")


def calibrate_host(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE.csv", help="host_overheads.csv of `trace extract`.")
    ],
    out: Annotated[Path, typer.Option(metavar="STACK.yaml", help="The stack file to write.")],
    extends: Annotated[
        str, typer.Option(metavar="STACK", help="Stack that says all but host times.")
    ] = "pytorch_eager",
) -> None:
    """Make a software stack of host overheads that were recorded."""
    stack = api.calibrate_host(table, out, extends=extends)
    print(
        f"Wrote {out}: {len(stack.host.operators)} operators, launch "
        f"{stack.host.launch_ns / 1e3:.1f} us, {stack.host.between_operators_ns / 1e3:.1f} us "
        "between operators"
    )
    print(f"perfmodel predict --job JOB --topology NAME --stack {out}")


def calibrate_interference(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACES...", help="Kineto traces: files, or folders of jobs."),
    ],
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU of traces that name none: mi300x.")
    ] = None,
    licence: Annotated[
        str, typer.Option(metavar="TEXT", help="Licence of the recorded figures.")
    ] = RECORDED_LICENCE,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the constants.")
    ] = None,
) -> None:
    """Fit how much kernels slow down beside collectives, from recorded jobs."""
    from perfmodel.calibration.interference import slowdown_of

    fitted = api.calibrate_interference(traces, device=device, out=out, licence=licence)
    print(f"{'generation':<12}{'family':<11}{'phase':<9}{'kernels':>7}  measured (90 %)       used")
    for architecture, cells in sorted(fitted.of_architecture.items()):
        for (family, phase), cell in cells.items():
            seen, words = cell.seen, "assumed"
            if seen is not None:
                low, high = slowdown_of(seen.low_ratio), slowdown_of(seen.high_ratio)
                words = f"{slowdown_of(seen.mean_ratio):.3f} ({low:.3f} to {high:.3f})"
            count = 0 if seen is None else seen.kernels
            print(
                f"{architecture:<12}{family:<11}{phase.word:<9}{count:>7}  {words:<24}"
                f"{cell.slowdown:.3f}"
            )
    if out is not None:
        print(f"Wrote {out}")


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

LONG_ROWS_NS = 10_000.0
"""Rows above this are reported first: shorter ones are mostly launch and timer."""

Tables = Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Tables of measurements.")]
Folds = Annotated[
    int | None,
    typer.Option("--cross-validate", metavar="K", min=2, help="Report errors on held-out folds."),
]
By = Annotated[
    str | None, typer.Option(metavar="COLUMNS", help="Rows equal in these share a fold: m,n,k.")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write; into a folder goes one file per GPU."),
]


KERNELS: dict[KernelKind, str] = {
    "gemm": "matrix products: physics constants and a small correction a GPU",
    "attention": "attention: physics constants and a small correction a GPU and kernel",
    "experts": "layers of experts: ten constants a GPU, kernel and format",
    "memory": "memory-bound kernels: a traffic curve an operator and GPU",
}


def _kernel_command(kind: KernelKind) -> Callable[..., None]:
    def command(
        tables: Tables,
        folds: Folds = None,
        by: By = None,
        out: Out = None,
        json_file: JsonFile = None,
        quiet: Quiet = False,
    ) -> None:
        if folds is not None:
            columns = tuple(word.strip() for word in (by or "").split(",") if word.strip())
            _report(kind, tables, _Folds(folds, columns), json_file, is_quiet=quiet)
        else:
            _write(kind, tables, out, is_quiet=quiet)

    return command


for _kind, _what in KERNELS.items():
    app.command(_kind, help=f"Fit {_what}.")(_kernel_command(_kind))
app.command("collectives", epilog=CALIBRATE_EPILOG)(calibrate_collectives)
app.command("embedding")(calibrate_embedding)
app.command("interference")(calibrate_interference)
app.command("host")(calibrate_host)
app.command("measure")(measure)


def _write(kind: KernelKind, tables: list[Path], out: Path | None, *, is_quiet: bool) -> None:
    from perfmodel.reports.progress import show_progress

    if out is None:
        raise InputError(
            f"calibrate {kind}: must know where to write. Give --out FILE, or --cross-validate K "
            "to see held-out errors only."
        )
    with show_progress(is_quiet=is_quiet) as progress:
        count = api.calibrate_kernels(kind, tables, out, on_phase=progress)
    print(f"Wrote {count} sets of constants to {out}")


class _Folds(NamedTuple):
    """In how many folds rows are dealt, and the columns whose values keep rows together in one."""

    number: int
    by: tuple[str, ...]


def _report(
    kind: KernelKind, tables: list[Path], folds: _Folds, json_file: str | None, *, is_quiet: bool
) -> None:
    from perfmodel.reports.progress import show_progress
    from perfmodel.validation.scoreboard import Scoreboard

    with show_progress(is_quiet=is_quiet) as progress:
        whole = api.cross_validate(kind, tables, folds=folds.number, by=folds.by, on_phase=progress)
    long_rows = tuple(one for one in whole.deviations if one.measured * 1e6 > LONG_ROWS_NS)
    _show(whole, Scoreboard(kind, long_rows), json_file)


def _show(whole: Scoreboard, long_rows: Scoreboard, json_file: str | None) -> None:
    write_json(json_file, {**whole.to_json(), "above_10_us": long_rows.to_json()})
    if json_file == STDOUT:
        return
    print("Held-out rows above 10 us:")
    print("\n".join(long_rows.lines()))
    print("All held-out rows:")
    print("\n".join(whole.lines()))
