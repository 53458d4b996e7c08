"""Options that several commands have in common, so that they read alike everywhere."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class ExecutorChoice(Enum):
    """The places where replays can run."""

    AUTO = "auto"
    SERIAL = "serial"
    RAY = "ray"


def executor_word(choice: ExecutorChoice | None) -> str | None:
    """The word for a *choice*, if one was made."""
    return None if choice is None else choice.value


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
