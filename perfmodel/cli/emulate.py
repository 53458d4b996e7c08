"""`perfmodel emulate`: an unmodified torch script runs on virtual GPUs and becomes a job.

What the script prints stays its own; what perfmodel has to say goes to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel emulate --ranks 8 --device h100_sxm --out job -- train.py --batch_size=12
  perfmodel emulate --ranks 1 --device a100_sxm_80gb --out job -- -m my_package.train
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
    out: Annotated[Path, typer.Option("--out", metavar="JOB", help="Folder to write the job to.")],
    ranks_per_host: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="GPUs of a host: 8, or as many as there are ranks."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a job that is in the folder already.")
    ] = False,
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
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Ray workers.")] = None,
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
    try:
        told = api.emulate(request, out, executor=executor, workers=workers)
    except ScriptFailedError as fault:
        print(f"perfmodel: {fault}", file=sys.stderr)
        raise typer.Exit(fault.code) from None
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
