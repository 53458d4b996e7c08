"""The command-line interface: `main` runs the command that was typed.

Only the module of that command is imported, and it imports what is heavy inside its functions, so
that `perfmodel --help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
import traceback
from itertools import takewhile
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import perfmodel
from perfmodel.base.errors import PerfModelError
from perfmodel.base.extensions import load_module
from perfmodel.base.writing import printable_lines

COMMANDS = {
    "predict": ("cli.predict:predict", "Predict one iteration: how long, and why."),
    "compare": ("cli.predict:compare", "Compare scenarios, jobs or machines."),
    "rank": ("cli.planning:rank", "Rank sharding plans, fastest first."),
    "embeddings": ("cli.catalog:embeddings", "Inspect index files."),
    "search": ("cli.planning:search", "Find the fastest parallel layout that fits."),
    "fits": ("cli.planning:fits", "Say whether a layout fits in memory, and which ones do."),
    "emulate": (
        "extensions.emulation.commands:emulate",
        "Run a torch script on virtual GPUs, write a job.",
    ),
    "import": (
        "extensions.recordings.commands:import_traces",
        "Turn recorded traces of all ranks into a job.",
    ),
    "replay": ("cli.replay:replay", "Replay a job."),
    "whatif": ("extensions.whatif.commands:whatif", "Change a job and compare."),
    "advise": ("extensions.whatif.commands:advise", "Say what to do first."),
    "trace": ("extensions.recordings.commands:trace", "Inspect recorded traces."),
    "validate": (
        "extensions.measurements.commands.validate:validate",
        "Compare predictions with measurements.",
    ),
    "calibrate": (
        "extensions.measurements.commands.calibrate:calibrate",
        "Fit constants to measurements.",
    ),
    "measure": (
        "extensions.measurements.commands.measure:measure",
        "List kernels worth timing, write a script that times them.",
    ),
    "workload": ("cli.catalog:workload", "List, show and import models."),
    "topology": ("cli.catalog:topology", "List, show, check and import machines."),
    "collective": ("cli.collective:collective", "Price a collective on a machine."),
    "kernel": ("cli.kernel:kernel", "Price a kernel on a GPU."),
    "ui": ("extensions.ui:ui", "Open a local page that answers as you change settings."),
    "init": ("cli.about:init", "Write a commented file to start from."),
    "schema": ("cli.about:schema", "Print the fields of a file that perfmodel reads."),
    "doctor": ("cli.about:doctor", "Check this installation."),
}
"""Where the application of each command is, as `module:name`, and its line in the overview."""

EPILOG = (
    "Example: perfmodel predict llama3_8b --topology dgx_h100.yaml --hosts 2\n\n"
    "Every command explains itself: perfmodel predict --help"
)


_GPUS = "Say how many hosts of the machine with --hosts; a host has all its GPUs."
_DEGREE = "Degrees are fields of the model: --set parallel.tp=2 (pp, cp, ep)."
_FORMAT = (
    "Formats are fields: --set training.precision=bf16, and training.compute=fp8 for what matrix "
    "multiplies use."
)
MEANT = {
    **dict.fromkeys(("--gpus", "--num-gpus", "--n-gpus", "--world-size", "--ranks"), _GPUS),
    **dict.fromkeys(("--nodes", "--nnodes", "--num-nodes"), "Say --hosts."),
    **dict.fromkeys(("--tp", "--pp", "--cp", "--ep", "--dp"), _DEGREE),
    **dict.fromkeys(("--batch", "--batch-size"), "The global batch is a field: --set batch=256."),
    **dict.fromkeys(
        ("--seq-len", "--seq-length", "--sequence-length", "--seqlen"),
        "Tokens of a sample are a field: --set sequence_length=8192.",
    ),
    **dict.fromkeys(("--micro-batch", "--mbs"), "Say --set parallel.micro_batch=1."),
    **dict.fromkeys(("--precision", "--dtype"), _FORMAT),
    **dict.fromkeys(("--machine", "--cluster", "--gpu"), "Say --topology with a machine."),
    "--topology": "This command takes a GPU with --device, or none. Move a job to a machine with "
    "`perfmodel predict --job JOB --topology MACHINE`.",
    **dict.fromkeys(("--model", "--config"), "Say --workload, or name the model first."),
}
"""Options that people type who know other programs, and what to say instead."""


def load_command(name: str) -> Any:
    """The command called *name*, imported."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = typer.main.get_command(getattr(load_module(f"perfmodel.{module}"), attribute))
    found.name = name
    return found


