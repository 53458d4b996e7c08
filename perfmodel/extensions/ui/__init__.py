"""`perfmodel ui`: a page on this machine that answers while one turns the knobs."""

from __future__ import annotations

from typing import Annotated

from perfmodel.base.errors import InputError
from perfmodel.base.options import Option
from perfmodel.cli.commands import command

EPILOG = """\b
Examples:
  perfmodel ui
  perfmodel ui saved.html
  perfmodel ui --workload Llama-3.1-8B/config.json --topology my_machine.yaml
"""


@command(epilog=EPILOG)
def ui(
    *,
    opened: Annotated[
        str | None,
        Option(
            is_argument=True,
            metavar="[SAVED.html|ADDRESS]",
            help="A page that was saved there, or its address, to go on from.",
        ),
    ] = None,
    workload: Annotated[
        tuple[str, ...],
        Option(metavar="FILE", help="Your own model to choose from; repeatable."),
    ] = (),
    topology: Annotated[
        tuple[str, ...],
        Option(metavar="FILE", help="Your own machine to choose from; repeatable."),
    ] = (),
    port: Annotated[
        int, Option(metavar="N", min=0, max=65535, help="Port; default: a free one.")
    ] = 0,
    no_browser: Annotated[bool, Option(help="Print the address and open no browser.")] = False,
) -> None:
    """Open a page that predicts while you choose machine, model, layout and all settings.

    It listens on this machine only, and the address that it prints holds a secret: no one else can
    ask it. Ctrl-C ends it.
    """
    try:
        from perfmodel.extensions.ui.server import serve
    except ModuleNotFoundError as fault:
        if fault.name not in ("starlette", "uvicorn"):
            raise
        raise InputError(
            f"ui: needs the package {fault.name}, which is not installed. "
            "`make predict` brings it to a clone; else: pip install starlette uvicorn"
        ) from None
    serve(
        opened=opened,
        workloads=workload,
        topologies=topology,
        port=port,
        opens_browser=not no_browser,
    )
