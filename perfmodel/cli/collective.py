"""`perfmodel collective`: one collective, a sweep over sizes, or two at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collectives.collective import CollectiveKind, parse_kind
from perfmodel.base.errors import InputError
from perfmodel.base.writing import STDOUT, write_output
from perfmodel.cli.options import CalibrationFiles, JsonFile

if TYPE_CHECKING:
    from perfmodel.cli.collective_request import CollectiveRequest

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel collective --topology dgx_h100 --kind all_reduce --size 64MiB
  perfmodel collective --topology dgx_h100 --hosts 4 --kind all_to_all --size 256MiB
  perfmodel collective --topology dgx_a100 --kind all_gather --ranks 4 --sweep --plot sweep.png
  perfmodel collective --topology dgx_h100 --hosts 2 --kind all_reduce --size 1GiB \\
      --ranks 0,8 --with all_reduce:1GiB:1,9
"""


@app.command(epilog=EPILOG)
def collective(
    topology: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="Machine: a file or a name of the catalog."),
    ],
    kind: Annotated[
        CollectiveKind,
        typer.Option(
            parser=parse_kind,
            metavar="KIND",
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...",
        ),
    ],
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bytes as nccl-tests counts them, e.g. 64MiB."),
    ] = None,
    hosts: Annotated[int, typer.Option(metavar="N", min=1, help="Number of hosts, e.g. 4.")] = 1,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="N|LIST", help="How many ranks, or which: 8, or 0-3,8-11."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="KIND:SIZE:LIST",
            help="Another collective at the same time, e.g. all_reduce:1GiB:1,9; repeatable.",
        ),
    ] = None,
    byte_matrix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Uneven all_to_all: CSV, row i is what rank i sends."),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="All sizes from 512 B to 1 GiB instead of one.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture of the sweep, e.g. sweep.png.")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(metavar="TABLE", help="Measured points beside the sweep; repeatable."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option("--collective-algorithm", metavar="NAME", help="Force ring, tree, nvls ..."),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option("--nccl-proto", metavar="NAME", help="Force ll, ll128 or simple.")
    ] = None,
    nccl_version: Annotated[
        str, typer.Option(metavar="X.Y", help="Release of NCCL, e.g. 2.23.")
    ] = "2.27",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="Number format, e.g. int8.")] = "fp32",
    calibration: CalibrationFiles = None,
    json_file: JsonFile = None,
) -> None:
    """Price a collective: time, bus bandwidth, algorithm, busiest link, share of latency."""
    from perfmodel.cli.collective_request import build_request

    request = build_request(
        topology=topology,
        hosts=hosts,
        ranks=ranks,
        kind=kind,
        software=(nccl_version, algorithm, protocol),
        dtype=dtype,
        calibration=tuple(calibration or ()),
    )
    if sweep:
        answer, lines = _sweep(request, plot, measured or [])
    else:
        _check_single(plot, measured)
        answer, lines = _single(request, size, beside or [], byte_matrix)
    _put(answer, lines, json_file)


def _check_single(plot: Path | None, measured: list[Path] | None) -> None:
    if plot is not None or measured:
        raise InputError("collective: --plot and --measured go with --sweep. Add --sweep.")


def _single(
    request: CollectiveRequest, size: str | None, beside: list[str], byte_matrix: Path | None
) -> tuple[dict[str, object], list[str]]:
    from perfmodel.cli.collective_answer import answer_single

    return answer_single(request, size=size, beside=beside, byte_matrix=byte_matrix)


def _sweep(
    request: CollectiveRequest, plot: Path | None, measured: list[Path]
) -> tuple[dict[str, object], list[str]]:
    from perfmodel.cli.collective_sweep import answer_sweep

    return answer_sweep(request, plot=plot, tables=measured)


def _put(answer: dict[str, object], lines: list[str], json_file: str | None) -> None:
    if json_file is not None:
        import orjson

        content = orjson.dumps(answer, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        write_output(json_file, content.decode() + "\n")
    if json_file != STDOUT:
        print("\n".join(lines))
