"""Options that several commands share: where the work runs, ranks, tables of measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from perfmodel.base.errors import InputError
from perfmodel.base.options import Option

MAX_LISTED_RANKS = 1_000_000
ExecutorName = Literal["auto", "serial", "ray"]
Quiet = Annotated[bool, Option(help="No progress on standard error.")]
JobOut = Annotated[str, Option(metavar="JOB", help="Folder to write the job to.")]
CollectiveTables = Annotated[
    tuple[str, ...],
    Option(
        is_argument=True,
        metavar="TABLE...",
        help="Output of nccl-tests (text or JSON), or CSV tables (`perfmodel schema collectives`).",
    ),
]


@dataclass(frozen=True)
class Run:
    """Where the work runs, and whether progress is shown."""

    executor: Annotated[
        ExecutorName | None, Option(help="Where the work runs; auto uses Ray where it pays.")
    ] = "auto"
    workers: Annotated[
        int | None, Option(metavar="N", min=1, help="Ray workers; default: one per CPU core.")
    ] = None
    ray_address: Annotated[
        str | None, Option(metavar="ADDR", help="Join this Ray cluster, e.g. host:6379.")
    ] = None
    quiet: Quiet = False

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        """Show progress; yields the keywords of `perfmodel.api` that say where the work runs."""
        from perfmodel.reports.progress import show_progress

        with show_progress(is_quiet=self.quiet) as progress:
            yield {
                "executor": self.executor,
                "workers": self.workers,
                "ray_address": self.ray_address,
                "on_phase": progress,
            }


@dataclass(frozen=True)
class LocalRun(Run):
    """A run in this process, unless Ray is asked for."""

    executor: Annotated[
        ExecutorName | None,
        Option(help="Where the work runs; default: ray with an address or workers, else serial."),
    ] = None


@dataclass(frozen=True)
class RunPlaceOptions:
    """What the output of nccl-tests does not say: the fields of `RunPlace`."""

    topology: Annotated[
        str | None, Option(metavar="NAME|FILE", help="Machine that nccl-tests ran on.")
    ] = None
    hosts: Annotated[
        int | None, Option(metavar="N", min=1, help="Hosts it ran on; default: as it says.")
    ] = None
    kind: Annotated[
        str | None, Option(metavar="KIND", help="Collective it ran; default: as it says.")
    ] = None


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
