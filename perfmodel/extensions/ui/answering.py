"""Answering: what the knobs of a page ask for, predicted one question at a time.

A point answer comes first: the time alone, without interval and reasons. Questions, replays,
predictions and pages are kept, so a changed price or a restored setting costs nothing, and a batch
that leaves the replayed jobs as they are is only extrapolated again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from perfmodel import api
from perfmodel.api.questions import build_scenario
from perfmodel.base.errors import InputError, PerfModelError
from perfmodel.base.units import parse_count
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.loops import Loop
from perfmodel.prediction.phases import OnPhase, PhaseClock
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.scenario import RunQuestion, Scenario
from perfmodel.prediction.whole_run import TrainingRun, plan_run
from perfmodel.reports.html import to_page
from perfmodel.reports.prediction import report_prediction
from perfmodel.reports.summary import summarise
from perfmodel.reports.text import to_command

T = TypeVar("T")
Tell = Callable[[str, Mapping[str, Any]], None]
LAYOUT = {
    "batch": "batch",
    "sequence_length": "sequence_length",
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "micro_batch": "parallel.micro_batch",
    "sharding": "parallel.sharding",
    "recompute": "training.recompute",
}
"""Knobs that are fields of a workload."""
MOST_QUESTIONS, MOST_LOOPS, MOST_PREDICTIONS, MOST_PAGES = 4, 2, 8, 32
MOST_HOSTS = 4096


class GoneError(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the knobs ask for: a scenario, and perhaps a whole run and a price."""

    scenario: Scenario
    price: float | None
    run: RunQuestion

    @property
    def command(self) -> str:
        """What to type for the same answer."""
        return to_command("predict", self.scenario, run=self.run, price=self.price)

    @property
    def python(self) -> str:
        """The same in Python."""
        one = self.scenario
        given = {
            "topology": one.topology,
            "workload": one.workload,
            "hosts": one.hosts,
            "stack": one.stack,
            "overrides": one.overrides or None,
        }
        words = ", ".join(f"{key}={value!r}" for key, value in given.items() if value is not None)
        return f"from perfmodel import api\nprint(api.predict(api.Scenario({words})))"


def read_knobs(
    knobs: Mapping[str, str], *, topologies: tuple[str, ...], workloads: tuple[str, ...]
) -> Asked:
    """What *knobs* ask for; only machines and models that the page offers are read."""
    for key, offered in (("topology", topologies), ("workload", workloads)):
        if knobs.get(key) not in offered:
            raise InputError(f"{key}: must be one that the page offers, got {knobs.get(key)!r}.")
    stack = knobs.get("stack") or None
    if stack is not None and stack not in api.list_stacks():
        raise InputError(f"stack: must be one that the page offers, got {stack!r}.")
    overrides = [f"{field}={knobs[key]}" for key, field in LAYOUT.items() if knobs.get(key)]
    tokens = knobs.get("tokens")
    try:
        run = RunQuestion(tokens=parse_count(tokens) if tokens else None)
        price = float(knobs["price"]) if knobs.get("price") else None
        hosts = int(knobs.get("hosts") or 1)
    except ValueError as fault:
        raise InputError(f"hosts, price and tokens must be numbers ({fault}).") from None
    if not 1 <= hosts <= MOST_HOSTS or (price is not None and not 0 <= price < 1e6):
        raise InputError(f"hosts must be 1 to {MOST_HOSTS}, and a price 0 or more.")
    scenario = Scenario(
        topology=knobs["topology"],
        workload=knobs["workload"],
        overrides=tuple(overrides),
        hosts=hosts,
        stack=stack,
    )
    return Asked(scenario, price, run)


@dataclass(slots=True)
class Memo:
    """The last *most* values by key."""

    most: int
    kept: OrderedDict[Any, Any] = field(default_factory=OrderedDict)

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """The value of *key*, made if it is not kept."""
        if key not in self.kept:
            self.kept[key] = make()
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        value: T = self.kept[key]
        return value


@dataclass(slots=True)
class Answers:
    """Everything that was answered; asked from one thread at a time."""

    questions: Memo = field(default_factory=lambda: Memo(MOST_QUESTIONS))
    loops: Memo = field(default_factory=lambda: Memo(MOST_LOOPS))
    points: Memo = field(default_factory=lambda: Memo(MOST_PREDICTIONS))
    wholes: Memo = field(default_factory=lambda: Memo(MOST_PREDICTIONS))
    pages: Memo = field(default_factory=lambda: Memo(MOST_PAGES))

    def answer(self, asked: Asked, tell: Tell, gone: threading.Event) -> None:
        """Send a point answer, then the whole one, unless the client has left."""

        def phase(words: str, share: float) -> None:
            if gone.is_set():
                raise GoneError
            tell("phase", {"words": words, "share": share})

        try:
            phase("building the job", 0.0)
            key = asked.scenario
            question, signature = self.questions.get(key, lambda: _ask(key, phase))

            def answered(*, is_point: bool) -> Prediction:
                # Each phase looks whether somebody still waits.
                loops: list[Loop] = self.loops.get(signature, list)
                return _predict(question, loops, PhaseClock(phase), is_point=is_point)

            point = self.points.get(key, lambda: answered(is_point=True))
            tell("point", summary(asked, point, question))
            phase("finding the interval and the reasons", 0.5)
            whole = self.wholes.get(key, lambda: answered(is_point=False))
            number = self.keep_page(asked, whole)
            tell("answer", {**summary(asked, whole, question), "page": number})
        except GoneError:
            return
        except PerfModelError as fault:
            tell("fault", {"words": str(fault)})

    def keep_page(self, asked: Asked, found: Prediction) -> str:
        """The key of the page of *found*."""
        key = str(abs(hash(asked)))
        self.pages.get(
            key, lambda: to_page(report_prediction(found, asked.price, _run(asked, found)))
        )
        return key


def _ask(scenario: Scenario, on_phase: OnPhase) -> tuple[Question, Hashable]:
    """The question of *scenario*, and what its replays depend on: the jobs and where they run."""
    question = build_scenario(scenario, on_phase)
    where = replace(scenario, workload="", overrides=())
    jobs = [(job.ops, job.labels, job.digest()) for job in question.jobs]
    return question, (where, *jobs)


def _predict(
    question: Question, loops: list[Loop], clock: PhaseClock, *, is_point: bool
) -> Prediction:
    options = question.options
    if is_point:
        options = PredictOptions(options.mode, options.interference, samples=0, is_explained=False)
    asked = replace(question, options=options)
    return predict(asked, executor=SerialExecutor(), clock=clock, loops=loops)


def _run(asked: Asked, found: Prediction) -> TrainingRun | None:
    if not asked.run.is_asked:
        return None
    return plan_run(
        found, asked.run, price_per_gpu_hour=asked.price, machine=asked.scenario.topology
    )


def summary(asked: Asked, found: Prediction, question: Question) -> dict[str, Any]:
    """The answer in a few lines."""
    return {
        **summarise(found, question, price_per_gpu_hour=asked.price, run=_run(asked, found)),
        "command": asked.command,
        "python": asked.python,
    }
