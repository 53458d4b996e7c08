"""Transformation: a what-if with values for its parameters, which takes one job to another.

Its steps run one after the other. A single change of ops leaves the programs alone; several steps
edit them together, program by program. Its assumptions are added to the job, so that every later
answer carries them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from perfmodel.base.errors import GraphError, PerfModelError, ScenarioError
from perfmodel.extensions.whatif.drafts import (
    ProgramDraft,
    add_assumptions,
    change_ops,
    edit_programs,
)
from perfmodel.extensions.whatif.editing import Found, find
from perfmodel.extensions.whatif.primitives import PRIMITIVES, Level, Primitive, arguments_of
from perfmodel.extensions.whatif.recipes import PLACEHOLDER, Conditions, Recipe, is_reference
from perfmodel.extensions.whatif.recosting import Recosted
from perfmodel.extensions.whatif.scaling_out import host_times
from perfmodel.extensions.whatif.selection import Numbers, Selection
from perfmodel.extensions.whatif.touching import Touched, find_touched
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import JobGraph, with_own_origins
from perfmodel.prediction.saved_jobs import DEFAULT_STACK, PricingMachine

BoundStep = tuple[Primitive, dict[str, Any]]
"""A primitive and its arguments with their values."""


@dataclass(frozen=True, slots=True)
class Transformation:
    """The recipe *name* with *values* for all its parameters, None where one is left out.

    A parameter called `rank` says which ranks change.
    """

    name: str
    recipe: Recipe
    values: dict[str, Any]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions, as sentences."""
        sentences = (self._say(text) for text in self.recipe.assumes)
        return tuple(sentence for sentence in sentences if sentence)

    def count_matched(self, job: JobGraph) -> int:
        """How many tasks of *job* count as touched even where they stay as they are."""
        if not all(primitive.keeps_tasks for primitive, _ in self._steps):
            return 0
        programs = self._first_selection.by_program(job, self.edited_ranks)
        return sum(int(mask.sum()) * ranks for _, mask, ranks in programs)

    @property
    def edited_ranks(self) -> Numbers | None:
        """The ranks that change, None for all."""
        return self.values.get("rank")

    @property
    def is_doubtful(self) -> bool:
        """Whether it leaves open how fast the job is, between two ends."""
        return "doubt" in self.values

    def at_end(self, doubt: str) -> Transformation:
        """The same at one end of what it leaves open."""
        return replace(self, values=self.values | {"doubt": doubt}) if self.is_doubtful else self

    def recosted(self, job: JobGraph) -> Recosted | None:
        """How much of *job* is priced again; None where nothing is counted."""
        counted = [step for step in self._steps if step[0].count is not None]
        if not counted or not self.recipe.counts:
            return None
        what, (primitive, _) = self._say(self.recipe.counts), counted[0]
        arguments = [values for _, values in counted]
        return primitive.count and primitive.count(job, self._first_selection, what, arguments)

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job; *job* itself stays as it is."""
        selected: BoundStep = (PRIMITIVES["select"], {})
        edits = [selected]
        for primitive, values in self._steps:
            if primitive.level is Level.JOB:
                job = self._edit_job(job, edits)
                job = primitive.function(job, Selection(**selected[1]), **values)
                edits = [selected]
                continue
            if primitive.level is Level.SELECTION:
                selected = (primitive, values)
                edits = edits if len(edits) > 1 else []
            edits.append((primitive, values))
        return add_assumptions(self._edit_job(job, edits), self.assumptions)

    def _edit_job(self, job: JobGraph, steps: Sequence[BoundStep]) -> JobGraph:
        """*job* after *steps*, the first of which selects tasks."""
        (_, selected), *changes = steps
        if not changes:
            return job
        (primitive, values), *others = changes
        if others or primitive.level is not Level.OP:
            return edit_programs(job, partial(_edit, steps=steps), ranks=self.edited_ranks)
        change = partial(primitive.function, **values)
        return change_ops(job, Selection(**selected), change, ranks=self.edited_ranks)

    @property
    def _first_selection(self) -> Selection:
        found = (values for primitive, values in self._steps if primitive.level is Level.SELECTION)
        return Selection(**next(found, {})).whole

    @property
    def _steps(self) -> list[BoundStep]:
        """The steps whose conditions hold."""
        return [
            (PRIMITIVES[step.primitive], self._bind(step.primitive, step.arguments))
            for step in self.recipe.steps
            if self._holds(step.when)
        ]

    def _bind(self, primitive: str, stated: dict[str, Any]) -> dict[str, Any]:
        """The arguments of *primitive* by name, without those that are left out."""
        values = {}
        for argument in arguments_of(primitive):
            value = stated.get(argument.key)
            if is_reference(value):
                value = self.values[str(value)[1:]]
            if argument.is_machine:
                value = self._machine
            if value is not None:
                values[argument.name] = value
        return values

    @property
    def _machine(self) -> PricingMachine | None:
        """The machine that changed work is priced on, if one is named."""
        topology, hosts, stack = (self.values.get(key) for key in ("topology", "hosts", "stack"))
        return topology and PricingMachine(topology, hosts, stack or DEFAULT_STACK)

    def _holds(self, conditions: Conditions) -> bool:
        stated = ((self.values.get(key), state) for key, state in conditions.items())
        return all(
            (value is None) == (state == "none") if state in ("given", "none") else value == state
            for value, state in stated
        )

    def _say(self, text: str) -> str:
        """*text* with its words."""
        return PLACEHOLDER.sub(self._word, text)

    def _word(self, placeholder: re.Match[str]) -> str:
        name, spec = placeholder.groups()
        if name in self.recipe.words:
            chosen = (one.say for one in self.recipe.words[name] if self._holds(one.when))
            return self._say(next(chosen, ""))
        if name in self.values:
            return self.recipe.parameters[name].show(self.values[name], spec or "")
        if name == "selected":
            return self._first_selection.words
        topology, was, host = (self.values.get(key) for key in ("topology", "was", "host"))
        return host_times(str(topology), was, host)[-1]


def _edit(program: ProgramDraft, steps: Sequence[BoundStep]) -> None:
    found: Found = {}
    for primitive, values in steps:
        if primitive.level is Level.SELECTION:
            found = find(program, Selection(**values))
        elif primitive.level is Level.PROGRAM:
            primitive.function(program, found, **values)
        else:
            for number in found:
                ranks = program.members(number)
                program.set_op(number, primitive.function(program.op(number), ranks, **values))


LEAST_RECOSTED = 0.5
"""A change that can price less of the time than this is refused, unless forced."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A changed job and what the change touched; *recosted* is None where nothing is re-costed."""

    job: JobGraph
    touched: Touched
    recosted: Recosted | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """How much of the time was priced again, where that applies."""
        return () if self.recosted is None else (f"{self.recosted.words}.",)