class LazyGroup(TyperGroup):
    """All commands; one is imported when it is resolved, to run or to complete its options."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that *args* name, and the rest; an option it lacks says what is meant."""
        name, found, rest = super().resolve_command(ctx, args)
        command = found and load_command(str(name))
        if command:
            places = (command, *getattr(command, "commands", {}).values())
            known = {option for one in places for param in one.params for option in param.opts}
            for word in takewhile(lambda one: one != "--", rest):
                option = word.partition("=")[0]
                if option in MEANT and option not in known:
                    ctx.fail(f"No such option: {option}. {MEANT[option]}")
        return name, command, rest


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from perfmodel.base.identity import locate_packages, program_identity

        print(f"perfmodel {perfmodel.__version__}, program {program_identity()}")
        for name, place in locate_packages().items():
            print(f"  {name:<12} {place or 'not found'}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def perfmodel_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error; works anywhere on the line."),
    ] = False,
) -> None:
    """Predict how long one training iteration takes on GPUs you do not have."""
    # Both are here for the help text: the callback of version ends the program, and main removes
    # debug from the arguments before they are parsed.
    del version, debug


def _not_loaded() -> None:
    raise AssertionError("a command is loaded when it is resolved")


for _name, (_place, _summary) in COMMANDS.items():
    app.command(_name, help=_summary)(_not_loaded)


DEBUG = "--debug"
COLLECTED_AFTER = (100_000, 20, 20)
"""Thresholds of Python's garbage collector, in new objects and in rounds."""
MOST_LINE = 2000
"""Characters per line of an error message."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command in *arguments* (those of the process by default) and exit."""
    # Imports create many objects that stay: scanning them takes a tenth of a short command.
    gc.set_threshold(*COLLECTED_AFTER)
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows a question mark instead.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code: object = 0
    try:
        app(args=[word for word in given if word != DEBUG], prog_name="perfmodel")
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader (`head`, a pager) has closed the pipe. What is still buffered must not raise
        # again when the interpreter closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as fault:  # The one place that catches broadly.
        _report(fault, is_debug=DEBUG in given)
        code = 1
    sys.exit(code if isinstance(code, int) else 1)


def _report(fault: Exception, *, is_debug: bool) -> None:
    if is_debug:
        traceback.print_exception(fault)
        return
    sentence = _sentence(fault)
    if sentence is None:
        sentence = (
            f"internal fault: {type(fault).__name__}: {fault}\n"
            f"This is a bug of perfmodel, not a mistake in your input. Run again with {DEBUG} to "
            "see the traceback."
        )
    # Names in a message come from files, and must not control the terminal.
    print(f"perfmodel: {printable_lines(sentence)}", file=sys.stderr)


NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
MAKE_ROOM = (
    "Make room on the disk: compiled code is cached next to perfmodel, or in the folder that "
    "NUMBA_CACHE_DIR names."
)


def _sentence(fault: Exception) -> str | None:
    """The message for a fault that is not a bug of perfmodel, or None."""
    if isinstance(fault, PerfModelError):
        lines = str(fault).split("\n")
        # The advice is at the end, so a very long line loses its middle.
        lines = [
            one if len(one) <= MOST_LINE else f"{one[: MOST_LINE - 500]} ... {one[-500:]}"
            for one in lines
        ]
        return "\n".join(lines)
    if isinstance(fault, ModuleNotFoundError) and fault.name == "torch":
        return "this needs torch, which is not installed. pip install torch==2.13.0 adds it."
    if isinstance(fault, OSError):
        where = f"{fault.filename}: " if fault.filename else ""
        said = f"{where}the system refused ({fault.strerror or type(fault).__name__})."
        return f"{said} {MAKE_ROOM}" if fault.errno in NO_ROOM else said
    if isinstance(fault, MemoryError):
        return (
            "this machine does not have enough memory for this question. Ask for less, or use Ray."
        )
    return None
