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
from perfmodel.api.measured import KernelKind
from perfmodel.base.errors import InputError
from perfmodel.base.writing import STDOUT, write_file, write_output
from perfmodel.cli.collective_tables import CALIBRATE_EPILOG, calibrate_collectives_command
from perfmodel.cli.options import JsonFile, Quiet

if TYPE_CHECKING:
    from perfmodel.calibration.embedding.fit import CaseError
    from perfmodel.validation.scoreboard import Scoreboard


def calibrate_embedding_command(
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
    from datetime import UTC, datetime

    from perfmodel.calibration.embedding.cases import load_cases
    from perfmodel.calibration.embedding.fit import fit_embedding, format_errors, write_constants

    loaded = load_cases(cases, data=data)
    fit = fit_embedding(loaded.cases)
    if out is not None:
        command = f"perfmodel calibrate embedding {cases} --data {data}"
        day = datetime.now(UTC).date().isoformat()
        write_constants(fit, {**loaded.about, "date": day, "command": command}, out)
    if json_file is not None:
        _write_json(fit.errors, json_file)
    if json_file != STDOUT:
        print("\n".join(format_errors(fit.errors)))
        print(
            "Nothing written; --out FILE writes the constants." if out is None else f"Wrote {out}"
        )


def _write_json(errors: tuple[CaseError, ...], json_file: str) -> None:
    import json
    from dataclasses import asdict

    rows = [asdict(error) for error in errors]
    text = json.dumps({"schema_version": 1, "kind": "embedding", "rows": rows}) + "\n"
    write_output(json_file, text)


class DeviceChoice(Enum):
    """What can be measured."""

    CPU = "cpu"
    CUDA = "cuda"


def measure_command(
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
    from perfmodel.calibration.measure.command import MeasureRequest, measure_machine

    request = MeasureRequest(device.value, out, ranks, samples)
    found = measure_machine(request, on_phase=lambda phase: print(f"{phase} ..."))
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


def calibrate_host_command(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE.csv", help="host_overheads.csv of `trace extract`.")
    ],
    out: Annotated[Path, typer.Option(metavar="STACK.yaml", help="The stack file to write.")],
    extends: Annotated[
        str, typer.Option(metavar="STACK", help="Stack that says all but host times.")
    ] = "pytorch_eager",
) -> None:
    """Make a software stack of host overheads that were recorded."""
    from datetime import UTC, datetime

    from perfmodel.calibration.host import HostSource, build_host_stack, load_host_lines
    from perfmodel.stacks.profiles import load_stack

    lines = load_host_lines(table)
    about = HostSource(
        name=out.stem,
        extends=extends,
        source=f"perfmodel calibrate host {table.name}",
        date=datetime.now(UTC).date().isoformat(),
        licence=LICENCE,
    )
    write_file(out, build_host_stack(lines, about))
    stack = load_stack(out)
    print(
        f"Wrote {out}: {len(stack.host.operators)} operators, launch "
        f"{stack.host.launch_ns / 1e3:.1f} us, {stack.host.between_operators_ns / 1e3:.1f} us "
        "between operators"
    )
    print(f"perfmodel predict --job JOB --topology NAME --stack {out}")


LICENCE = "figures of the recordings under their own licences; this file Apache-2.0"


def calibrate_interference_command(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACES...", help="Kineto traces: files, or folders of jobs."),
    ],
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU of traces that name none: mi300x.")
    ] = None,
    licence: Annotated[
        str, typer.Option(metavar="TEXT", help="Licence of the recorded figures.")
    ] = LICENCE,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the constants.")
    ] = None,
) -> None:
    """Fit how much kernels slow down beside collectives, from recorded jobs."""
    from datetime import UTC, datetime

    from perfmodel.calibration.interference.command import about_traces, fit_interference, to_text
    from perfmodel.calibration.interference.fit import slowdown_of

    fitted = fit_interference(traces, device=device)
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
        named = f" --device {device}" if device else ""
        command = f"perfmodel calibrate interference {' '.join(map(str, traces))}{named}"
        day = datetime.now(UTC).date()
        about = about_traces(fitted, command=command, licence=licence, day=day)
        write_file(out, to_text(fitted, about=about))
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


KERNELS: dict[KernelKind, tuple[str, str]] = {
    "gemm": ("matrix products: physics constants and a small correction a GPU", "batch,m,n,k"),
    "attention": (
        "attention: physics constants and a small correction a GPU and kernel",
        "batch_size,isl,num_heads,num_key_value_heads,head_dim",
    ),
    "experts": ("layers of experts: ten constants a GPU, kernel and format", "shape"),
    "memory": ("memory-bound kernels: a traffic curve an operator and GPU", "shape"),
}
"""What is fitted, and the columns whose values keep rows together in a fold."""


def _kernel_command(kind: KernelKind, shape: str) -> Callable[..., None]:
    def command(
        tables: Tables,
        folds: Folds = None,
        by: By = None,
        out: Out = None,
        json_file: JsonFile = None,
        quiet: Quiet = False,
    ) -> None:
        if folds is not None:
            columns = tuple(word.strip() for word in (by or shape).split(",") if word.strip())
            _report(kind, tables, _Folds(folds, columns), json_file, is_quiet=quiet)
        else:
            _write(kind, tables, out, is_quiet=quiet)

    return command


for _kind, (_what, _shape) in KERNELS.items():
    app.command(_kind, help=f"Fit {_what}.")(_kernel_command(_kind, _shape))
app.command("collectives", epilog=CALIBRATE_EPILOG)(calibrate_collectives_command)
app.command("embedding")(calibrate_embedding_command)
app.command("interference")(calibrate_interference_command)
app.command("host")(calibrate_host_command)
app.command("measure")(measure_command)


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
    from perfmodel.api.measured import load_kernels
    from perfmodel.calibration.kernels import cross_validate
    from perfmodel.reports.progress import show_progress
    from perfmodel.validation.kernels import build_deviations
    from perfmodel.validation.scoreboard import Scoreboard, Unsupported

    table = load_kernels(kind, tables)
    with show_progress(is_quiet=is_quiet) as progress:
        held_out = cross_validate(kind, table, folds=folds.number, by=folds.by, on_phase=progress)
    deviations = build_deviations(held_out.kernels, held_out.estimates)
    unsupported = tuple(Unsupported(row.row, row.reason) for row in table.unsupported)
    whole = Scoreboard(kind, deviations, unsupported)
    long_rows = tuple(one for one in deviations if one.measured * 1e6 > LONG_ROWS_NS)
    _show(whole, Scoreboard(kind, long_rows), json_file)


def _show(whole: Scoreboard, long_rows: Scoreboard, json_file: str | None) -> None:
    import json

    document = {**whole.to_json(), "above_10_us": long_rows.to_json()}
    write_output(json_file, json.dumps(document) + "\n")
    if json_file == STDOUT:
        return
    print("Held-out rows above 10 us:")
    print("\n".join(long_rows.lines()))
    print("All held-out rows:")
    print("\n".join(whole.lines()))
