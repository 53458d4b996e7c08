"""Assumptions: what a prediction assumes, in sentences that say what would change it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collectives.calibration import holds_anchors
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.costs.embedding_constants import borrowed_lookups
from perfmodel.costs.interference import GenerationSlowdowns, Phase
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.replay import MOST_ITERATIONS
from perfmodel.graph.ops import EmbeddingOp
from perfmodel.prediction.answer import InterferenceLoss
from perfmodel.prediction.explain import merge_numbers
from perfmodel.prediction.interference import MOST_ROUNDS, FoldedCosts
from perfmodel.prediction.loops import Loop
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.prediction.scenario import Interference

MOST_NAMES = 6


NO_DOUBT = "The interval is empty: the job states its durations without uncertainty."


def list_assumptions(
    question: Question, loop: Loop, loss: InterferenceLoss | None, *, is_drawn: bool
) -> tuple[str, ...]:
    """What the prediction of *question* from *loop* assumes; each sentence once.

    *loss* is None where contention was left out or only times are asked for.
    """
    sentences = list(question.job.facts.assumptions)
    if question.recording is not None:
        sentences += question.recording.sentences()
    else:
        sentences += _about_costs(loop, question.options, loss)
    if question.extrapolation is not None:
        sentences.append(
            f"The {question.extrapolation.micro_batches} equal micro-batches are extrapolated "
            "linearly from two smaller micro-batch counts, which is within 0.2 % of replaying all."
        )
    if question.options.samples and not is_drawn and question.recording is None:
        sentences.append(NO_DOUBT)
    if question.cluster is not None and question.cluster.topology.lost_constants:
        sentences.append(question.cluster.topology.lost_constants)
    if question.cluster is not None:
        sentences += [*question.cluster.topology.assumed, *question.cluster.faults]
        if any(isinstance(op, EmbeddingOp) for op in question.job.ops):
            sentences += borrowed_lookups(question.cluster.device)
    files = [] if question.cluster is None else question.cluster.device.calibrations
    if files := [file for file in files if not holds_anchors(Path(file))]:
        verb = "overrides" if len(files) == 1 else "override"
        sentences.append(f"{', '.join(files)} {verb} the shipped constants.")
    return tuple(dict.fromkeys((*sentences, *question.assumptions, *question.chosen)))


def _about_costs(loop: Loop, options: PredictOptions, loss: InterferenceLoss | None) -> list[str]:
    priced, settled = loop.settled.priced, loop.settled
    sentences = []
    names = _assumed_labels(priced)
    if names:
        shown = ", ".join(names[:MOST_NAMES])
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        sentences.append(f"Some durations are assumed, not modelled, in: {shown}{more}.")
    if not loop.is_steady:
        sentences.append(
            f"The loop had not settled after {MOST_ITERATIONS} iterations; its period is the mean "
            "over the second half of them."
        )
    if priced.spread.sentence and np.any(priced.provenance != Provenance.RECORDED):
        sentences.append(priced.spread.sentence)
    if options.interference is Interference.LEFT_OUT:
        sentences.append("Contention is not modelled: tasks that overlap take as long as alone.")
    elif settled.has_losses:
        sentences.extend(_about_interference(priced.slowdowns, settled, loss))
    return sentences


def _about_interference(
    slowdowns: GenerationSlowdowns, settled: FoldedCosts, loss: InterferenceLoss | None
) -> list[str]:
    sentences = []
    if loss is not None:
        sentences.append(
            f"Interference adds {format_duration(loss.lost_ns)} to the iteration: "
            f"collectives on one link share its bandwidth{_about_kernels(slowdowns)}"
        )
    if not settled.is_settled:
        sentences.append(
            f"Contention had not settled after {MOST_ROUNDS} rounds; the last one still changed "
            f"the iteration by {settled.moved_ratio:.2%}."
        )
    return sentences


def _about_kernels(slowdowns: GenerationSlowdowns) -> str:
    if not slowdowns.of:
        return "."
    gemms, passes = (slowdowns.factor(family, Phase.MOVING) for family in ("gemm", "memory"))
    origin = "measured on" if slowdowns.is_own else "assumed as on"
    return (
        f", and while one runs GEMMs take {gemms:.2f} and memory-bound kernels {passes:.2f} times "
        f"as long, {origin} {slowdowns.architecture}."
    )


def _assumed_labels(priced: PricedJob) -> list[str]:
    """Labels of assumed tasks, those that take most time in all first."""
    job = priced.job
    if not (priced.provenance == Provenance.ASSUMED).any():
        return []
    totals: dict[str, int] = {}
    _, first_ranks = np.unique(priced.durations.rank_offset, return_index=True)
    for rank in first_ranks.tolist():
        rows = priced.durations.rows_of(job, rank)
        is_assumed = priced.provenance[rows] == Provenance.ASSUMED
        durations_ns = priced.durations.values_ns[rows, 0]
        sums = np.bincount(
            job.program_of(rank).label[is_assumed],
            weights=durations_ns[is_assumed],
            minlength=len(job.labels),
        )
        for label in np.flatnonzero(sums):
            name = merge_numbers(job.labels[int(label)])
            totals[name] = totals.get(name, 0) + round(sums[label])
    return sorted(totals, key=lambda name: (-totals[name], name))
