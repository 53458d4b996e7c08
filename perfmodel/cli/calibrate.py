"""`perfmodel calibrate`: fit constants to measured tables, or see how well they hold.

With `--cross-validate` nothing is written: every row is predicted by a fit
that did not see it, in the same form as `perfmodel validate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.base.errors import InputError
from perfmodel.cli.calibrate_interference import calibrate_interference_command
from perfmodel.cli.collective_tables import calibrate_collectives_command
from perfmodel.cli.embedding_cases import calibrate_embedding_command
from perfmodel.cli.measure import measure_command
from perfmodel.cli.options import JsonFile

if TYPE_CHECKING:
    from perfmodel.costs.tables.kernel_table import KernelTable
    from perfmodel.validation.scoreboard import Scoreboard

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
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the constants.")]


@app.command()
def gemm(
    tables: Tables, folds: Folds = None, by: By = None, out: Out = None, json_file: JsonFile = None
) -> None:
    """Fit matrix products: physics constants and a small correction a GPU."""
    from perfmodel.calibration.kernel_fits import preferred_rows
    from perfmodel.costs.tables.gemm_table import load_gemm_table

    table = preferred_rows(_joined([load_gemm_table(path) for path in tables]))
    _run("gemm", table, _Request(tables, folds, by or "batch,m,n,k", out, json_file))


@app.command()
def attention(
    tables: Tables, folds: Folds = None, by: By = None, out: Out = None, json_file: JsonFile = None
) -> None:
    """Fit attention: physics constants and a small correction a GPU and kernel."""
    from perfmodel.costs.tables.attention_table import load_attention_table

    table = _joined([load_attention_table(path) for path in tables])
    shape = "batch_size,isl,num_heads,num_key_value_heads,head_dim"
    _run("attention", table, _Request(tables, folds, by or shape, out, json_file))


@app.command()
def memory(
    tables: Tables, folds: Folds = None, by: By = None, out: Out = None, json_file: JsonFile = None
) -> None:
    """Fit memory-bound kernels: a traffic curve an operator and GPU."""
    from perfmodel.costs.tables.memory_table import load_memory_table

    table = _joined([load_memory_table(path) for path in tables])
    _run("memory", table, _Request(tables, folds, by or "shape", out, json_file))


app.command("collectives")(calibrate_collectives_command)
app.command("embedding")(calibrate_embedding_command)
app.command("interference")(calibrate_interference_command)
app.command("measure")(measure_command)


class _Request:
    """What was typed: tables, folds, and where the answer goes."""

    def __init__(
        self, tables: list[Path], folds: int | None, by: str, out: Path | None, json: str | None
    ) -> None:
        self.tables, self.folds, self.out, self.json_file = tables, folds, out, json
        self.by = tuple(word.strip() for word in by.split(",") if word.strip())


def _joined(tables: list[KernelTable]) -> KernelTable:
    from perfmodel.calibration.kernel_fits import join_tables

    return join_tables(tables)


def _run(kind: str, table: KernelTable, request: _Request) -> None:
    if request.folds is None:
        _write(kind, table, request)
    else:
        _report(kind, table, request)


def _write(kind: str, table: KernelTable, request: _Request) -> None:
    from datetime import UTC, datetime

    from perfmodel.calibration.kernel_fits import about_tables, fit_entries
    from perfmodel.costs.calibration_files import entries_to_text

    if request.out is None:
        raise InputError(
            f"calibrate {kind}: must know where to write. Give --out FILE, or --cross-validate K "
            "to see held-out errors only."
        )
    names = " ".join(str(path) for path in request.tables)
    command = f"perfmodel calibrate {kind} {names} --out {request.out}"
    about = about_tables(kind, command=command, day=datetime.now(UTC).date())
    entries = fit_entries(kind, table)
    request.out.write_text(entries_to_text(about, entries), encoding="utf-8")
    print(f"Wrote {len(entries)} sets of constants to {request.out}")


def _report(kind: str, table: KernelTable, request: _Request) -> None:
    from perfmodel.calibration.kernel_fits import cross_validate
    from perfmodel.validation.kernels import build_deviations
    from perfmodel.validation.scoreboard import Scoreboard, Unsupported

    assert request.folds is not None
    held_out = cross_validate(kind, table, folds=request.folds, by=request.by)
    deviations = build_deviations(held_out.kernels, held_out.estimates)
    unsupported = tuple(Unsupported(row.row, row.reason) for row in table.unsupported)
    whole = Scoreboard(kind, deviations, unsupported)
    long_rows = tuple(one for one in deviations if one.measured * 1e6 > LONG_ROWS_NS)
    _show(whole, Scoreboard(kind, long_rows), request.json_file)


def _show(whole: Scoreboard, long_rows: Scoreboard, json_file: str | None) -> None:
    import json
    import sys

    document = {**whole.to_json(), "above_10_us": long_rows.to_json()}
    if json_file == "-":
        sys.stdout.write(json.dumps(document) + "\n")
        return
    if json_file is not None:
        Path(json_file).write_text(json.dumps(document) + "\n", encoding="utf-8")
    print("Held-out rows above 10 us:")
    print("\n".join(long_rows.lines()))
    print("All held-out rows:")
    print("\n".join(whole.lines()))
