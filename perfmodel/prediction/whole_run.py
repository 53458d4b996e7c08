"""Whole runs: an iteration repeated until all tokens are seen, with failures on the way.

Failures arrive at random with a rate per GPU. A run that fails goes back to its last checkpoint and
restarts. With a rate of L per second, checkpoints of d and restarts of R seconds, a stretch of t
seconds between checkpoints takes exp(L R) (exp(L (t + d)) - 1) / L on average; the best t solves
1 - L t = exp(-L (t + d)). Goodput is t over that time.

Leaves out: failures that are found late, spare hosts, and days when a cluster is down.
Source: Daly, Future Generation Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from perfmodel.base.errors import ScenarioError
from perfmodel.base.fields import Line, Number, Parsed, Positive, Ratio
from perfmodel.base.forms import Form, load_document
from perfmodel.base.units import NS_PER_HOUR, NS_PER_S, parse_long_duration_ns
from perfmodel.prediction.answer import Part, Prediction
from perfmodel.prediction.scenario import RunQuestion
from topologies import list_devices, list_topologies, load_device, name_devices

PRICES = Path(__file__).with_name("prices.yaml")
HOURS_PER_DAY = 24
S_PER_YEAR = 365.25 * 86_400
W_PER_MW = 1e6
_MOST_FAILURES = 10
"""Failures in the time of a checkpoint and a restart: a run with more makes no progress."""


def _check_priced(name: str) -> str:
    """Refuse a misspelt GPU or machine; one that the catalog does not have is a user's own."""
    near = get_close_matches(name, (*list_devices(), *list_topologies()), n=1, cutoff=0.85)
    if near and near[0] != name and not name_devices(name):
        raise ValueError(f"must be a GPU or a machine; did you mean {near[0]}?")
    return name


