"""Comparing: several scenarios side by side, or one over values of something in it.

Every scenario is predicted as `predict` does. One that cannot be predicted keeps its place with
the reason, so one wrong batch does not lose the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise, product
from typing import Any

from perfmodel.base.cautions import Cautions, join_cautions
from perfmodel.base.errors import PerfModelError, ScenarioError
from perfmodel.base.options import EXAMPLES, expand_values
from perfmodel.base.shown import Shown
from perfmodel.base.units import format_duration
from perfmodel.execution.executor import Executor, SerialExecutor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase, map_in_steps
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import Question
from perfmodel.prediction.scenario import JobScenario, RunQuestion, Scenario
from perfmodel.prediction.whole_run import TrainingRun, plan_run

AnyScenario = Scenario | JobScenario
NamedScenario = tuple[str, AnyScenario]
"""A scenario after its name in a comparison."""
Build = Callable[[AnyScenario], Question]
FAULT, SOUND = "fault", "none"
"""The axis of faults, and its value without any; those of one value are separated by `;`."""
_WHOLE = ("hosts", "ranks_per_host", "seed", "samples")
_TEXTS = ("topology", "workload", "stack", "tables", "indices", "plan")


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """What is swept, and its values as typed."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A scenario with its answer, or with the *fault* why there is none."""

    name: str
    scenario: AnyScenario
    prediction: Prediction | None
    fault: str = ""
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Scenarios in the order they were given; *axes* are what a sweep went over.

    With a *price_per_gpu_hour* work costs money, too; *whole* asks for whole runs.
    """

    entries: tuple[Compared, ...]
    axes: tuple[SweepAxis, ...] = ()
    price_per_gpu_hour: float | None = None
    whole: RunQuestion | None = None

    def ordered(self) -> Comparison:
        """The same with the fastest first and what does not fit or has no answer last."""
        rest = (entry for entry in self.entries if entry.prediction is None)
        return replace(self, entries=(*sorted(self.answered, key=self._slowness), *rest))

    @property
    def goes_over_numbers(self) -> bool:
        """Whether all axes are numbers, whose order says something."""
        values = (value for axis in self.axes for value in axis.values)
        return bool(self.axes) and all(value.replace(".", "", 1).isdigit() for value in values)

    def run_of(self, entry: Compared) -> TrainingRun | None:
        """The whole run of *entry*, where one was asked for."""
        if entry.prediction is None or self.whole is None:
            return None
        price, machine = self.price_per_gpu_hour, entry.scenario.topology
        return plan_run(entry.prediction, self.whole, price_per_gpu_hour=price, machine=machine)

    def cost_of(self, entry: Compared) -> float | None:
        """Money for a million tokens or samples of *entry*, where price and work are known."""
        figures = entry.prediction and entry.prediction.yardsticks
        if not figures or self.price_per_gpu_hour is None:
            return None
        return figures.cost_per_million(self.price_per_gpu_hour)

    @property
    def answered(self) -> tuple[Compared, ...]:
        """Those with an answer."""
        return tuple(entry for entry in self.entries if entry.prediction is not None)

    @property
    def differs_in_work(self) -> bool:
        """Whether iterations do different amounts of the same kind of work."""
        found = [entry.prediction for entry in self.answered if entry.prediction]
        figures = [one.yardsticks for one in found]
        works = {(f.work.samples, f.work.tokens) for f in figures if f}
        return len(works) > 1 and None not in figures and len({f.unit for f in figures if f}) == 1

    @property
    def fastest(self) -> Compared:
        """The shortest iteration that fits; where work differs, the one that does most per second.

        The first of equals.
        """
        return min(self.answered, key=self._slowness)

    @property
    def _slowness(self) -> Callable[[Compared], tuple[bool, float]]:
        return _rate_if_it_fits if self.differs_in_work else _time_if_it_fits

    @property
    def cautions(self) -> Cautions:
        """Those of all answers."""
        found = (one.prediction for one in self.answered)
        return join_cautions(one.cautions for one in found if one is not None)

    @property
    def findings(self) -> tuple[str, ...]:
        """What was assumed to ask, where a sweep has knees, and what faults cost."""
        names: dict[str, list[str]] = {}
        for one in self.answered:
            for said in one.assumed:
                names.setdefault(said, []).append(one.name)
        everyone = len(self.answered)
        return (
            *find_knees(self),
            *self._find_fault_costs(),
            *(
                f"{'All' if 1 < len(some) == everyone else ', '.join(some)}: {said}"
                for said, some in names.items()
            ),
        )

    def _find_fault_costs(self) -> list[str]:
        """What each value of an axis of faults costs against the same without."""
        times = {one.name: one.prediction for one in self.answered}
        sentences = []
        for name, found in times.items():
            head, sign, value = name.partition(f"{FAULT}=")
            sound = times.get(f"{head}{sign}{SOUND}")
            if not sign or value == SOUND or sound is None or found is None:
                continue
            lost_ns = found.iteration_ns - sound.iteration_ns
            share = lost_ns / max(sound.iteration_ns, 1)
            cost = f"costs {format_duration(lost_ns)} per iteration ({share:.1%})"
            sentences.append(f"{head}{value}: {cost if lost_ns else 'costs nothing'}.")
        return sentences


def _time_if_it_fits(entry: Compared) -> tuple[bool, float]:
    assert entry.prediction is not None
    memory = entry.prediction.memory
    return memory is not None and not memory.fits, entry.prediction.iteration_ns


def _rate_if_it_fits(entry: Compared) -> tuple[bool, float]:
    assert entry.prediction is not None
    assert entry.prediction.yardsticks is not None
    return _time_if_it_fits(entry)[0], -entry.prediction.yardsticks.per_s


def parse_axis(text: str) -> SweepAxis:
    """What `--sweep` was given: `batch=4096,8192`, `hosts=1:8:x2`, `topology=a,b`."""
    key, sign, values = text.partition("=")
    if not sign or not key.strip() or not values.strip():
        raise ScenarioError(f"sweep {text!r}: must be key=values, such as batch=4096,8192.")
    axis = SweepAxis(key.strip(), expand_values(values))
    if len(axis.values) < 2:
        raise ScenarioError(f"sweep {text!r}: has one value, and needs several. {EXAMPLES}")
    return axis


def sweep_scenario(base: AnyScenario, axes: Sequence[SweepAxis]) -> list[NamedScenario]:
    """*base* with every combination of values, the last axis fastest."""
    points = []
    for values in product(*(axis.values for axis in axes)):
        scenario = base
        for axis, value in zip(axes, values, strict=True):
            scenario = _with_value(scenario, axis.key, value)
        words = zip(axes, values, strict=True)
        points.append((", ".join(f"{a.key}={v}" for a, v in words), scenario))
    return points


def _with_value(scenario: AnyScenario, key: str, value: str) -> AnyScenario:
    if key == FAULT:
        faults = () if value == SOUND else tuple(one.strip() for one in value.split(";"))
        return replace(scenario, faults=faults)
    known = {one.name for one in fields(scenario)}
    if key in known & {*_WHOLE, *_TEXTS}:
        if key in _WHOLE and not value.isdecimal():
            raise ScenarioError(f"sweep of {key}: must be whole numbers, got {value!r}.")
        change: dict[str, Any] = {key: int(value) if key in _WHOLE else value}
        return replace(scenario, **change)
    if isinstance(scenario, JobScenario):
        raise ScenarioError(
            f"sweep of {key}: a job has no such field. Sweep topology, hosts or stack, or change "
            "the job with `perfmodel whatif JOB --sweep`."
        )
    kept = tuple(text for text in scenario.overrides if text.partition("=")[0].strip() != key)
    return replace(scenario, overrides=(*kept, f"{key}={value}"))


def compare_scenarios(
    scenarios: Sequence[NamedScenario],
    *,
    build: Build,
    axes: Sequence[SweepAxis] = (),
    executor: Executor,
    on_phase: OnPhase = ignore_phase,
) -> Comparison:
    """Predict *scenarios* on *executor*; *build* loads each one and builds its job."""
    if len(scenarios) < 2:
        raise ScenarioError(
            "compare: needs two or more scenarios. Give several values, such as --topology "
            "dgx_h100,dgx_b200 or --sweep hosts=1,2,4, or several files of scenarios."
        )
    entries = map_in_steps(
        executor, answer_one, build, list(scenarios), on_phase=on_phase, phase="answering scenario"
    )
    if all(entry.prediction is None for entry in entries):
        raise ScenarioError(f"compare: no scenario can be answered. {entries[0].fault}")
    return Comparison(tuple(entries), tuple(axes))


def answer_one(build: Build, named: NamedScenario) -> Compared:
    """The prediction of one scenario; a function of the module, so it can run on any worker."""
    name, scenario = named
    try:
        question = build(scenario)
        prediction = predict(question, executor=SerialExecutor())
    except PerfModelError as fault:
        return Compared(name, scenario, None, str(fault))
    if isinstance(scenario, Scenario) and isinstance(question.scenario, Scenario):
        scenario = replace(scenario, overrides=question.scenario.overrides)
    return Compared(name, scenario, prediction, assumed=question.chosen)


def find_knees(comparison: Comparison) -> tuple[str, ...]:
    """Where in a sweep of numbers the kind of work that decides changes."""
    if len(comparison.axes) != 1:
        return ()
    key = comparison.axes[0].key
    return tuple(
        f"Knee between {key}={low:,.12g} and {high:,.12g}: up to there mostly "
        f"{_bound_words(before)}, beyond it {_bound_words(after)}."
        for (low, before), (high, after) in pairwise(_points(comparison))
        if before.bound.name != after.bound.name
    )


def _points(comparison: Comparison) -> list[tuple[float, Prediction]]:
    points = []
    for entry in comparison.answered:
        assert entry.prediction is not None
        try:
            value = float(entry.name.partition("=")[2])
        except ValueError:
            return []
        if value > 0:
            points.append((value, entry.prediction))
    return sorted(points, key=lambda point: point[0])


def _bound_words(found: Prediction) -> str:
    return f"{found.bound.name} ({found.bound_ratio:.0%} of the critical path)"
