"""Assumptions: everything an answer takes for granted, as sentences."""

from __future__ import annotations

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.costs.interference import GenerationSlowdowns, Phase
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.steady import MOST_ITERATIONS, SteadyState
from perfmodel.prediction.answer import InterferenceLoss
from perfmodel.prediction.explain import merge_numbers
from perfmodel.prediction.interference import MOST_ROUNDS, SettledCosts
from perfmodel.prediction.question import PredictOptions
from perfmodel.prediction.scenario import Interference

MOST_NAMES = 6


def list_assumptions(
    priced: PricedJob,
    steady: SteadyState,
    settled: SettledCosts,
    asked: PredictOptions,
    loss: InterferenceLoss | None,
) -> tuple[str, ...]:
    """What the job, its costs and its replay assume; each sentence once.

    *loss* is None where interference was left out or nobody asked what it adds.
    """
    sentences = list(priced.job.facts.assumptions)
    names = _assumed_labels(priced)
    if names:
        shown = ", ".join(names[:MOST_NAMES])
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        sentences.append(f"Some durations are assumed, not modelled, in: {shown}{more}.")
    if not steady.is_settled:
        sentences.append(
            f"The loop had not settled after {MOST_ITERATIONS} iterations; its period is the mean "
            "of the second half of them."
        )
    if priced.spread.sentence and np.any(priced.provenance != Provenance.RECORDED):
        sentences.append(priced.spread.sentence)
    if asked.interference is Interference.LEFT_OUT:
        sentences.append("Interference is left out: what overlaps takes as long as alone.")
    elif settled.has_losses:
        sentences.extend(_about_interference(priced.slowdowns, settled, loss))
    return tuple(dict.fromkeys(sentences))


def _about_interference(
    slowdowns: GenerationSlowdowns, settled: SettledCosts, loss: InterferenceLoss | None
) -> list[str]:
    sentences = []
    if loss is not None:
        sentences.append(
            f"Interference adds {format_duration(loss.lost_ns)} to the iteration: "
            "collectives on one link share it" + _about_kernels(slowdowns)
        )
    if not settled.is_settled:
        sentences.append(
            f"Overlaps had not settled after {MOST_ROUNDS} rounds; the last still moved the "
            f"iteration by {settled.moved_ratio:.2%}."
        )
    return sentences


def _about_kernels(slowdowns: GenerationSlowdowns) -> str:
    if not slowdowns.of:
        return "."
    products, passes = (slowdowns.factor(family, Phase.MOVING) for family in ("gemm", "memory"))
    origin = f"as recorded on {slowdowns.architecture}"
    if not slowdowns.is_own:
        origin = f"assumed as on {slowdowns.architecture}"
    return (
        f", and beside one products take {products:.2f} and memory-bound kernels {passes:.2f} "
        f"times as long, {origin} and drawn towards the mean of all generations."
    )


def _assumed_labels(priced: PricedJob) -> list[str]:
    """Labels of assumed tasks, those that take most time in all first."""
    job = priced.job
    if not (priced.provenance == Provenance.ASSUMED).any():
        return []
    totals: dict[str, int] = {}
    for rank in _one_rank_a_row(priced):
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


def _one_rank_a_row(priced: PricedJob) -> list[int]:
    _, first = np.unique(priced.durations.rank_offset, return_index=True)
    return [int(rank) for rank in first]
