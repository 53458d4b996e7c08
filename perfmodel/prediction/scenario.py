"""Scenario: the question, complete enough to be asked again; about a workload or a job.

Two equal scenarios give the same answer to the last byte. Where the work runs
(in process, on Ray) is no part of it, because it cannot change the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from perfmodel.base.errors import ScenarioError

DEFAULT_WORKLOAD = "dlrm_dcnv2"
DEFAULT_SAMPLES = 64
MAX_SAMPLES = 10_000


class Mode(Enum):
    """Which time is the answer.

    PERIOD is what an iteration adds once the loop repeats; ISOLATED is one
    iteration that starts with all ranks at a barrier and idle.
    """

    PERIOD = "period"
    ISOLATED = "isolated"


class Interference(Enum):
    """Whether kernels and collectives that overlap slow each other down."""

    COUNTED = "counted"
    LEFT_OUT = "left_out"


def overrides_of(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """*changes* as they would be typed after `--set`."""
    return tuple(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in changes.items()
    )


def take_as_meant(question: Any, *plurals: str) -> None:
    """Let a mapping stand for the overrides of *question*, and one value for some of *plurals*."""
    if isinstance(question.overrides, Mapping):
        object.__setattr__(question, "overrides", overrides_of(question.overrides))
    for name in ("overrides", "calibration", *plurals):
        value = getattr(question, name)
        if isinstance(value, str | int):
            object.__setattr__(question, name, (value,))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload on a cluster under a software stack.

    *overrides* change fields of the workload, each a text like `batch=4096`; a
    mapping such as `{"batch": 4096}` is turned into them.
    *ranks_per_host* of None takes every GPU of a host, and *stack* of None the
    one that the workload names. *samples* is how many times the uncertain
    costs are drawn for the interval, from *seed*. *tables*, *indices* and *plan*
    are files that describe and place the tables of a recommendation model.
    *calibration* names files of constants that were measured on the machine.
    """

    topology: str
    workload: str = DEFAULT_WORKLOAD
    overrides: tuple[str, ...] = ()
    hosts: int = 1
    ranks_per_host: int | None = None
    stack: str | None = None
    mode: Mode = Mode.PERIOD
    seed: int = 0
    samples: int = DEFAULT_SAMPLES
    tables: str | None = None
    indices: str | None = None
    plan: str | None = None
    interference: Interference = Interference.COUNTED
    calibration: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        take_as_meant(self)
        _check_at_least(1, "hosts", self.hosts)
        if self.ranks_per_host is not None:
            _check_at_least(1, "ranks per host", self.ranks_per_host)
        _check_draws(self.seed, self.samples)


@dataclass(frozen=True, slots=True)
class JobScenario:
    """A job that was imported, emulated or built before, in the folder *job*.

    *topology*, *hosts* and *stack* are for jobs made of shapes, which have to be
    priced: *hosts* of None takes as many as the ranks fill, *stack* of None the
    one that the job names, or the default. A recording brings its durations along: a
    *topology* moves it there from the machine that it *was* made on, or that its GPUs tell;
    with *force* also where it replays itself badly or little of it can be worked out anew.
    *calibration* names files of constants that were measured on the machine.
    """

    job: str
    topology: str | None = None
    hosts: int | None = None
    stack: str | None = None
    mode: Mode = Mode.PERIOD
    seed: int = 0
    samples: int = DEFAULT_SAMPLES
    interference: Interference = Interference.COUNTED
    calibration: tuple[str, ...] = ()
    was: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.calibration, str):
            object.__setattr__(self, "calibration", (self.calibration,))
        if self.hosts is not None:
            _check_at_least(1, "hosts", self.hosts)
        about_machine = {"hosts": self.hosts, "stack": self.stack, "was": self.was}
        about_machine["calibration"] = " ".join(self.calibration) or None
        for option, value in about_machine.items():
            if value is not None and self.topology is None:
                raise ScenarioError(
                    f"--{option} {value}: says something about a machine, and none is named. "
                    "Give --topology too, or leave it out."
                )
        _check_draws(self.seed, self.samples)


def _check_draws(seed: int, samples: int) -> None:
    _check_at_least(0, "seed", seed)
    if samples != 0:
        _check_at_least(2, "samples", samples)
    if samples > MAX_SAMPLES:
        raise ScenarioError(
            f"scenario: samples must be at most {MAX_SAMPLES}, got {samples}. "
            "A few hundred already settle a 90 % interval."
        )


def _check_at_least(limit: int, name: str, value: int) -> None:
    if value < limit:
        raise ScenarioError(f"scenario: {name} must be at least {limit}, got {value}.")
