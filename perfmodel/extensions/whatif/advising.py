"""Advice: what to do first, by asking every what-if that has a reason.

A reason is a share of the iteration: of a host task that loads, of calls that wait, of ranks that
others wait for. Its what-if is asked of the job; what it saves ranks it. A cause in particular,
such as a loader, comes before a general one, such as all short host work, that saves as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import perfmodel
from perfmodel.base.errors import PerfModelError
from perfmodel.base.shown import Shown
from perfmodel.base.units import format_duration
from perfmodel.execution.executor import Executor
from perfmodel.extensions.whatif.answering import apply_change
from perfmodel.extensions.whatif.parsing import parse_transformation
from perfmodel.extensions.whatif.recipes import load_recipes
from perfmodel.graph.ops import ESTIMATED, Gemm, Op, work_of
from perfmodel.prediction.answer import Interval, Part, Prediction
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import Question
from perfmodel.reports.blocks import Headline, Report, Section, Sentences, Table
from perfmodel.reports.document import interval_ms, parts_ms, times_document, to_ms
from perfmodel.reports.prediction import iter_sections
from perfmodel.reports.showing import View
from perfmodel.reports.text import describe_interval, format_range

LEAST_GAIN = 0.01
"""A gain of a smaller share of the iteration is no advice."""
_AS_MUCH = 0.67
"""A particular cause that saves this share of what a general one saves comes before it."""
FIRST = 3
_LOADER = "DataLoader|dataloader|data_loader|next(iter|_next_data|input/|fetch"
_SYNC = "Synchronize|_local_scalar_dense|aten::item|wait|MemcpyDtoH"
_COLLECTIVES = "nccl|rccl|all_reduce|reduce_scatter|all_gather|all_to_all|SendRecv"


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that may cost time: the what-if that takes it away, and who can do that."""

    name: str
    apply: str
    do: str
    effort: str
    is_general: bool = False


