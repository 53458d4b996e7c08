"""Assumptions: everything an answer takes for granted, as sentences."""

from __future__ import annotations

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.steady import MOST_ITERATIONS, SteadyState
from perfmodel.prediction.interference import MOST_ROUNDS, Settled
from perfmodel.prediction.labels import merge_numbers

MOST_NAMES = 6


def list_assumptions(priced: PricedJob, steady: SteadyState, shared: Settled) -> tuple[str, ...]:
    """What the job, its costs and its replay assume; each sentence once."""
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
    if shared.rounds == MOST_ROUNDS:
        sentences.append(
            f"Collectives that share links had not settled after {MOST_ROUNDS} rounds; the last "
            f"still moved the iteration by {shared.moved_ratio:.2%}."
        )
    return tuple(dict.fromkeys(sentences))


def _assumed_labels(priced: PricedJob) -> list[str]:
    """Labels of assumed tasks, those that take most time in all first."""
    job = priced.job
    totals: dict[str, int] = {}
    for rank in _one_rank_a_row(priced):
        rows = priced.rows_of_rank(rank)
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
