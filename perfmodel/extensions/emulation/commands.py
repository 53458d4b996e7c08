"""`perfmodel emulate`: run an unmodified torch script on virtual GPUs and write its job.

The output of the script stays its own; messages of perfmodel go to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel import api
from perfmodel.base.errors import EmulationError
from perfmodel.base.options import Option
from perfmodel.base.writing import printable_lines
from perfmodel.cli.commands import command
from perfmodel.cli.options import JobOut, RunOptions
from perfmodel.extensions.emulation.request import Emulation

if TYPE_CHECKING:
    from perfmodel.extensions.emulation.summary import EmulatedJob

EPILOG = """\b
Examples:
  perfmodel emulate --ranks 8 --device h100_sxm --out job -- train.py --batch_size=12
  perfmodel emulate --ranks 1 --device a100_sxm_80gb --out job -- -m my_package.train
  perfmodel emulate --ranks 8 --device h100_sxm --vary batch_size=8,16,32 --out jobs -- train.py
  perfmodel predict --job job --topology dgx_h100
"""


@command(
    epilog=EPILOG,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def emulate(
    *,
    request: Emulation,
    out: JobOut,
    vary: Annotated[
        tuple[str, ...],
        Option(
            metavar="NAME=V,V...",
            help="One job per value, below --out: {NAME} in the script's arguments, or --NAME V "
            "after them.",
        ),
    ] = (),
    run: Annotated[RunOptions, "executor", "workers"],
) -> None:
    """Run an unmodified torch script with your rights on virtual GPUs, and write a job.

    Emulate only code that you would run yourself.
    """
    settings = settings_of(request.words, vary)
    faults: dict[str, EmulationError] = {}
    for name, changed in settings.items():
        try:
            emulated = api.emulate(
                replace(request, words=changed),
                Path(out, name),
                executor=run.executor or "auto",
                workers=run.workers,
            )
        except EmulationError as fault:
            if not vary:
                _say(str(fault))
                raise typer.Exit(getattr(fault, "code", 1)) from None
            faults[name] = fault
        else:
            _report(emulated, Path(out, name))
    if vary:
        _report_settings(list(settings), faults, out)


def _report_settings(names: Sequence[str], faults: Mapping[str, EmulationError], out: str) -> None:
    """One line per setting; a setting that fails is a result, all of them failing is an error."""
    for name in names:
        _say(f"{name}: {faults[name]}" if name in faults else f"{name}: {Path(out, name)}")
    jobs = [str(Path(out, name)) for name in names if name not in faults]
    if not jobs:
        raise typer.Exit(getattr(faults[names[0]], "code", 1))
    failed = f", {len(faults)} without one" if faults else ""
    _say(
        f"{len(jobs)} jobs, one per setting{failed}. To order them by time and price: "
        f"perfmodel compare {' '.join(jobs)} --topology NAME --price MONEY"
    )


def settings_of(words: tuple[str, ...], vary: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The words of the script for every combination of values, by name of the job's folder."""
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


def _report(emulated: EmulatedJob, out: Path) -> None:
    job, facts = emulated.job, emulated.job.facts
    lines = [
        *emulated.notices,
        f"{facts.source}.",
        *facts.assumptions,
        (
            f"{job.rank_count} ranks, {job.program_of(0).task_count} tasks of rank 0, "
            f"stack {facts.stack}: written to {out}."
        ),
    ]
    for line in lines:
        _say(line)


def _say(line: str) -> None:
    print(f"perfmodel: {printable_lines(line)}", file=sys.stderr)
