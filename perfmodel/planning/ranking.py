"""Ranking: plans in the order of their predicted times, and why they stand there.

Uncertain costs are drawn with one set of random numbers for all plans, so that
the chance of one plan beating the next is about their difference alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import ShardingPlan
from perfmodel.base.shown import Shown
from perfmodel.planning.batches import BatchSpread
from perfmodel.prediction.answer import Answer
from perfmodel.prediction.scenario import Mode


class PlanBound(Enum):
    """What a plan's iteration would get shorter by most if it were faster."""

    LOOKUP = "lookup"
    ALL_TO_ALL = "all-to-all"
    MLP = "mlp"
    REDUCTION = "all-reduce"
    HOST = "host"


class RankBy(Enum):
    """Which time of a plan decides."""

    NOMINAL = "nominal"
    MEAN = "mean"
    QUANTILE = "p95"


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that others wait for, how long on average, and its dearest pieces."""

    rank: int
    waited_ns: float
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RankedPlan:
    """A plan, the answer to it, and what was found out about it.

    *beats_next* is the probability that it is faster than the plan below it;
    None for the last one.
    """

    plan: ShardingPlan
    answer: Answer
    beats_next: float | None
    bound: PlanBound
    gains_ns: dict[PlanBound, float]
    straggler: Straggler
    peak_bytes: int
    fits: bool
    spread: BatchSpread | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ranking(Shown):
    """Plans, fastest first, and plans that could not be made, each with its reason."""

    plans: tuple[RankedPlan, ...]
    refused: tuple[tuple[str, str], ...]
    mode: Mode
    rank_by: RankBy
    device_memory_bytes: int
    plans_judged: int
    assumptions: tuple[str, ...]


def beats_next(times_ns: Sequence[NDArray[np.float64]]) -> list[float | None]:
    """For plans in order, the share of samples in which each is faster than the next.

    Ties count half.
    """
    shares: list[float | None] = []
    for faster, slower in pairwise(times_ns):
        shares.append(float(np.mean(faster < slower) + 0.5 * np.mean(faster == slower)))
    return [*shares, None] if len(times_ns) else []