def apply_one(
    job: JobGraph,
    transformation: Transformation,
    *,
    name: str,
    force: bool = False,
    may_touch_nothing: bool = False,
) -> Applied:
    """*job* after *transformation*, audited; errors show *name*.

    Tasks must have origins of their own. A change that can price less than half of its time
    is refused unless *force* is set.
    """
    try:
        recosted = transformation.recosted(job)
        if recosted is not None and recosted.ratio < LEAST_RECOSTED and not force:
            raise ScenarioError(
                f"only {recosted.words}, less than half. Import the recording with shapes "
                "(with execution traces), or ask with --force."
            )
        changed = transformation.apply(job)
        check_job(changed)
        matched = transformation.count_matched(job)
        touched = find_touched(job, changed, matched)
        if not touched.tasks and not may_touch_nothing:
            raise ScenarioError(
                "touches no task: the pattern matches, but nothing changes (kernels that do not "
                "follow each other, or collectives of a rank that was recorded alone, cannot be "
                "joined or cut). Look at the tasks with `perfmodel predict --job JOB "
                "--trace-out FILE`, and name others."
            )
    except GraphError as fault:
        raise GraphError(f"what-if {name!r} leaves a job that cannot run: {fault}") from None
    except PerfModelError as fault:
        raise type(fault)(f"what-if {name!r}: {fault}") from None
    return Applied(changed, touched, recosted)


def apply_all(job: JobGraph, transformations: Iterable[Transformation]) -> JobGraph:
    """*job* after all *transformations*, one after the other, each result audited.

    Each must touch something, and be able to price what it changes.
    """
    changes = list(transformations)
    if changes:
        job = with_own_origins(job)
    for change in changes:
        job = apply_one(job, change, name=change.name).job
    return job
