"""`perfmodel collective`: one collective, or a sweep over sizes."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.options import Option
from perfmodel.cli.commands import command
from perfmodel.cli.options import Outputs, parse_ranks
from perfmodel.prediction.scenario import CalibrationFiles, Faults, Hosts, Machine

EPILOG = """\b
Examples:
  perfmodel collective --topology dgx_h100 --kind all_reduce --size 64MiB
  perfmodel collective --topology dgx_h100 --hosts 4 --kind all_to_all --size 256MiB
  perfmodel collective --topology dgx_a100 --kind all_gather --ranks 4 --sweep --report sweep.html
  perfmodel collective --topology dgx_h100 --hosts 2 --kind all_reduce --size 1GiB \\
      --ranks 0,8
  perfmodel collective --topology dgx_h100 --kind all_reduce --size 1GiB --fault "gpu:3 nvlink"
"""


def _parse_members(text: str) -> int | tuple[int, ...]:
    """How many ranks, or which."""
    return int(text) if text.strip().isdecimal() else parse_ranks(text)


def load_byte_matrix(path: str) -> tuple[tuple[int, ...], ...]:
    """Read a byte matrix: one line per sender, bytes to each receiver, separated by commas."""
    from perfmodel.base.reading import check_end, read_packed_text

    text = read_packed_text(Path(path), InputError)
    check_end(text, document=path, error_type=InputError)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        return tuple(tuple(int(cell) for cell in row) for row in rows)
    except (csv.Error, ValueError) as fault:
        raise InputError(
            f"{path}: must hold whole numbers of bytes, one line per sender. {str(fault)[:200]}"
        ) from None


@dataclass(frozen=True)
class CollectiveQuestion:
    """One collective on a machine, or a sweep over its sizes."""

    topology: Machine
    kind: Annotated[
        str,
        Option(
            metavar="KIND",
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...",
        ),
    ]
    size: Annotated[
        str | None, Option(metavar="SIZE", help="Bytes as nccl-tests counts them, e.g. 64MiB.")
    ] = None
    hosts: Hosts = 1
    ranks: Annotated[
        int | tuple[int, ...] | None,
        Option(
            metavar="N|LIST", parse=_parse_members, help="How many ranks, or which: 8, or 0-3,8-11."
        ),
    ] = None
    byte_matrix: Annotated[
        tuple[tuple[int, ...], ...] | None,
        Option(
            metavar="FILE",
            parse=load_byte_matrix,
            help="Uneven all_to_all: CSV, row i is what rank i sends.",
        ),
    ] = None
    sweep: Annotated[bool, Option(help="All sizes from 512 B to 1 GiB instead of one.")] = False
    algorithm: Annotated[
        str | None,
        Option(name="--collective-algorithm", metavar="NAME", help="Force ring, tree, nvls ..."),
    ] = None
    protocol: Annotated[
        str | None, Option(name="--nccl-proto", metavar="NAME", help="Force ll, ll128 or simple.")
    ] = None
    nccl_version: Annotated[str, Option(metavar="X.Y", help="NCCL version, e.g. 2.23.")] = "2.27"
    dtype: Annotated[str, Option(metavar="NAME", help="Number format, e.g. int8.")] = "fp32"
    calibration: CalibrationFiles = ()
    faults: Faults = ()

    @property
    def group(self) -> dict[str, Any]:
        """The ranks and their software, as `perfmodel.api` takes them."""
        from collectives.collective import parse_algorithm, parse_nccl_version, parse_protocol

        software = api.CollectiveSoftware(
            nccl_version=parse_nccl_version(self.nccl_version),
            algorithm=None if self.algorithm is None else parse_algorithm(self.algorithm),
            protocol=None if self.protocol is None else parse_protocol(self.protocol),
        )
        own = ("topology", "hosts", "ranks", "dtype", "calibration", "faults")
        return {name: getattr(self, name) for name in own} | {"software": software}


@command(epilog=EPILOG)
def collective(
    question: CollectiveQuestion, files: Annotated[Outputs, "json_file", "report_file", "is_strict"]
) -> None:
    """Price a collective: time, bus bandwidth, algorithm, busiest link, share of latency."""
    from collectives.collective import parse_kind
    from perfmodel.reports.op_prices import report_collective, report_sizes

    kind, group = parse_kind(question.kind).value, question.group
    if question.sweep:
        found = api.sweep_collective(kind, **group)
        files.write(report_sizes(found), found.to_dict)
        return
    if question.size is None and kind != "barrier" and question.byte_matrix is None:
        raise InputError(f"{kind}: needs --size, such as 64MiB, or --sweep.")
    answer = api.ask_collective(kind, question.size or 0, byte_matrix=question.byte_matrix, **group)
    files.write(report_collective(answer), answer.to_dict)
