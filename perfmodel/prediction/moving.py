"""Moving: a job that states its durations, asked about on another machine.

`predict --job` moves a whole recording, a what-if one of its changes: both go
through `apply_change`, which keeps the job at both ends of what could be so.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.question import Question
from perfmodel.prediction.scenario import JobScenario
from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine, with_own_origins
from perfmodel.whatif.scaling_out import ChangeMachine, Doubt
from perfmodel.whatif.transformation import Applied, Transformation, apply_one
from topologies import find_machine


def check_trust(question: Question, *, force: bool) -> None:
    """Refuse a recording that does not replay itself, unless *force* is set."""
    score = question.score
    if score is not None and not score.is_trusted and not force:
        raise ScenarioError(
            f"{question.job.facts.name}: {score.distrust}. Record it again, or ask with --force "
            "and do not trust the answer."
        )


def recorded_machine(job: JobGraph) -> str | None:
    """The machine of the catalog that *job* was recorded on, as far as its GPUs tell."""
    if not job.facts.device:
        return None
    machine = find_machine(job.facts.device, job.facts.gpus_per_host)
    return None if machine is None else machine.name


def about_machine(job: JobGraph) -> str:
    """How the machine of a recording was found."""
    return (
        f"The recording names {job.facts.gpus_per_host} x {job.facts.device}: taken for "
        f"{recorded_machine(job)} of the catalog."
    )


def move_question(question: Question, scenario: JobScenario) -> Question:
    """*question* about the machine that *scenario* names, instead of the recorded one."""
    check_trust(question, force=scenario.force)
    was, assumptions = scenario.was, question.assumptions
    if was is None:
        was = recorded_machine(question.job)
        if was is None:
            raise ScenarioError(
                f"{scenario.job}: does not say which machine its durations are from "
                f"({question.job.facts.device or 'no GPU is named'}), so that nobody knows what "
                f"{scenario.topology} changes. Name it with --was, for example --was dgx_a100."
            )
        assumptions = (*assumptions, about_machine(question.job))
    assert scenario.topology is not None
    stack = scenario.stack or DEFAULT_STACK
    wish = ChangeMachine(topology=scenario.topology, was=was, hosts=scenario.hosts, stack=stack)
    target = PricingMachine(scenario.topology, scenario.hosts, stack)
    hosts = target.cluster(question.job.rank_count).host_count
    if question.notes is None:
        question = replace(question, job=with_own_origins(question.job))
    text = f"machine:topology={scenario.topology},was={was}"
    moved, applied = apply_change(question, wish, name=text, force=scenario.force)
    return replace(
        moved,
        assumptions=(*assumptions, *applied.sentences),
        scenario=replace(scenario, hosts=hosts, stack=stack, was=was),
    )


def apply_change(
    question: Question,
    wish: Transformation,
    *,
    name: str,
    force: bool = False,
    may_touch_nothing: bool = False,
) -> tuple[Question, Applied]:
    """*question* about its job after *wish*, and what that touched."""
    applied = apply_one(
        question.job, wish, name=name, force=force, may_touch_nothing=may_touch_nothing
    )
    ends = None
    if question.ends is not None or isinstance(wish, ChangeMachine):
        fastest, slowest = question.ends or (question.job, question.job)
        ends = (
            _at_end(wish, Doubt.FASTEST).apply(fastest),
            _at_end(wish, Doubt.SLOWEST).apply(slowest),
        )
    return replace(question.changed_to(applied.job), ends=ends), applied


def _at_end(wish: Transformation, doubt: Doubt) -> Transformation:
    return wish.doubted(doubt) if isinstance(wish, ChangeMachine) else wish
