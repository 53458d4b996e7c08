"""Words: the commands there are, and the application that runs one of them.

Every module of the table holds `app`, a `typer.Typer`. One with a single
command becomes that command; one with several becomes a group of commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

import perfmodel
from perfmodel.base.errors import InputError


@dataclass(frozen=True, slots=True)
class Word:
    """A command: what is typed, the module behind it, and one line of help."""

    name: str
    module: str
    summary: str

    @property
    def is_installed(self) -> bool:
        """Whether its module is there."""
        return find_spec(self.module) is not None


WORDS = (
    Word("predict", "perfmodel.cli.predict", "Predict one iteration: how long, and why."),
    Word("compare", "perfmodel.cli.compare", "Set scenarios, jobs or machines side by side."),
    Word("rank", "perfmodel.cli.rank", "Order sharding plans, fastest first."),
    Word("embeddings", "perfmodel.cli.embeddings", "Look into files of real indices."),
    Word("search", "perfmodel.cli.search", "Find the fastest parallel layout that fits."),
    Word("emulate", "perfmodel.cli.emulate", "Run a torch script on virtual GPUs, write a job."),
    Word("import", "perfmodel.cli.import_", "Turn recorded traces of all ranks into a job."),
    Word("replay", "perfmodel.cli.replay", "Replay a job."),
    Word("whatif", "perfmodel.cli.whatif", "Change a job and compare."),
    Word("trace", "perfmodel.cli.trace", "Look into recorded traces."),
    Word("validate", "perfmodel.cli.validate", "Compare predictions with measurements."),
    Word("calibrate", "perfmodel.cli.calibrate", "Fit constants to measurements."),
    Word("workload", "perfmodel.cli.workload", "List and show models."),
    Word("topology", "perfmodel.cli.topology", "List, show and check machines."),
    Word("collective", "perfmodel.cli.collective", "Price a collective on a machine."),
    Word("kernel", "perfmodel.cli.kernel", "Price a kernel on a GPU."),
    Word("init", "perfmodel.cli.init", "Write a commented file to start from."),
    Word("schema", "perfmodel.cli.schema", "Print the fields of a file that perfmodel reads."),
    Word("doctor", "perfmodel.cli.doctor", "Say what this installation has and lacks."),
)

ASKS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "sweep"),
    "compare": ("compare", "sweep", "name_jobs"),
    "rank": ("rank",),
    "embeddings describe": ("describe_indices",),
    "search": ("search",),
    "emulate": ("emulate",),
    "import": ("import_traces",),
    "replay": ("replay",),
    "whatif": ("whatif",),
    "trace stats": ("trace_stats",),
    "trace diff": ("trace_diff",),
    "trace extract": ("trace_extract",),
    "trace chakra": ("trace_chakra",),
    "validate collectives": ("validate",),
    "validate gemm": ("validate",),
    "validate attention": ("validate",),
    "validate experts": ("validate",),
    "validate memory": ("validate",),
    "validate runs": ("validate_runs",),
    "validate fits": ("validate_fits",),
    "calibrate gemm": ("calibrate_kernels", "cross_validate"),
    "calibrate attention": ("calibrate_kernels", "cross_validate"),
    "calibrate experts": ("calibrate_kernels", "cross_validate"),
    "calibrate memory": ("calibrate_kernels", "cross_validate"),
    "calibrate collectives": (
        "calibrate_collectives",
        "cross_validate",
        "leave_out_collectives",
    ),
    "calibrate embedding": ("calibrate_embedding",),
    "calibrate interference": ("calibrate_interference",),
    "calibrate host": ("calibrate_host",),
    "calibrate measure": ("measure_machine",),
    "workload list": ("list_workloads", "list_stacks"),
    "workload show": ("load_workload",),
    "topology list": ("list_topologies", "list_devices"),
    "topology show": ("load_topology",),
    "topology check": ("load_topology",),
    "collective": ("ask_collective", "sweep_collective"),
    "kernel gemm": ("price_kernel",),
    "kernel attention": ("price_kernel",),
    "kernel memory": ("price_kernel",),
    "kernel embedding": ("price_kernel",),
    "init": ("init",),
    "schema": ("describe_schema",),
    "doctor": ("examine_installation",),
}
"""The functions of `perfmodel.api` that a command asks: what can be typed can be called."""

EPILOG = (
    "Example: perfmodel predict --workload llama3_8b --topology dgx_h100.yaml --hosts 2\n\n"
    "Every command explains itself: perfmodel predict --help"
)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the command that *arguments* start with mounted for real."""
    typed = next((word for word in arguments if not word.startswith("-")), None)
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(perfmodel_options)
    for word in WORDS:
        if word.is_installed:
            _mount(app, word, is_typed=word.name == typed)
    return app


def check_not_repeated(app: typer.Typer, arguments: Sequence[str]) -> None:
    """Refuse an option of one value that is given twice: the last one would win in silence."""
    command = typer.main.get_command(app)
    words = list(arguments)
    while (word := next((w for w in words if not w.startswith("-")), None)) is not None:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command, words = inner, words[words.index(word) + 1 :]
    if "--" in words:
        words = words[: words.index("--")]
    given = [word.partition("=")[0] for word in words]
    for parameter in command.params:
        names = getattr(parameter, "opts", [])
        is_single = not getattr(parameter, "multiple", False) and not getattr(
            parameter, "count", False
        )
        count = sum(given.count(name) for name in names if name.startswith("--"))
        if is_single and count > 1:
            raise InputError(
                f"{names[0]}: is given {count} times, and takes one value. Give it once."
            )


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"perfmodel {perfmodel.__version__}")
        for name in ("perfmodel", "collectives", "embeddings", "topologies", "traces"):
            spec = find_spec(name)
            places = list(spec.submodule_search_locations or ()) if spec else []
            print(f"  {name:<12} {places[0] if places else 'not found'}")
        raise typer.Exit


def perfmodel_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")
    ] = False,
) -> None:
    """Predict how long one training iteration takes on GPUs you do not have."""
    # Both are here for the help text: version stops the program in its callback, and
    # debug is taken out of the arguments before they are parsed.
    del version, debug


def _mount(app: typer.Typer, word: Word, *, is_typed: bool) -> None:
    if not is_typed:
        app.command(word.name, help=word.summary)(_not_loaded)
        return
    part: typer.Typer = import_module(word.module).app
    if len(part.registered_commands) == 1 and part.registered_callback is None:
        [command] = part.registered_commands
        command.name = word.name
        app.registered_commands.append(command)
    else:
        app.add_typer(part, name=word.name, help=word.summary)


def _not_loaded() -> None:
    raise AssertionError("a command that was not typed cannot run")
