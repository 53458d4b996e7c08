"""PricedJob: a job with a duration for every task of every rank, and samples of it.

Errors are shared by all ops of a family, and by all ops through the spread of the stack. A sample
draws one factor per family and one for all ops, from the seed and the name only. Two plans priced
with one seed get the same draws, so their difference is not noise. A job that states its durations
has prices without uncertainty.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.provenance import Provenance
from perfmodel.costs.estimates import Bound, CodeColumn, FloatColumn
from perfmodel.costs.interference import NOTHING_SLOWED, GenerationSlowdowns
from perfmodel.costs.models import FAMILIES
from perfmodel.graph.durations import DurationTable, OpDurations, build_shared_durations
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, duration_of
from perfmodel.graph.program import NO_ORIGIN, Program
from perfmodel.stacks.spread import NO_SPREAD, Spread

_ROWS_AT_ONCE = 1024
"""Tasks whose draws are made together: few enough to stay in a cache."""


@dataclass(frozen=True, slots=True, eq=False)
class PricedJob:
    """Durations of *job*, and per row of the duration table how they are known.

    *float_ns* are the durations before they were rounded to the clock. *family*
    is an index into FAMILIES. *link_use* is, for collectives, the share of the
    duration that they keep the links of a GPU and of a NIC busy, and that the busier of them
    needs at the speed of its datasheet. *slowdowns* say
    how much longer kernels take while collectives run; recorded durations include it already.
    *spread* is the shared error of all costs except recorded ones.
    """

    job: JobGraph
    durations: DurationTable
    float_ns: FloatColumn
    relative_sigma: FloatColumn
    provenance: CodeColumn
    family: CodeColumn
    bound: CodeColumn
    link_use: FloatColumn
    slowdowns: GenerationSlowdowns = NOTHING_SLOWED
    spread: Spread = NO_SPREAD

    def rows_of_rank(self, rank: int) -> slice:
        """The rows of the tasks of *rank*."""
        start = int(self.durations.rank_offset[rank])
        return slice(start, start + self.job.program_of(rank).task_count)

    def take(
        self, rows: NDArray[np.int64], rank_offset: NDArray[np.int64], *, job: JobGraph
    ) -> PricedJob:
        """The prices in *rows* alone, for a *job* whose ranks begin at *rank_offset* of them."""
        return replace(
            self,
            job=job,
            durations=DurationTable(self.durations.values_ns[rows], rank_offset),
            float_ns=self.float_ns[rows],
            relative_sigma=self.relative_sigma[rows],
            provenance=self.provenance[rows],
            family=self.family[rows],
            bound=self.bound[rows],
            link_use=self.link_use[rows],
        )

    def sample(self, count: int, *, seed: int) -> Samples:
        """*count* duration vectors that the uncertainties allow."""
        # Few tasks differ in what decides their factors.
        sigmas = np.unique(self.relative_sigma)
        is_predicted = self.provenance != Provenance.RECORDED
        place_in = (len(sigmas), len(FAMILIES), 2)
        code = np.ravel_multi_index(
            (np.searchsorted(sigmas, self.relative_sigma), self.family, is_predicted), place_in
        )
        used = np.unique(code)
        sigma, family, is_spread = np.unravel_index(used, place_in)
        draws = np.stack([family_draws(name, count, seed=seed) for name in FAMILIES])
        ratio, shared_sigma = self._parts_of_spread()
        exponents = (ratio * sigmas[sigma])[:, np.newaxis] * draws[family]
        exponents += (is_spread * shared_sigma)[:, np.newaxis] * even_draws(count, seed=seed)
        place = np.searchsorted(used, code)
        return Samples(np.exp(exponents), place, self.float_ns, self.durations.rank_offset)

    def _parts_of_spread(self) -> tuple[float, float]:
        """What remains of the errors of families, and the error that all ops share.

        A spread that includes the errors of kernels is the whole one: families keep at most
        half of it, a quarter of its variance, and what all ops share is the rest.
        """
        whole = self.spread.relative_sigma
        if not self.spread.includes_kernels:
            return 1.0, whole
        weights = np.where(self.family == FAMILIES.index("host"), 0.0, self.float_ns)
        by_family = np.bincount(self.family, weights * self.relative_sigma)
        kernels = float(np.linalg.norm(by_family)) / max(float(weights.sum()), 1.0)
        ratio = min(1.0, 0.5 * whole / max(kernels, 1e-9))
        return ratio, math.sqrt(whole**2 - (ratio * kernels) ** 2)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Drawn durations: *factors* x vectors, and per row of the table its factor and nominal time.

    Only requested vectors take memory: all of them need a hundred bytes per task and more.
    """

    factors: FloatColumn
    place: NDArray[np.int64]
    float_ns: FloatColumn
    rank_offset: NDArray[np.int64]

    @property
    def vector_count(self) -> int:
        """Number of duration vectors."""
        return int(self.factors.shape[1])

    def vectors(self, first: int, stop: int) -> DurationTable:
        """The vectors from *first* to before *stop*."""
        factors = np.ascontiguousarray(self.factors[:, first:stop])
        values_ns = np.empty((len(self.place), stop - first), dtype=np.int64)
        for row in range(0, len(self.place), _ROWS_AT_ONCE):
            rows = slice(row, row + _ROWS_AT_ONCE)
            drawn_ns = factors[self.place[rows]]
            drawn_ns *= self.float_ns[rows, np.newaxis]
            values_ns[rows] = np.rint(drawn_ns, out=drawn_ns)
        return DurationTable(values_ns, self.rank_offset)


