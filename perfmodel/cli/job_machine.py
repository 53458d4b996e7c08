"""The machine that commands about finished jobs are given with their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.errors import ScenarioError

if TYPE_CHECKING:
    from perfmodel.whatif.machine import Machine


def read_machine(topology: str | None, hosts: int | None, stack: str | None) -> Machine | None:
    """The machine that was named, if one was; hosts and stack mean nothing without it."""
    from perfmodel.whatif.machine import DEFAULT_STACK, Machine

    if topology is not None:
        return Machine(topology, hosts, stack or DEFAULT_STACK)
    for option, value in (("--hosts", hosts), ("--stack", stack)):
        if value is not None:
            raise ScenarioError(
                f"{option} {value}: says something about a machine, and none is named. "
                "Give --topology too, or leave it out."
            )
    return None
