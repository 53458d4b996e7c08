"""Options that several commands have in common, so that they read alike everywhere."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.base.errors import InputError

MAX_LISTED_RANKS = 1_000_000


class ExecutorChoice(Enum):
    """The places where replays can run."""

    AUTO = "auto"
    SERIAL = "serial"
    RAY = "ray"


def executor_word(choice: ExecutorChoice | None) -> str | None:
    """The word for a *choice*, if one was made."""
    return None if choice is None else choice.value


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


Machine = Annotated[
    str,
    typer.Option(
        "--topology",
        metavar="NAME|FILE",
        help="Machine: a file or a name from `perfmodel topology list`.",
    ),
]
RanksPerHost = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Ranks on each host, e.g. 4; default: one per GPU."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a workload field, e.g. batch=4096; repeatable."
    ),
]
TablesFile = Annotated[
    Path | None,
    typer.Option(
        "--tables", metavar="FILE", help="Tables instead of the model's: YAML, CSV or JSON."
    ),
]
IndicesFile = Annotated[
    Path | None,
    typer.Option(
        "--indices", metavar="FILE", help="Real indices of those tables: npz, parquet or pt."
    ),
]
Stack = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE", help="Software stack, e.g. pytorch_eager; default: the workload's."
    ),
]
Isolated = Annotated[
    bool, typer.Option("--isolated", help="Answer with one iteration that starts at a barrier.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all draws.")]
Samples = Annotated[
    int,
    typer.Option(metavar="N", min=2, help="How often uncertain costs are drawn for the interval."),
]
Price = Annotated[
    float | None, typer.Option(metavar="MONEY", min=0, help="Price of a GPU for an hour.")
]
JobOut = Annotated[Path, typer.Option("--out", metavar="JOB", help="Folder to write the job to.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a job that is in the folder already.")
]
ExecutorOption = Annotated[
    ExecutorChoice, typer.Option(help="Where the work is done; auto takes Ray where it pays.")
]
NearExecutorOption = Annotated[
    ExecutorChoice | None,
    typer.Option(
        "--executor",
        help="Where the work is done; default: ray with an address or workers, else serial.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Ray workers; default: one per CPU core.")
]
RayAddress = Annotated[
    str | None, typer.Option(metavar="ADDR", help="Join this Ray cluster, e.g. host:6379.")
]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the answer as JSON; - is stdout."),
]
JobMachine = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Machine, for jobs of shapes without durations."),
]
JobHosts = Annotated[int | None, typer.Option(metavar="N", min=1, help="Hosts of that machine.")]
JobStack = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Software stack; default: the job's or pytorch_eager."),
]
CalibrationFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="Constants that `calibrate ... --out FILE` fitted to your machine; repeatable.",
    ),
]
CsvFile = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write one line per row as CSV.")
]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write a web page.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]
