"""Ranking: plans in order of predicted time, with the reasons.

All plans use the same random numbers for uncertain costs. So the probability that one beats the
next depends only on their difference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from embeddings.plan import ShardingPlan
from embeddings.plan_document import list_unrunnable, to_plan_document
from perfmodel.base.cautions import NO_CAUTIONS, Cautions
from perfmodel.base.errors import PlanError
from perfmodel.base.shown import Shown
from perfmodel.base.units import BYTES_PER_GIB, format_duration
from perfmodel.base.writing import check_writable, write_file
from perfmodel.planning.plan_work import (
    PlanLoads,
    PlanWork,
    Straggler,
    compare_works,
)
from perfmodel.prediction.answer import PathShare, Prediction
from perfmodel.prediction.scenario import Mode

TIE_RATIO = 0.01
"""Plans closer than this are tied: measured runs do not repeat better."""


@dataclass(frozen=True, slots=True, eq=False)
class RankedPlan:
    """A plan, its prediction and its analysis; *path* is the critical path by kind of work.

    Plans with the same *place* are tied in time.
    *beats_next* is the probability that the first of them is faster than the first of the next
    place; None for the others.
    """

    plan: ShardingPlan
    answer: Prediction
    place: int
    beats_next: float | None
    path: tuple[PathShare, ...]
    straggler: Straggler
    loads: PlanLoads
    fits: bool
    work: PlanWork

    @property
    def bound(self) -> str:
        """What decides: the kind of work that fills most of the critical path."""
        return max(self.path, key=lambda share: share.duration_ns).name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ranking(Shown):
    """Plans, fastest first, and the plans that could not be made, each with its reason.

    *facts* describe the question: machine, tables, batch and stack. Plans are timed with batches
    that are ready; *load_ns* is what the question says that loading one takes. *cautions* are of
    the answers.
    """

    plans: tuple[RankedPlan, ...]
    refused: tuple[tuple[str, str], ...]
    facts: tuple[str, ...]
    mode: Mode
    device_memory_bytes: int
    plans_judged: int
    assumptions: tuple[str, ...]
    load_ns: float | None = None
    cautions: Cautions = NO_CAUTIONS

    @property
    def fits(self) -> bool:
        """Whether any plan fits in memory."""
        return self.plans[0].fits

    @property
    def comparison(self) -> tuple[str, ...]:
        """Why the first plan is faster than the first of the next place."""
        best = self.plans[0]
        others = (one for one in self.plans if one.place > best.place and one.fits == best.fits)
        other = next(others, None)
        return () if other is None else compare_works(best.work, other.work)

    @property
    def plan_to_write(self) -> ShardingPlan:
        """A plan in first place, preferably one that TorchRec can run."""
        first = [one.plan for one in self.plans if one.place == self.plans[0].place and one.fits]
        return next((plan for plan in first if not list_unrunnable(plan)), first[0])

    def save_plan(self, path: str | Path) -> Path:
        """Write the plan that `--plan-out` writes; gives *path* back. Refused if none fits."""
        target = Path(path)
        if not self.fits:
            raise PlanError(f"{self.verdict} {target} was not written.")
        check_writable("plan", target)
        write_file(target, json.dumps(to_plan_document(self.plan_to_write), indent=1) + "\n")
        return target

    @property
    def loader(self) -> tuple[str, ...]:
        """What the stated loader does to the times, in a sentence; empty if there is none."""
        if self.load_ns is None:
            return ()
        takes = f"Your loader takes {format_duration(self.load_ns)} per batch"
        hidden = sum(plan.answer.iteration_ns < self.load_ns for plan in self.plans)
        if not hidden:
            return (f"{takes}, which no plan waits for.",)
        waits = f"an iteration takes at least that, so {hidden} of {len(self.plans)} plans wait"
        return (f"{takes}: {waits} for it. Times and order are those with batches that are ready.",)

    @property
    def verdict(self) -> str:
        """The conclusion, in one sentence."""
        best, fitting = self.plans[0], [plan for plan in self.plans if plan.fits]
        if not fitting:
            least = min(plan.loads.peak_bytes for plan in self.plans)
            return (
                f"No plan fits: {best.plan.name} and all others need more than the "
                f"{self.device_memory_bytes / BYTES_PER_GIB:.1f} GiB of a rank, the smallest "
                f"{least / BYTES_PER_GIB:.1f} GiB. Use more ranks, or keep tables in host memory."
            )
        if len(fitting) == 1:
            return f"{best.plan.name} is the only plan that fits."
        held = best.plan.shards, best.plan.data_parallel
        if all((one.plan.shards, one.plan.data_parallel) == held for one in fitting):
            return (
                f"All {len(fitting)} make the same plan: tables leave them no choice. Bound by "
                f"{best.bound}."
            )
        ties = [plan.plan.name for plan in fitting if plan.place == best.place]
        bound = best.bound
        if len(ties) == len(fitting):
            return (
                f"The plan does not matter here: the {len(ties)} that fit take the same time, to "
                f"{100 * TIE_RATIO:g} %. What does: {bound}."
            )
        after = next(plan for plan in fitting if plan.place > best.place)
        ahead = after.answer.iteration_ns / min(one.answer.iteration_ns for one in fitting) - 1
        words = f"{best.plan.name} is fastest"
        if len(ties) > 1:
            words = f"{', '.join(ties)} are tied and fastest"
        return f"{words}, {100 * ahead:.0f} % ahead of {after.plan.name}; limited by {bound}."


def join_reasons(refused: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Names and reasons of *refused*, one line per reason."""
    names: dict[str, list[str]] = {}
    for name, reason in refused:
        names.setdefault(reason, []).append(name)
    return tuple(f"{', '.join(some)}: {reason}" for reason, some in names.items())


def number_ties(times_ns: Sequence[float]) -> list[int]:
    """Places of ascending times; ties get the place of the first of them, as in sports."""
    places: list[int] = []
    first_ns = 0.0
    for number, time_ns in enumerate(times_ns, start=1):
        is_tie = bool(places) and time_ns <= (1 + TIE_RATIO) * first_ns
        first_ns = first_ns if is_tie else time_ns
        places.append(places[-1] if is_tie else number)
    return places


def beats_next(
    times_ns: Sequence[NDArray[np.float64]], pair_sigmas: Sequence[float]
) -> list[float | None]:
    """For entries in order, the probability that each is faster than the next.

    Samples share what is uncertain about costs. *pair_sigmas* are how far the ratios of two times
    are off beyond that.
    """
    shares: list[float | None] = []
    for (faster, slower), pair_sigma in zip(pairwise(times_ns), pair_sigmas, strict=True):
        if not len(faster):
            # Nothing was drawn, so nothing is known of the order.
            shares.append(None)
        else:
            gaps = np.log(slower) - np.log(faster)
            shares.append(float(np.mean(ndtr(gaps / pair_sigma))))
    return [*shares, None] if len(times_ns) else []
