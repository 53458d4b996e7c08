"""Planning questions: which sharding plans or parallel layouts to compare, on which machine.

Each field says how it is given on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any

from perfmodel.base.errors import ScenarioError, UnitError
from perfmodel.base.options import NO_VALUES, Option, Price, check_ranges, expand_values
from perfmodel.base.units import parse_long_duration_ns
from perfmodel.prediction.scenario import (
    DEFAULT_SAMPLES,
    DEFAULT_WORKLOAD,
    CalibrationFiles,
    Faults,
    Hosts,
    IndicesFile,
    Isolated,
    Machine,
    Mode,
    Overrides,
    PricesFile,
    RanksPerHost,
    RunQuestion,
    Samples,
    Scenario,
    Seed,
    Stack,
    TablesFile,
    Tokens,
    normalize_lists,
)

FRAMEWORKS = ("torchrec", "hugectr")
"""Frameworks whose runnable plans are known."""


def _all_sharders() -> tuple[str, ...]:
    from embeddings.sharders import SHARDERS

    return tuple(SHARDERS)


@dataclass(frozen=True, slots=True)
class RankQuestion:
    """Which sharding plan of *workload* is fastest.

    *tables* is a file that replaces the workload's tables, *indices* one with real indices of
    them. *plan_files* are plan documents (embeddings). A search judges *search* thousand
    plans, and *searches* run in parallel. *samples* is how often costs are sampled. *calibration*
    names files of constants that were measured on the machine. Plans leave the share *reserve* of
    a GPU's memory free, and are such that the framework *runnable_by* can run them. *job* is a
    recording of the first of the plan files: kernels take as long as they did there.
    """

    topology: Machine
    workload: Annotated[str, Option(metavar="NAME|FILE", help="Recommendation model to train.")] = (
        DEFAULT_WORKLOAD
    )
    overrides: Overrides = ()
    tables: TablesFile = None
    indices: IndicesFile = None
    hosts: Hosts = 1
    ranks_per_host: RanksPerHost = None
    stack: Stack = None
    mode: Isolated = Mode.PERIOD
    sharders: Annotated[
        tuple[str, ...],
        Option(
            name="--sharder",
            metavar="NAME",
            help="A sharder; repeatable; default: all; `none`: no sharder.",
        ),
    ] = field(default_factory=_all_sharders)
    plan_files: Annotated[
        tuple[str, ...],
        Option(
            name="--plan",
            metavar="FILE",
            help="A plan as JSON, as --plan-out writes it; repeatable.",
        ),
    ] = ()
    search: Annotated[
        float,
        Option(metavar="N", min=0, help="Search for a plan with the work of judging N thousand."),
    ] = 0.0
    searches: int = 1
    samples: Samples = DEFAULT_SAMPLES
    seed: Seed = 0
    calibration: CalibrationFiles = ()
    reserve: Annotated[
        float,
        Option(metavar="SHARE", parse=parse_share, help="Memory to leave free, e.g. 10%."),
    ] = 0.0
    runnable_by: Annotated[
        str,
        Option(metavar="torchrec|hugectr", help="Only plans that this framework can run."),
    ] = ""
    job: Annotated[
        str | None,
        Option(
            metavar="FOLDER",
            help="A recording of the first --plan: its kernels say how long those of other plans "
            "take. No sharders, unless some are named.",
        ),
    ] = None
    faults: Faults = ()

    def __post_init__(self) -> None:
        normalize_lists(self, "sharders", "plan_files")
        if not 0 <= self.reserve < 1:
            raise ScenarioError(f"rank: reserve must be from 0 to below 1, got {self.reserve}.")
        if self.runnable_by not in ("", *FRAMEWORKS):
            raise ScenarioError(
                f"rank: runnable by must be one of {', '.join(FRAMEWORKS)}, "
                f"got {self.runnable_by!r}."
            )
        named = tuple(name for name in self.sharders if name != NO_VALUES)
        if self.job is not None:
            if not self.plan_files:
                raise ScenarioError(f"--job {self.job}: is a run of a plan. Give it with --plan.")
            named = () if named == _all_sharders() else named
        object.__setattr__(self, "sharders", named)
        known = _all_sharders()
        unknown = [name for name in named if name not in known]
        if unknown:
            near = get_close_matches(unknown[0], known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ScenarioError(
                f"rank: sharders must be among {', '.join(known)}, got {', '.join(unknown)}." + hint
            )
        check_ranges(self, ScenarioError, "rank")
        if self.searches < 1:
            raise ScenarioError(f"rank: searches must be at least 1, got {self.searches}.")
        if not named and not self.plan_files and not self.search:
            raise ScenarioError("rank: nothing to compare. Name sharders, plans or a search.")


def parse_share(text: str) -> float:
    """A share such as `10%` or `0.1`."""
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"must be a share like 10% or 0.1, got {text!r}") from None
    return share


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers such as `1,2,4` or `1:8:x2`."""
    parts = expand_values(text)
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError("must be numbers like 8, 1,2,4 or 1:8:x2")
    return tuple(map(int, parts))


