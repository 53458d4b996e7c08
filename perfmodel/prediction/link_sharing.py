"""Link sharing: what collectives of a rank that overlap lose to each other.

While the links they use are asked for more than they can carry, each runs
slower by that factor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.layout import Int64s

Floats = NDArray[np.float64]


def overlap_losses(starts_ns: Int64s, ends_ns: Int64s, link_use: Floats) -> Floats:
    """The share of each interval lost to the others, its worst link deciding.

    Where intervals ask a link for d > 1 times what it can carry, each that
    uses it all the time advances at 1/d.
    """
    if not len(starts_ns):
        return np.zeros(0)
    moments = np.unique(np.concatenate([starts_ns, ends_ns]))
    first, last = np.searchsorted(moments, starts_ns), np.searchsorted(moments, ends_ns)
    spans = np.diff(moments)
    shares = np.zeros(len(starts_ns))
    for link in range(link_use.shape[1]):
        change = np.zeros(len(moments))
        np.add.at(change, first, link_use[:, link])
        np.subtract.at(change, last, link_use[:, link])
        demand = np.cumsum(change)[:-1]
        idle = spans * (1 - 1 / np.maximum(demand, 1.0))
        reached = np.concatenate([[0.0], np.cumsum(idle)])
        lost_ns = (reached[last] - reached[first]) * np.minimum(link_use[:, link], 1.0)
        shares = np.maximum(shares, lost_ns / np.maximum(ends_ns - starts_ns, 1))
    # Sums of shares may miss 1 by the last bit.
    shares[shares < 1e-9] = 0.0
    return shares