def even_draws(count: int, *, seed: int) -> NDArray[np.float64]:
    """Standard normal draws, one from each of *count* equal parts of the distribution.

    Few draws then have the quantiles of many, and the interval is made of quantiles.
    """
    from scipy.special import ndtri  # heavy, and only draws need it

    parts: NDArray[np.float64] = ndtri((np.arange(count) + 0.5) / count)
    return np.random.default_rng([seed, zlib.crc32(b"spread")]).permutation(parts)


def family_draws(family: str, count: int, *, seed: int) -> NDArray[np.float64]:
    """Standard normal draws of *family*; they depend on its name and the seed only."""
    generator = np.random.default_rng([seed, zlib.crc32(family.encode())])
    return generator.standard_normal(count)


def stated_prices(job: JobGraph, known: PricedJob | None = None) -> PricedJob:
    """The stated durations of *job* as prices without uncertainty.

    Tasks that *known* has by their origin keep their family and its uncertainty, and those that
    still state the known duration keep the price before it was rounded.
    """
    provenance = np.array(
        [op.provenance if isinstance(op, Fixed) else 0 for op in job.ops], dtype=np.int8
    )
    if known is None and not isinstance(job.programs, tuple | list):
        # The tasks of programs that stay in their folder are not read here: prices by op.
        values_ns = np.array([duration_of(op) for op in job.ops], dtype=np.int64)[:, np.newaxis]
        durations: DurationTable = OpDurations(values_ns, job.rank_program.astype(np.int64))
        return _certain_prices(job, durations, provenance)
    # One row per program, in the order in which ranks first run them.
    programs = [job.programs[place] for place in dict.fromkeys(job.rank_program.tolist())]
    ops = np.concatenate([program.op for program in programs])
    certain = _certain_prices(job, stated_durations(job), provenance[ops])
    if known is None:
        return certain
    return _recall(certain, known, np.concatenate([program.origin for program in programs]))


def _certain_prices(job: JobGraph, durations: DurationTable, provenance: CodeColumn) -> PricedJob:
    count = len(durations.values_ns)
    return PricedJob(
        job=job,
        durations=durations,
        float_ns=durations.values_ns[:, 0].astype(np.float64),
        relative_sigma=np.zeros(count),
        provenance=provenance,
        family=np.full(count, FAMILIES.index("fixed"), dtype=np.int8),
        bound=np.full(count, Bound.UNKNOWN, dtype=np.int8),
        link_use=np.zeros((count, 3)),
    )


def _recall(certain: PricedJob, known: PricedJob, origins: NDArray[np.int32]) -> PricedJob:
    is_known = origins != NO_ORIGIN
    was = known.take(np.where(is_known, origins, 0), certain.durations.rank_offset, job=certain.job)
    is_same = is_known & (was.durations.values_ns[:, 0] == certain.durations.values_ns[:, 0])
    return replace(
        certain,
        float_ns=np.where(is_same, was.float_ns, certain.float_ns),
        relative_sigma=np.where(is_known, was.relative_sigma, 0.0),
        family=np.where(is_known, was.family, certain.family).astype(np.int8),
        bound=np.where(is_known, was.bound, certain.bound).astype(np.int8),
        link_use=np.where(is_known[:, np.newaxis], was.link_use, 0.0),
        slowdowns=known.slowdowns,
        spread=known.spread,
    )


def stated_durations(job: JobGraph) -> DurationTable:
    """The durations that the tasks of a pinned *job* state."""
    return build_shared_durations(job, [durations_of(job, program) for program in job.programs])


def durations_of(job: JobGraph, program: Program) -> NDArray[np.int64]:
    """The durations that the tasks of *program* state."""
    ops, place = np.unique(program.op, return_inverse=True)
    durations = np.array([duration_of(job.ops[op]) for op in ops.tolist()], dtype=np.int64)
    return durations[place]
