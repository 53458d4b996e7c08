"""Answering: what a state of the page asks for, predicted one question at a time.

A point answer comes first: the time alone, without interval and reasons. Then come the whole
answer, the changes next to it, and curves over hosts and batch, each a prediction of its own.
Questions, replays, predictions and pages are kept, so a restored setting costs nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from perfmodel import api
from perfmodel.api.questions import build_scenario
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PerfModelError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.ui.files import Files
from perfmodel.extensions.ui.knobs import (
    SCALES,
    Asked,
    Knob,
    as_text,
    list_knobs,
    now,
    read_state,
)
from perfmodel.extensions.ui.showing import (
    SAME,
    Figures,
    Near,
    State,
    Tried,
    address,
    differences,
    draw,
    percent_of,
    render,
)
from perfmodel.planning.question import LayoutQuestion
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.layouts.candidates import searched_fields
from perfmodel.prediction.loops import Loop
from perfmodel.prediction.phases import OnPhase, PhaseClock
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.whole_run import TrainingRun, find_price, load_rates, plan_run
from perfmodel.reports.html import to_page
from perfmodel.reports.prediction import report_prediction
from perfmodel.reports.runs import format_days
from perfmodel.reports.text import describe_fit

T = TypeVar("T")
Tell = Callable[[str, Mapping[str, Any]], None]
MOST_QUESTIONS, MOST_LOOPS, MOST_PREDICTIONS, MOST_PAGES, MOST_FIGURES = 4, 2, 4, 32, 2048
FASTER = 1.1
TRIED = ("parallel.sharding", "training.recompute", "training.compute")
"""Settings whose other values are tried beside an answer."""
SEARCH_SECONDS, SHOWN_LAYOUTS, MOST_HISTORY = 60.0, 16, 40


class GoneError(Exception):
    """Nobody waits for the answer any more."""


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
    """Everything that was answered; asked from one thread at a time.

    *tried* are settings of every model by their address, *history* those that were asked for.
    """

    files: Files
    questions: Memo = field(default_factory=lambda: Memo(MOST_QUESTIONS))
    loops: Memo = field(default_factory=lambda: Memo(MOST_LOOPS))
    wholes: Memo = field(default_factory=lambda: Memo(MOST_PREDICTIONS))
    pages: Memo = field(default_factory=lambda: Memo(MOST_PAGES))
    figures: Memo = field(default_factory=lambda: Memo(MOST_FIGURES))
    tried: dict[str, dict[str, Tried]] = field(default_factory=dict)
    history: list[Tried] = field(default_factory=list)

    def answer(self, state: State, tell: Tell, gone: threading.Event) -> None:
        """Send all that belongs to *state*, unless the client has left."""

        def phase(words: str, share: float) -> None:
            if gone.is_set():
                raise GoneError
            tell("phase", {"words": words, "share": share})

        asked = {key: value for key, value in state.items() if key not in ("search", "against")}
        try:
            if state.get("search"):
                self._search(asked, tell, phase)
            else:
                self._predict(asked, state.get("against", ""), tell, phase)
            tell("end", {})
        except GoneError:
            return
        except PerfModelError as fault:
            tell("fault", {"words": self._named(str(fault))})
        except Exception as fault:
            # The page would wait for ever, and the terminal has the traceback.
            tell("fault", {"words": f"perfmodel has a fault of its own: {fault!r}"})
            raise

    def _named(self, words: str) -> str:
        """*words* without the private folder of own files."""
        return words.replace(f"{self.files.scratch}/", "")

    def _predict(self, state: State, against: str, tell: Tell, phase: OnPhase) -> None:
        phase("building the job", 0.0)
        own = self.files.find("workload", state.get("workload", ""))
        family = api.load_workload(own).family
        knobs = list_knobs(family)
        parts = {f"#{name}": render(name, knobs) for name in ("first", "more")}
        tell("knobs", {"family": family, "parts": parts})
        asked = read_state(state, self.files)
        question, signature = self.questions.get(asked.scenario, lambda: _ask(asked, phase))

        def show(facts: Sequence[str], run: TrainingRun | None) -> dict[str, str]:
            machine = Path(asked.scenario.topology).name
            made = machine if machine in self.files.made else ""
            days = run and format_days(run.expected_days)
            return {"#facts": render("facts", (*facts, *question.chosen), made, run, days)}

        figures = self._measure(asked, lambda: (question, signature), phase)
        one = self._note(Near("answer", "this setting", {}), state, figures)
        memory = question.memory_fit
        verdict = "" if memory is None else describe_fit(memory)
        alike = (other for other in self.history if other.figures.unit == figures.unit)
        other = next((other for other in alike if other.address == against), None)
        gain = figures.gain_over(other.figures) if other else 1.0
        parts = {
            "#headline": render("headline", verdict, figures, other, gain),
            "#history": render("history", self._remember(one)),
            # What is near the setting before goes; it may be of another model.
            **dict.fromkeys(("#next", "#settings", "#hosts", "#batch"), ""),
            **self._draw_tried(state),
        }
        values = {} if question.workload is None else now(question.workload)
        stack = {"stack": question.stack.name} if question.stack else {}
        words = {"command": self._named(asked.command), "python": self._named(asked.python)}
        tell("point", {"parts": parts | show((), None), "now": values | stack, "copy": words})
        phase("finding the interval and the reasons", 0.5)
        whole = self.wholes.get(
            asked.scenario, lambda: self._replay(question, question.options, signature, phase)
        )
        run = _plan(asked, whole)
        report = report_prediction(whole, asked.price, run)
        page = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]
        self.pages.get(page, lambda: self.files.save(self._named(to_page(report)), state))
        said = (report.headline.caption, *report.headline.facts) if report.headline else ()
        tell("answer", {"parts": show(said, run), "page": page})
        groups: dict[str, list[Tried]] = {}
        for near in iter_near(state, values, knobs):
            phase(f"trying {near.label}", 0.9)
            groups.setdefault(near.group, []).append(self._try(one, near, phase))
            tell("near", {"parts": {f"#{near.group}": show_group(near.group, groups, one.address),
                                    **self._draw_tried(state)}})  # fmt: skip

    def _note(self, near: Near, state: State, figures: Figures) -> Tried:
        """Keep the *figures* of *state* among those of its model."""
        one = Tried(near, dict(state), figures)
        if near.group != "next":
            self.tried.setdefault(state["workload"], {})[one.address] = one
        return one

    def _remember(self, one: Tried) -> list[Tried]:
        """The settings that were asked for, the last one first, with what changed in each."""
        if not self.history or self.history[0].address != one.address:
            before = self.history[0] if self.history else None
            words = f"{one.state['workload']} on {one.state['topology']}"
            gain = 1.0
            if before is not None and before.state["workload"] == one.state["workload"]:
                words = differences(one.state, before.state)
                gain = one.figures.gain_over(before.figures)
            near = Near("history", words, {})
            self.history.insert(0, Tried(near, one.state, one.figures, gain))
            del self.history[MOST_HISTORY:]
        return self.history

    def _draw_tried(self, state: State) -> dict[str, str]:
        """Pictures of rate against memory and against money."""
        tried, here = list(self.tried[state["workload"]].values()), address(state)
        alike = [one for one in tried if one.state.get("hosts") == state.get("hosts")]
        return {
            "#memory": draw(
                alike, "% of a GPU's memory", lambda one: one.figures.memory_percent, here
            ),
            "#money": draw(tried, "money per million", lambda one: one.figures.cost, here),
        }

    def _measure(
        self, asked: Asked, ask: Callable[[], tuple[Question, Hashable]], phase: OnPhase
    ) -> Figures:
        """The time alone, without interval and reasons."""

        def make() -> Figures:
            question, signature = ask()
            one = question.options
            options = PredictOptions(one.mode, one.interference, samples=0, is_explained=False)
            found = self._replay(question, options, signature, phase)
            price = find_price(found, load_rates(), asked.scenario.topology)
            memory = percent_of(question.memory_fit)
            return Figures(found.iteration_ns, found.yardsticks, memory, price)

        return self.figures.get(asked.scenario, make).at(asked.price)

    def _replay(
        self, question: Question, options: PredictOptions, signature: Hashable, phase: OnPhase
    ) -> Prediction:
        asked = replace(question, options=options)
        loops: list[Loop] = self.loops.get(signature, list)
        # Each phase looks whether somebody still waits.
        return predict(asked, executor=SerialExecutor(), clock=PhaseClock(phase), loops=loops)

    def _try(self, one: Tried, near: Near, phase: OnPhase) -> Tried:
        """A change of the setting *one* with its figures, or why there are none."""
        state = {**one.state, **near.changes}
        try:
            asked = read_state(state, self.files)
            figures = self._measure(asked, lambda: _ask(asked, phase), phase)
        except PerfModelError as fault:
            return Tried(near, state, fault=self._named(str(fault)))
        self._note(near, state, figures)
        return Tried(near, state, figures, figures.gain_over(one.figures))

    def _search(self, state: State, tell: Tell, phase: OnPhase) -> None:
        """Send the fastest layouts of *state*, whatever it says of the layout."""
        freed = set(searched_fields().values())
        fixed = {key: value for key, value in state.items() if key not in freed}
        asked = read_state(fixed, self.files)
        one = asked.scenario
        ranking = api.search(
            LayoutQuestion(
                one.topology, one.workload, one.overrides, (one.hosts,), stack=one.stack,
                price_per_gpu_hour=asked.price, top=SHOWN_LAYOUTS, seconds=SEARCH_SECONDS,
            ),
            on_phase=phase,
        )[0]  # fmt: skip
        for layout in ranking.layouts:
            changes = {key: as_text(value) for key, value in layout.candidate.overrides.items()}
            price = find_price(layout.found, load_rates(), one.topology)
            memory = 100 * layout.candidate.peak_bytes / ranking.memory_bytes
            figures = Figures(layout.time_ns, layout.found.yardsticks, memory, price)
            near = Near("layouts", layout.name, changes)
            self._note(near, {**fixed, **changes}, figures.at(asked.price))
        tell("near", {"parts": self._draw_tried(state)})


def iter_near(state: State, values: State, knobs: Sequence[Knob]) -> Iterator[Near]:
    """The changes that are tried beside *state*, in which *knobs* have *values*."""
    hosts, batch = int(state.get("hosts") or 1), int(values.get("batch", 0))
    for part, words in SCALES.items():
        ratio = float(state.get(part) or 1) * FASTER
        yield Near("next", f"+10 % {words}", {part: str(round(ratio, 4))})
    for words, count in (("half the hosts", hosts // 2), ("twice the hosts", 2 * hosts)):
        if count:
            yield Near("next", words, {"hosts": str(count)})
    for knob in (one for one in knobs if one.key in TRIED):
        for value in knob.choices:
            is_other_format = knob.key.endswith(".compute") and not DType(value).is_quantised
            if value != values.get(knob.key) and not is_other_format:
                yield Near("settings", f"{knob.label} {value}", {knob.key: value})
    for group, middle in (("hosts", hosts), ("batch", batch)):
        for count in (middle // 4, middle // 2, middle, 2 * middle, 4 * middle):
            if count:
                yield Near(group, str(count), {group: str(count)})


def show_group(group: str, groups: Mapping[str, list[Tried]], here: str) -> str:
    """The *group* of changes: a curve, or a strip; of settings those that are faster and fit."""
    tried = groups[group]
    if group in ("hosts", "batch"):
        return draw(tried, group, lambda one: float(one.near.label), here)
    if group == "settings":
        tried = [one for one in tried if not one.fault and one.figures.fits and one.gain > 1 + SAME]
    return render("strip", tried)


def _ask(asked: Asked, on_phase: OnPhase) -> tuple[Question, Hashable]:
    """The question of *asked*, and what its replays depend on: the jobs and where they run."""
    question = build_scenario(asked.scenario, on_phase)
    where = replace(asked.scenario, workload="", overrides=())
    jobs = [(job.ops, job.labels, job.digest()) for job in question.jobs]
    return question, (where, *jobs)


def _plan(asked: Asked, found: Prediction) -> TrainingRun | None:
    if not asked.run.is_asked:
        return None
    return plan_run(
        found, asked.run, price_per_gpu_hour=asked.price, machine=asked.scenario.topology
    )
