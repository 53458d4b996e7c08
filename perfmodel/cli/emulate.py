"""`perfmodel emulate`: an unmodified torch script runs on virtual GPUs and becomes a job.

What the script prints stays its own; what perfmodel has to say goes to standard error.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import JobOut, Overwrite, Workers

if TYPE_CHECKING:
    from perfmodel.emulation.telling import EmulatedJob

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel emulate --ranks 8 --device h100_sxm --out job -- train.py --batch_size=12
  perfmodel emulate --ranks 1 --device a100_sxm_80gb --out job -- -m my_package.train
  perfmodel emulate --ranks 8 --device h100_sxm --vary batch_size=8,16,32 --out jobs -- train.py
  perfmodel predict --job job --topology dgx_h100
"""


@app.command(
    epilog=EPILOG,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def emulate(
    words: Annotated[
        list[str], typer.Argument(metavar="-- SCRIPT [WORD...]", help="As after `python`.")
    ],
    ranks: Annotated[int, typer.Option(metavar="N", min=1, help="Ranks, one GPU each.")],
    device: Annotated[
        str, typer.Option(metavar="NAME", help="GPU, e.g. h100_sxm or a100_sxm_80gb.")
    ],
    out: JobOut,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V,V...",
            help="One job a setting, below --out: {NAME} in the words, or --NAME V behind them.",
        ),
    ] = None,
    ranks_per_host: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="GPUs of a host: 8, or as many as there are ranks."),
    ] = None,
    overwrite: Overwrite = False,
    all_ranks: Annotated[
        bool, typer.Option("--all-ranks", help="Run every rank, not a few that prove the others.")
    ] = False,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Optimizer steps before the first steady one.")
    ] = 2,
    iterations: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steady iterations to compare; one is written.")
    ] = 1,
    run_on: Annotated[
        bool, typer.Option("--run-on", help="Let the script finish once enough was seen.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="One rank without the environment of torchrun.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.1, help="End a script that takes longer, in seconds."),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="Where crews of ranks run: serial, ray or auto.")
    ] = "auto",
    workers: Workers = None,
) -> None:
    """Run a torch training script on virtual GPUs and write what it asks of them as a job."""
    from perfmodel import api
    from perfmodel.emulation.emulate import ScriptFailedError
    from perfmodel.emulation.request import Emulation

    request = Emulation(
        words=tuple(words),
        ranks=ranks,
        device=device,
        ranks_per_host=ranks_per_host,
        warmup=warmup,
        iterations=iterations,
        all_ranks=all_ranks,
        runs_on=run_on,
        is_plain=plain,
        timeout_s=timeout,
        is_overwriting=overwrite,
    )
    settings = _settings(request.words, vary or [])
    for name, changed in settings.items():
        try:
            told = api.emulate(
                replace(request, words=changed), out / name, executor=executor, workers=workers
            )
        except ScriptFailedError as fault:
            where = f"{name}: " if name else ""
            print(f"perfmodel: {where}{fault}", file=sys.stderr)
            raise typer.Exit(fault.code) from None
        _tell(told, out / name)
    if vary:
        jobs = " ".join(str(out / name) for name in settings)
        print(
            f"perfmodel: {len(settings)} jobs, one a setting. In the order of time and price: "
            f"perfmodel compare {jobs} --topology NAME --price MONEY",
            file=sys.stderr,
        )


def _settings(words: tuple[str, ...], vary: list[str]) -> dict[str, tuple[str, ...]]:
    """The words of the script for every combination of values, by the name of its folder."""
    from itertools import product

    from perfmodel.prediction.comparing import parse_axis

    axes = [parse_axis(text) for text in vary]
    settings = {}
    for values in product(*(axis.values for axis in axes)):
        changed = words
        for axis, value in zip(axes, values, strict=True):
            place = f"{{{axis.key}}}"
            if any(place in word for word in changed):
                changed = tuple(word.replace(place, value) for word in changed)
            else:
                changed = (*changed, f"--{axis.key}", value)
        pairs = zip((axis.key for axis in axes), values, strict=True)
        name = ",".join(f"{key}={value}" for key, value in pairs)
        settings[name.replace("/", "_")] = changed
    return settings


def _tell(told: EmulatedJob, out: Path) -> None:
    assert told.job is not None
    lines = [
        *told.notices,
        f"{told.source}.",
        *told.assumptions,
        (
            f"{told.job.rank_count} ranks, {told.job.program_of(0).task_count} tasks of rank 0, "
            f"stack {told.stack}: written to {out}."
        ),
    ]
    for line in lines:
        print(f"perfmodel: {line}", file=sys.stderr)
