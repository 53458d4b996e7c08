"""Assignment: a first placement of pieces from costs that add up, by MILP or greedily.

The cost of a piece is what its lookup and update would take alone; ranks
should be alike in that and in the width they exchange. What comes out is only
where the search starts: it is judged by the replayed time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

MILP_PLACES = 3_000
"""Pieces x ranks up to which the exact optimiser is asked."""
MILP_GAP = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """What has to be placed: cost, exchanged width and memory of every piece.

    *width_ns* is what a number of width costs, so that both add up.
    """

    cost_ns: Floats
    widths: Floats
    memory_bytes: Floats
    width_ns: float
    room_bytes: float


def assign(pieces: Pieces, *, rank_count: int, seconds: float) -> Int64s | None:
    """A rank for every piece, or None where not all of them fit.

    The exact optimiser gets *seconds*; what it has by then is taken.
    """
    if seconds > 0 and len(pieces.cost_ns) * rank_count <= MILP_PLACES:
        found = _assign_exactly(pieces, rank_count, seconds)
        if found is not None:
            return found
    return assign_greedily(pieces, rank_count=rank_count)


def assign_greedily(pieces: Pieces, *, rank_count: int) -> Int64s | None:
    """Dearest piece first, to the rank with least to do that has room."""
    total = pieces.cost_ns + pieces.width_ns * pieces.widths
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
    """Least (largest cost + largest width) over ranks, as a mixed-integer program."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, eye_array, hstack, kron

    count = len(pieces.cost_ns)
    places = count * rank_count
    scale = max(float(pieces.cost_ns.sum() + pieces.width_ns * pieces.widths.sum()), 1e-9)
    once = kron(eye_array(count), np.ones((1, rank_count)))
    rows = [hstack([once, csr_array((count, 2))])]
    low, high = [np.ones(count)], [np.ones(count)]
    for column, weights in enumerate(
        (pieces.cost_ns / scale, pieces.width_ns * pieces.widths / scale)
    ):
        limit = np.zeros((rank_count, 2))
        limit[:, column] = -1
        rows.append(hstack([kron(weights[None, :], eye_array(rank_count)), csr_array(limit)]))
        low.append(np.full(rank_count, -np.inf))
        high.append(np.zeros(rank_count))
    memory = pieces.memory_bytes / pieces.room_bytes
    rows.append(hstack([kron(memory[None, :], eye_array(rank_count)), csr_array((rank_count, 2))]))
    low.append(np.full(rank_count, -np.inf))
    high.append(np.ones(rank_count))
    answer = milp(
        np.concatenate([np.zeros(places), np.ones(2)]),
        integrality=np.concatenate([np.ones(places), np.zeros(2)]),
        bounds=Bounds(0, np.concatenate([np.ones(places), np.full(2, np.inf)])),
        constraints=[
            LinearConstraint(part, below, above)
            for part, below, above in zip(rows, low, high, strict=True)
        ],
        options={"time_limit": seconds, "mip_rel_gap": MILP_GAP},
    )
    if answer.x is None:
        return None
    chosen: Int64s = answer.x[:places].reshape(count, rank_count).argmax(axis=1)
    return chosen