_WIDE = "32-bit products"
_CAUSES = (
    Cause("the input pipeline", f"scale:match={_LOADER},lane=host,factor=0",
          "Load ahead in worker processes (num_workers, prefetch_factor, pin_memory).", "low"),
    Cause("the host waits for the GPU", f"no_stalls:match={_SYNC}",
          "Remove .item(), .cpu(), prints and synchronisations from the step.", "low"),
    Cause("allocations", "no_stalls",
          "Keep memory: no empty_cache, expandable segments, fixed shapes.", "low"),
    Cause("communication that nothing hides", f"scale:match={_COLLECTIVES},factor=0.5",
          "Faster links, fewer bytes, or buckets that overlap the backward pass.", "high"),
    Cause("buckets", "bucket:size=100MB", "Larger gradient buckets.", "low"),
    Cause("the optimizer's kernels", "optimizer", "A fused optimizer (fused=True).", "low"),
    Cause("small kernels and launches", "host_overhead:factor=0.1,up_to=200us",
          "torch.compile or CUDA graphs; fewer, larger operators.", "medium", is_general=True),
    Cause(_WIDE, "amp", "Autocast to bf16.", "low", is_general=True),
    Cause("chains of small kernels", "compile", "torch.compile.", "medium", is_general=True),
    Cause("layout conversions", "channels_last", "memory_format=torch.channels_last.", "low"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """What the what-if about a *cause* saves, with an interval; *evidence* of its recipe."""

    cause: Cause
    gain_ns: int
    interval: Interval
    evidence: str


@dataclass(frozen=True, slots=True, repr=False)
class Advice(Shown):
    """The job as it is, and what to do first, the most valuable first."""

    SHOWN_BY: ClassVar[str] = "perfmodel.extensions.whatif.advising"

    before: Prediction
    steps: tuple[AdvisedChange, ...]


def advise(question: Question, executor: Executor, topology: str | None = None) -> Advice:
    """What to do first about the job of *question*, whose tasks state their durations.

    *topology* is the machine that prices changed work, as for `whatif`.
    """
    before = predict(question, executor=executor)
    times = replace(question.options, is_explained=False, samples=0)
    asked = replace(question, options=times)

    def iterations_ns(of: Question) -> list[int]:
        """How long an iteration takes, and how long under the profiler if it was recorded."""
        profiled = [of.changed_to(of.recording.profiled)] if of.recording is not None else []
        return [predict(one, executor=executor).iteration_ns for one in (of, *profiled)]

    now_ns, found = iterations_ns(asked), []
    for cause in (*_CAUSES, *_stragglers(before)):
        if cause.name == _WIDE and not any(map(_is_counted_product, question.job.ops)):
            # The format of a product that was guessed from its kernel is a guess.
            continue
        try:
            wish = parse_transformation(cause.apply, topology=topology)
            changed, _ = apply_change(asked, wish, name=cause.apply)
        except PerfModelError:
            # Not a cause: the job has no such tasks, or the change cannot be made of it.
            continue
        gains_ns = [was - now for was, now in zip(now_ns, iterations_ns(changed), strict=True)]
        gain_ns, of_interval = gains_ns[0], (before.interval.low_ns, before.interval.high_ns)
        ends = [*gains_ns, *(round(gain_ns * end_ns / now_ns[0]) for end_ns in of_interval)]
        if gain_ns >= LEAST_GAIN * now_ns[0]:
            evidence = load_recipes()[wish.name].evidence
            found.append(AdvisedChange(cause, gain_ns, Interval(min(ends), max(ends)), evidence))
    most_ns = max((one.gain_ns for one in found if not one.cause.is_general), default=0)

    def rank(step: AdvisedChange) -> tuple[int, bool]:
        is_after = step.cause.is_general and most_ns >= _AS_MUCH * step.gain_ns
        return -(min(step.gain_ns, most_ns) if is_after else step.gain_ns), step.cause.is_general

    return Advice(before, tuple(sorted(found, key=rank)))


def _is_counted_product(op: Op) -> bool:
    return isinstance(work_of(op), Gemm) and not getattr(op, "name", "").endswith(ESTIMATED)


def _stragglers(before: Prediction) -> Iterator[Cause]:
    """The rank that others wait for longest."""
    waits: dict[int, int] = {}
    for wait in before.explanation.waits:
        waits[wait.awaited_rank] = waits.get(wait.awaited_rank, 0) + wait.duration_ns
    if waits:
        late = max(waits, key=lambda rank: waits[rank])
        do = f"Look at rank {late}: its input, its host, its GPU's clock."
        yield Cause(f"rank {late} is late", f"no_straggler:rank={late}", do, "medium")


def to_advice_document(advice: Advice) -> dict[str, Any]:
    """*advice* as plain values."""
    before = advice.before
    return {
        "schema_version": 1,
        "perfmodel_version": perfmodel.__version__,
        "kind": "advice",
        "job": before.facts.job,
        **times_document(before),
        "limit": {"kind": before.bound.name, "share": round(before.bound_ratio, 6)},
        "breakdown_ms": parts_ms(before.explanation.time),
        "advice": [
            {
                "cause": step.cause.name,
                "do": step.cause.do,
                "apply": step.cause.apply,
                "gain_ms": to_ms(step.gain_ns),
                "gain_pct": 100 * step.gain_ns / max(before.iteration_ns, 1),
                "interval_ms": interval_ms(step.interval),
                "effort": step.cause.effort,
                "evidence": step.evidence,
            }
            for step in advice.steps
        ],
        "assumptions": list(before.assumptions),
    }


def report_advice(advice: Advice) -> Report:
    """The step, what limits it, and what to do first; then why."""
    before, steps = advice.before, advice.steps
    under = "" if before.recorded is None else (
        f"recorded {format_duration(before.recorded.iteration_ns)}, this is without the profiler"
    )  # fmt: skip
    rows = [
        (
            step.cause.name,
            f"{step.gain_ns / before.iteration_ns:.0%}",
            format_duration(step.gain_ns),
            format_range(step.interval.low_ns, step.interval.high_ns),
            step.cause.effort,
            step.cause.do,
        )
        for step in steps
    ]
    table = Table(
        ("cause", "saves", "", "between", "effort", "do"), rows, numeric=(1, 2), wraps=(0, 5)
    )
    asked = [(step.cause.name, step.cause.apply, step.evidence) for step in steps]
    why = [f"--apply '{apply}' ({name}); evidence: {evidence}" for name, apply, evidence in asked]
    parts = before.explanation.time.of_part_ns
    exposed_ns = parts.get(Part.EXPOSED_COMMUNICATION, 0)
    nothing = f"Nothing that is known would save {LEAST_GAIN:.0%} of the step or more."
    return Report(
        title=f"Advice: {before.facts.job}",
        headline=Headline(
            verdict=(
                f"limited by {before.bound.name} ({before.bound_ratio:.0%} of the critical path)"
            ),
            is_good=not steps,
            answer=format_duration(before.iteration_ns),
            caption=f"per step, {describe_interval(before.interval)}",
            facts=(*((under,) if under else ()),
                   f"communication that no work hides: {exposed_ns / before.iteration_ns:.0%}"),
        ),
        sections=(
            Section("What to do first", [table] if steps else [Sentences([nothing])]),
            Section("How to ask for each", [Sentences(why)]),
            *iter_sections(before),
        ),
        rows=to_advice_document(advice)["advice"],
        columns=100,
    )  # fmt: skip


VIEW = View(report_advice, to_advice_document)
"""How advice shows itself in Python and in a notebook."""