@dataclass(frozen=True, slots=True)
class LayoutQuestion:
    """Which layout of *workload* is fastest on *hosts* of *topology*.

    Fields named in *overrides* are fixed, not searched. *hosts* may be several numbers, for a
    front of time against GPUs. *price_per_gpu_hour* turns times into money. The search may take
    *work* bounds for each number of hosts, where a replay counts as four, and stops after
    *seconds*, if given. *calibration* names files of constants that were measured on the machine.
    With *tokens* the answer is about a whole run, and with *finish_in* about the fewest hosts that
    end in that time.
    """

    topology: Machine
    workload: Annotated[str, Option(metavar="NAME|FILE", help="Transformer to train.")]
    overrides: Annotated[
        tuple[str, ...],
        Option(
            name="--set", metavar="KEY=VALUE", help="Fix a field; fixed fields are not searched."
        ),
    ] = ()
    hosts: Annotated[
        tuple[int, ...],
        Option(
            metavar="N[,N...]",
            min=1,
            parse=parse_counts,
            help="Number of hosts; several numbers show time against GPUs.",
        ),
    ] = (1,)
    ranks_per_host: RanksPerHost = None
    stack: Stack = None
    price_per_gpu_hour: Price = None
    tokens: Tokens = None
    prices: PricesFile = None
    finish_in: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Days of a whole run, e.g. 30d: the fewest of --hosts that finish in time.",
        ),
    ] = None
    top: Annotated[int, Option(metavar="N", min=1, help="Layouts to show.")] = 10
    work: Annotated[
        int, Option(metavar="N", min=1, help="Bounds a search may take; a replay counts as four.")
    ] = 1300
    seconds: Annotated[
        float | None,
        Option(metavar="S", min=0.1, help="A brake: end after so many seconds, proven or not."),
    ] = None
    samples: int = 32
    seed: Seed = 0
    calibration: CalibrationFiles = ()
    faults: Faults = ()

    def __post_init__(self) -> None:
        normalize_lists(self, "hosts")
        check_ranges(self, ScenarioError, "search")
        if not self.hosts:
            raise ScenarioError("search: hosts must be one number or more, got none.")
        wishes = {"--finish-in": self.finish_in is not None, "--prices": bool(self.prices)}
        for option, is_given in wishes.items():
            if is_given and self.tokens is None:
                raise ScenarioError(f"{option}: is about a whole run. Give --tokens COUNT too.")

        self.finish_in_ns  # noqa: B018  a time that cannot be read is refused at once

    @property
    def finish_in_ns(self) -> float | None:
        """How long a whole run may take."""
        if self.finish_in is None:
            return None
        try:
            return parse_long_duration_ns(self.finish_in)
        except UnitError as fault:
            raise ScenarioError(f"--finish-in: {fault}") from None

    @property
    def whole(self) -> RunQuestion | None:
        """The whole run, if one is asked for."""
        if self.tokens is None:
            return None
        return RunQuestion(tokens=self.tokens, prices=self.prices)

    @property
    def stated(self) -> frozenset[str]:
        """The fields that *overrides* fix."""
        return frozenset(text.partition("=")[0].strip() for text in self.overrides)


def to_scenario(question: RankQuestion | LayoutQuestion, **more: Any) -> Scenario:
    """The model on the machine that *question* is about, with *more* fields."""
    shared = ("topology", "workload", "overrides", "ranks_per_host", "stack", "calibration")
    more["faults"] = question.faults
    return Scenario(**{name: getattr(question, name) for name in shared}, **more)