Pause = Annotated[float, Parsed(parse_long_duration_ns, "10 min", "6 h", may_be_zero=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRates(Form):
    """A file of prices: money, failures and power of a whole run."""

    source: Line = "its author"
    date: Line = ""
    currency: Line = "money"
    per_gpu_hour: Annotated[
        dict[Annotated[str, AfterValidator(_check_priced)], Number], Field(default_factory=dict)
    ]
    failures_per_gpu_year: Annotated[Number, Field(le=1000)] = 0.173
    checkpoint_ns: Pause = 30.0 * NS_PER_S
    restart_ns: Pause = 600.0 * NS_PER_S
    idle_power_share: Ratio = 0.15
    overhead: Annotated[Positive, Field(ge=1, le=10)] = 1.0


@cache
def _shipped_rates() -> RunRates:
    return load_rates(str(PRICES))


def load_rates(path: str | None = None) -> RunRates:
    """The rates in the file *path*, or those that come with perfmodel."""
    if path is None:
        return _shipped_rates()
    return load_document(Path(path), ScenarioError, what="prices").read(RunRates)


@dataclass(frozen=True, slots=True)
class Goodput:
    """What failures cost: the best time between checkpoints, and the share that is training."""

    failure_every_s: float
    checkpoint_every_s: float
    ratio: float


def find_goodput(rank_count: int, rates: RunRates) -> Goodput:
    """The goodput of *rank_count* GPUs with the best interval of checkpoints."""
    rate = rates.failures_per_gpu_year * rank_count / S_PER_YEAR
    if rate == 0:
        return Goodput(math.inf, math.inf, 1.0)
    pause_s = max(rates.checkpoint_ns / NS_PER_S, 1e-3)
    if rate * (pause_s + rates.restart_ns / NS_PER_S) > _MOST_FAILURES:
        raise ScenarioError(
            f"prices: a failure every {1 / rate:,.3g} s leaves no time to train. Correct "
            "failures_per_gpu_year, checkpoint or restart."
        )
    # Newton on 1 - x - exp(-x - rate * pause): convex, and started above the root.
    x, pause = min(math.sqrt(2 * rate * pause_s), 1.0), rate * pause_s
    for _ in range(50):
        decay = math.exp(-x - pause)
        x -= (1 - x - decay) / (decay - 1)
    stretch = math.exp(rate * rates.restart_ns / NS_PER_S) * math.expm1(x + pause)
    return Goodput(1 / rate, x / rate, x / stretch)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A whole run: *days* of training alone, *expected_days* with failures and checkpoints.

    Money and energy are of the expected days. *interval_days* follows the interval of an iteration,
    if that is known. *price_date* is when a listed price was read. *asked* is the question.
    """

    iterations: float
    count: float
    unit: str
    rank_count: int
    days: float
    interval_days: tuple[float, float] | None
    goodput: Goodput
    price_per_gpu_hour: float | None
    price_date: str
    currency: str
    mean_power_w: float | None
    asked: RunQuestion

    @property
    def expected_days(self) -> float:
        """Days with checkpoints, lost work and restarts."""
        return self.days / self.goodput.ratio

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs over the expected days."""
        return self.expected_days * HOURS_PER_DAY * self.rank_count

    @property
    def cost(self) -> float | None:
        """Money, where a price is known."""
        return None if self.price_per_gpu_hour is None else self.gpu_hours * self.price_per_gpu_hour

    @property
    def cost_interval(self) -> tuple[float, float] | None:
        """The money of the interval of days; the price itself is taken as certain."""
        if self.cost is None or self.interval_days is None:
            return None
        low, high = (self.cost * days / self.expected_days for days in self.interval_days)
        return low, high

    @property
    def energy_mwh(self) -> float | None:
        """Energy, where the power of the GPU is known."""
        if self.mean_power_w is None:
            return None
        return self.mean_power_w * self.gpu_hours / W_PER_MW

    @property
    def failures(self) -> float:
        """Failures to expect."""
        return self.expected_days * HOURS_PER_DAY * 3600 / self.goodput.failure_every_s

    def document(self) -> dict[str, Any]:
        """The run as plain values."""
        good = self.goodput
        is_known = math.isfinite(good.failure_every_s)
        return {
            "iterations": self.iterations,
            self.unit: self.count,
            "days_without_failures": self.days,
            "expected_days": self.expected_days,
            "interval_days": self.interval_days and list(self.interval_days),
            "gpu_hours": self.gpu_hours,
            "price_per_gpu_hour": self.price_per_gpu_hour,
            "price_date": self.price_date or None,
            "cost": self.cost,
            "interval_cost": self.cost_interval and list(self.cost_interval),
            "currency": self.currency,
            "energy_mwh": self.energy_mwh,
            "goodput": good.ratio,
            "failures": self.failures if is_known else 0.0,
            "hours_between_failures": good.failure_every_s / 3600 if is_known else None,
            "minutes_between_checkpoints": good.checkpoint_every_s / 60 if is_known else None,
        }


def plan_run(
    prediction: Prediction,
    asked: RunQuestion,
    *,
    price_per_gpu_hour: float | None = None,
    machine: str | None = None,
) -> TrainingRun:
    """The whole run that *asked* names, of iterations like *prediction* on *machine*.

    Without a *price_per_gpu_hour* that of the file of prices is taken, where it lists the machine.
    """
    rates, facts = load_rates(asked.prices), prediction.facts
    figures = prediction.yardsticks
    if figures is None:
        raise ScenarioError(
            f"--tokens: {facts.job} does not state its samples per iteration, so a whole run "
            "cannot be predicted. State them when the job is made: emulate --samples-per-iteration."
        )
    per_iteration, unit = _per_iteration(
        figures.work.tokens, figures.work.samples, asked, facts.job
    )
    count = (asked.tokens or asked.train_samples or 0.0) * asked.epochs
    iterations = count / per_iteration
    goodput = find_goodput(facts.rank_count, rates)

    def days(iteration_ns: float) -> float:
        return iterations * iteration_ns / NS_PER_HOUR / HOURS_PER_DAY

    interval = prediction.interval
    ends = None
    if interval.is_known:
        ends = (days(interval.low_ns) / goodput.ratio, days(interval.high_ns) / goodput.ratio)
    price, read_on = price_per_gpu_hour, ""
    if price is None:
        price = find_price(prediction, rates, machine)
        read_on = "" if price is None else rates.date
    return TrainingRun(
        iterations=iterations,
        count=count,
        unit=unit,
        rank_count=facts.rank_count,
        days=days(prediction.iteration_ns),
        interval_days=ends,
        goodput=goodput,
        price_per_gpu_hour=price,
        price_date=read_on,
        currency=rates.currency,
        mean_power_w=mean_power_w(prediction, rates),
        asked=asked,
    )


def _per_iteration(
    tokens: int | None, samples: int, asked: RunQuestion, job: str
) -> tuple[int, str]:
    if asked.train_samples is not None:
        return samples, "samples"
    if tokens is None:
        raise ScenarioError(f"--tokens: {job} counts samples, not tokens. Give --train-samples.")
    return tokens, "tokens"


def find_price(prediction: Prediction, rates: RunRates, machine: str | None = None) -> float | None:
    """The price of a GPU for an hour, by machine or by GPU, where it is listed.

    A list may call GPUs as people do: `h100` is h100_sxm.
    """
    scenario = prediction.scenario
    if machine is None and scenario is not None:
        machine = scenario.topology
    listed, device = rates.per_gpu_hour, prediction.facts.device
    for name in (machine and Path(machine).stem, device):
        if name in listed:
            return listed[name]
    meant = (price for name, price in listed.items() if device in name_devices(name))
    return next(meant, None)


def mean_power_w(prediction: Prediction, rates: RunRates) -> float | None:
    """What a GPU draws on average, with its share of the overhead.

    Its board's limit while it works or communicates, and a share of that while it waits.
    """
    if prediction.facts.device is None:
        return None
    # A prediction that is not explained has no parts, and counts as busy.
    parts = {} if prediction.reasons is None else prediction.explanation.time.of_part_ns
    idle = (Part.HOST_BOUND_IDLE, Part.WAITING_FOR_OTHER_RANKS)
    idle_share = sum(parts.get(part, 0) for part in idle) / max(sum(parts.values()), 1)
    duty = 1 - idle_share * (1 - rates.idle_power_share)
    return load_device(prediction.facts.device).power_w * duty * rates.overhead
