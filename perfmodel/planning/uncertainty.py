"""Uncertainty of plans: times under drawn costs, and what would shorten them.

The frame is condensed again for every drawn set of costs, so that drawn times
are those of a replay too. Draws are by family of ops and the same for all plans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import ShardingPlan
from perfmodel.costs.embedding.constants import constants_for
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES
from perfmodel.costs.priced_job import PricedJob, even_draws, family_draws
from perfmodel.planning.evaluate import evaluate_plans, mean_times
from perfmodel.planning.evaluator import PlanEvaluator, PricedPlans, frame_key
from perfmodel.planning.frame import Frame, build_frame
from perfmodel.planning.plan_costs import CAST_BACK, CAST_OUT, INDICES, LOOKUP, PARTIAL, UPDATE
from perfmodel.planning.ranking import PlanBound
from perfmodel.prediction.scenario import Mode

Floats = NDArray[np.float64]
FASTER = 0.9
"""How much faster a part is made to see what it bounds."""
_FIXED_FAMILIES = {
    PlanBound.MLP: ("gemm", "memory", "attention"),
    PlanBound.REDUCTION: (COMMUNICATION_FAMILY,),
    PlanBound.HOST: ("host",),
}
_SMALL_KERNEL_SIGMA = 0.15


class PlanSampler:
    """Draws times of plans that share a frame; vectors: nominal, what-ifs, then samples."""

    def __init__(
        self, evaluator: PlanEvaluator, like: ShardingPlan, *, samples: int, seed: int
    ) -> None:
        self._evaluator = evaluator
        priced = evaluator.price_variants(like)
        self._what_ifs = list(_FIXED_FAMILIES)
        drawn = priced.sample(samples, seed=seed).values_ns
        changed = [_faster(priced, _FIXED_FAMILIES[bound]) for bound in self._what_ifs]
        vectors = np.concatenate(
            [priced.durations.values_ns, *[column[:, None] for column in changed], drawn], axis=1
        )
        self._frame: Frame = build_frame(priced, np.ascontiguousarray(vectors))
        self._samples = samples
        self._shared = priced.spread.relative_sigma * even_draws(samples, seed=seed)
        self._draws = {name: family_draws(name, samples, seed=seed) for name in FAMILIES}

    def times_ns(self, plan: ShardingPlan, *, iterations: int) -> Floats:
        """The iteration time of *plan* under every draw."""
        priced = self._evaluator.price([plan])
        sigmas = self._sigmas(priced)
        first = 1 + len(self._what_ifs)
        times = np.empty(self._samples)
        for sample in range(self._samples):
            exponents = np.array([sigma * self._draws[family][sample] for sigma, family in sigmas])
            factors = np.exp(exponents + self._shared[sample])
            scaled = priced.costs.float_ns * factors[None, :, None]
            durations = np.rint(scaled).astype(np.int64)
            times[sample] = mean_times(
                self._frame, priced.kinds, durations, vector=first + sample, iterations=iterations
            )[0]
        return times

    def gains_ns(self, plan: ShardingPlan, mode: Mode) -> dict[PlanBound, float]:
        """What a tenth less of each part would save."""
        priced = self._evaluator.price([plan])
        nominal = self._time(priced, priced.durations_ns, 0, mode)
        gains = {}
        for bound, columns in (
            (PlanBound.LOOKUP, (LOOKUP, UPDATE)),
            (PlanBound.ALL_TO_ALL, (2, 3, INDICES)),
        ):
            durations = priced.durations_ns.copy()
            durations[:, columns] = np.rint(FASTER * durations[:, columns])
            gains[bound] = float(nominal - self._time(priced, durations, 0, mode))
        for vector, bound in enumerate(self._what_ifs, start=1):
            gains[bound] = float(nominal - self._time(priced, priced.durations_ns, vector, mode))
        return gains

    def _time(
        self, priced: PricedPlans, durations: NDArray[np.int64], vector: int, mode: Mode
    ) -> int:
        found = evaluate_plans(self._frame, priced.kinds, durations, vector=vector)
        times = found.period_ns if mode is Mode.PERIOD else found.isolated_ns
        return int(times[0])

    def _sigmas(self, priced: PricedPlans) -> list[tuple[float, str]]:
        """Relative sigma and family of every column of a plan's durations."""
        lookup = (constants_for(self._evaluator.cluster.device).relative_sigma, "embedding")
        exchange = (self._evaluator.pricer.exchange_sigma(priced.loads), COMMUNICATION_FAMILY)
        small = (_SMALL_KERNEL_SIGMA, "memory")
        kinds = {LOOKUP: lookup, UPDATE: lookup, CAST_OUT: small, CAST_BACK: small, PARTIAL: small}
        return [kinds.get(column, exchange) for column in range(priced.costs.float_ns.shape[1])]


def group_by_frame(plans: Sequence[ShardingPlan]) -> dict[object, list[int]]:
    """Places of plans that share a frame."""
    groups: dict[object, list[int]] = {}
    for place, plan in enumerate(plans):
        groups.setdefault(frame_key(plan), []).append(place)
    return groups


def _faster(priced: PricedJob, families: Sequence[str]) -> NDArray[np.int64]:
    chosen = np.isin(priced.family, [FAMILIES.index(name) for name in families if name in FAMILIES])
    scaled = np.where(chosen, FASTER * priced.float_ns, priced.float_ns)
    return np.rint(scaled).astype(np.int64)
