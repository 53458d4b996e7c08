"""Assignment: a first placement of pieces from costs that add up, by MILP or greedily.

Ranks meet after the lookup, in both exchanges and at the end, so what counts
is the largest lookup, the largest width and the largest update, each over all
ranks. What comes out is only where the search starts: it is judged by the
replayed time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.planning.plan_costs import AloneCosts, Floats

Int64s = NDArray[np.int64]

MILP_PLACES = 3_000
"""Pieces x ranks up to which the exact optimiser is asked."""
MILP_GAP = 0.002


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """What has to be placed: costs, exchanged width and memory of every piece.

    *width_ns* is what a number of width costs, so that all of them add up.
    """

    costs: AloneCosts
    widths: Floats
    memory_bytes: Floats
    width_ns: float
    room_bytes: float

    @property
    def parts_ns(self) -> Floats:
        """Lookup, update and exchange of every piece, parts x pieces; tails aside."""
        return np.stack([self.costs.lookup_ns, self.costs.update_ns, self.width_ns * self.widths])


def assign(pieces: Pieces, *, rank_count: int, seconds: float) -> Int64s | None:
    """A rank for every piece, or None where not all of them fit.

    The exact optimiser gets *seconds*; what it has by then is taken.
    """
    if seconds > 0 and len(pieces.widths) * rank_count <= MILP_PLACES:
        found = _assign_exactly(pieces, rank_count, seconds)
        if found is not None:
            return found
    return assign_greedily(pieces, rank_count=rank_count)


def assign_greedily(pieces: Pieces, *, rank_count: int) -> Int64s | None:
    """Dearest piece first, to the rank with least to do that has room."""
    total = pieces.parts_ns.sum(axis=0) + pieces.costs.tail_ns
    load, used = np.zeros(rank_count), np.zeros(rank_count)
    ranks = np.zeros(len(total), dtype=np.int64)
    for piece in np.argsort(-total, kind="stable"):
        cost = np.where(used + pieces.memory_bytes[piece] <= pieces.room_bytes, load, np.inf)
        rank = int(cost.argmin())
        if not np.isfinite(cost[rank]):
            return None
        load[rank] += total[piece]
        used[rank] += pieces.memory_bytes[piece]
        ranks[piece] = rank
    return ranks


def _assign_exactly(pieces: Pieces, rank_count: int, seconds: float) -> Int64s | None:
    """Least (largest lookup + update + exchange) over ranks, as a mixed-integer program.

    Columns: a place for every piece x rank, the largest of each part, and the
    longest tail of every rank, which is part of its lookup.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, eye_array, hstack, kron

    parts = pieces.parts_ns
    scale = float(parts.sum()) or 1.0
    count, places = parts.shape[1], parts.shape[1] * rank_count
    further = len(parts) + rank_count
    each_rank = np.eye(rank_count)

    once = hstack([kron(eye_array(count), np.ones((1, rank_count))), csr_array((count, further))])
    tails = np.diag(pieces.costs.tail_ns / scale)[pieces.costs.tail_ns > 0]
    weights = np.concatenate([parts / scale, tails])
    # Sums of the parts stay below their largest; a lookup has the longest tail in it.
    extra = np.zeros((len(weights), rank_count, further))
    for number in range(len(parts)):
        extra[number, :, number] = -1.0
    extra[0, :, len(parts) :] = each_rank
    extra[len(parts) :, :, len(parts) :] = -each_rank
    below = hstack([kron(weights, each_rank), csr_array(extra.reshape(-1, further))])
    memory = kron(pieces.memory_bytes[None, :] / pieces.room_bytes, each_rank)
    answer = milp(
        np.concatenate([np.zeros(places), np.ones(len(parts)), np.zeros(rank_count)]),
        integrality=np.concatenate([np.ones(places), np.zeros(further)]),
        bounds=Bounds(0, np.concatenate([np.ones(places), np.full(further, np.inf)])),
        constraints=[
            LinearConstraint(once, 1, 1),
            LinearConstraint(below, -np.inf, 0),
            LinearConstraint(hstack([memory, csr_array((rank_count, further))]), -np.inf, 1),
        ],
        options={"time_limit": seconds, "mip_rel_gap": MILP_GAP},
    )
    if answer.x is None:
        return None
    chosen_rank: Int64s = answer.x[:places].reshape(count, rank_count).argmax(axis=1)
    return chosen_rank
