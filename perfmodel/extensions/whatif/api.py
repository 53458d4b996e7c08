"""The Python interface of what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from perfmodel.api.questions import File, Where, as_scenario, open_place
from perfmodel.extensions.whatif.answering import WhatIf
from perfmodel.prediction.phases import ignore_phase
from perfmodel.prediction.scenario import JobScenario, Scenario

if TYPE_CHECKING:
    from perfmodel.extensions.whatif.advising import Advice
    from perfmodel.prediction.question import Question


def advise(scenario: JobScenario | Scenario | File, *, force: bool = False) -> Advice:
    """What to do first about a job (a folder), or about a scenario (its file)."""
    from perfmodel.api.questions import build_scenario, load_question
    from perfmodel.execution.executor import SerialExecutor
    from perfmodel.extensions.whatif.advising import advise as find_advice
    from perfmodel.extensions.whatif.answering import prepare_changes

    asked = load_question(scenario)
    if isinstance(asked, JobScenario):
        opened, topology = _open(asked)
    else:
        # Advice is about the smaller of two jobs that an iteration is extrapolated from.
        opened, topology = replace(build_scenario(asked), extrapolation=None), None
    return find_advice(prepare_changes(opened, force=force), SerialExecutor(), topology)


def _open(scenario: JobScenario) -> tuple[Question, str | None]:
    """The question about a saved job, and the machine that prices its changes, if one is known."""
    from perfmodel.extensions.whatif.recorded_machine import about_machine, recorded_machine
    from perfmodel.prediction.saved_jobs import open_job

    opened, topology = open_job(scenario), scenario.topology
    if topology is None and (topology := recorded_machine(opened.job)) is not None:
        opened = replace(opened, assumptions=(*opened.assumptions, about_machine(opened.job)))
    return opened, topology


def whatif(
    job: JobScenario | File,
    changes: Sequence[str] = (),
    *,
    sweep: str | None = None,
    force: bool = False,
    **where: Unpack[Where],
) -> WhatIf:
    """Compare *job* (a folder or its scenario) before and after *changes*, as after `--apply`.

    The machine prices jobs of shapes, and work that is changed. *sweep* is one more change with
    several values of a parameter. Recordings that replay badly are refused unless *force* is
    set, and so are changes that can price less than half of the time.
    """
    from perfmodel.extensions.whatif import parse_sweep, parse_transformation
    from perfmodel.extensions.whatif.answering import answer_changes, prepare_changes

    opened, topology = _open(as_scenario(job))
    named = [(text, parse_transformation(text, topology=topology)) for text in changes]
    swept = None if sweep is None else parse_sweep(sweep, topology=topology)
    question = prepare_changes(opened, force=force)
    on_phase = where.get("on_phase", ignore_phase)
    with open_place(**where) as place:
        answer = answer_changes(
            question, named, sweep=swept, executor=place, on_phase=on_phase, force=force
        )
    return replace(answer, options=("--force",) if force else ())
