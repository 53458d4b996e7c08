"""Options that several commands have in common, so that they read alike everywhere."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.base.errors import ScenarioError

if TYPE_CHECKING:
    from perfmodel.whatif.pinning import Machine


def read_machine(topology: str | None, hosts: int | None, stack: str | None) -> Machine | None:
    """The machine that was named, if one was; hosts and stack mean nothing without it."""
    from perfmodel.whatif.pinning import DEFAULT_STACK, Machine

    if topology is not None:
        return Machine(topology, hosts, stack or DEFAULT_STACK)
    for option, value in (("--hosts", hosts), ("--stack", stack)):
        if value is not None:
            raise ScenarioError(
                f"{option} {value}: says something about a machine, and none is named. "
                "Give --topology too, or leave it out."
            )
    return None


class ExecutorChoice(Enum):
    """The places where replays can run."""

    AUTO = "auto"
    SERIAL = "serial"
    RAY = "ray"


ExecutorOption = Annotated[
    ExecutorChoice, typer.Option(help="Where the work is done; auto takes Ray where it pays.")
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Ray workers; default: one a CPU core.")
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
    typer.Option(metavar="NAME|FILE", help="Software stack there; pytorch_eager if left out."),
]
