"""`perfmodel collective`: one collective, a sweep over sizes, or two at the same time."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collectives.collective import (
    CollectiveKind,
    parse_algorithm,
    parse_kind,
    parse_nccl_version,
    parse_protocol,
)
from perfmodel.base.errors import InputError
from perfmodel.base.reading import check_end, read_packed_text
from perfmodel.base.units import parse_size
from perfmodel.base.writing import STDOUT, write_output
from perfmodel.cli.options import CalibrationFiles, JsonFile, Machine, parse_ranks

if TYPE_CHECKING:
    from perfmodel.reports.collective import CollectiveAnswer, SizeSweep

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
    topology: Machine,
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
    from perfmodel import api

    software = api.CollectiveSoftware(
        nccl_version=parse_nccl_version(nccl_version),
        algorithm=None if algorithm is None else parse_algorithm(algorithm),
        protocol=None if protocol is None else parse_protocol(protocol),
    )
    of_whom: dict[str, Any] = {
        "topology": topology,
        "hosts": hosts,
        "ranks": _read_ranks(ranks),
        "dtype": dtype,
        "software": software,
        "calibration": tuple(calibration or ()),
    }
    answer: CollectiveAnswer | SizeSweep
    if sweep:
        answer = api.sweep_collective(kind.value, measured=measured or (), **of_whom)
        if plot is not None:
            answer.plot(plot)
    else:
        if plot is not None or measured:
            raise InputError("collective: --plot and --measured go with --sweep. Add --sweep.")
        answer = api.ask_collective(
            kind.value,
            _size_of(kind, size, byte_matrix),
            beside=[_read_beside(text) for text in beside or ()],
            byte_matrix=None if byte_matrix is None else load_byte_matrix(byte_matrix),
            **of_whom,
        )
    _put(answer, json_file)
    if plot is not None and json_file != STDOUT:
        print(f"wrote {plot}")


def _put(answer: CollectiveAnswer | SizeSweep, json_file: str | None) -> None:
    if json_file is not None:
        import orjson

        options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
        write_output(json_file, orjson.dumps(answer.to_dict(), option=options).decode() + "\n")
    if json_file != STDOUT:
        print("\n".join(answer.lines()))


def _size_of(kind: CollectiveKind, size: str | None, byte_matrix: Path | None) -> int:
    if size is not None:
        return parse_size(size)
    if kind is CollectiveKind.BARRIER or byte_matrix is not None:
        return 0
    raise InputError(f"{kind.value}: needs --size, such as 64MiB, or --sweep.")


def _read_ranks(text: str | None) -> int | tuple[int, ...] | None:
    """How many ranks, or which."""
    if text is None:
        return None
    return int(text) if text.strip().isdecimal() else parse_ranks(text)


def _read_beside(text: str) -> tuple[str, int, tuple[int, ...]]:
    """`KIND:SIZE:LIST`, another collective at the same time."""
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(
            f"--with: must be KIND:SIZE:LIST such as all_reduce:1GiB:1,9, got {text!r}."
        )
    return parts[0], parse_size(parts[1]), parse_ranks(parts[2])


def load_byte_matrix(path: Path) -> tuple[tuple[int, ...], ...]:
    """Read a byte matrix: one line a sender, bytes to each receiver, separated by commas."""
    text = read_packed_text(path, InputError)
    check_end(text, document=str(path), error_type=InputError)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        return tuple(tuple(int(cell) for cell in row) for row in rows)
    except (csv.Error, ValueError) as fault:
        raise InputError(
            f"{path}: must hold whole numbers of bytes, one line a sender. {str(fault)[:200]}"
        ) from None
