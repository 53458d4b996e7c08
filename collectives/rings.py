"""Rings: how many fit over the direct wires of a mesh at once, and how fast they are together.

A ring is a directed cycle through every GPU of the group. The best set of
rings is a linear programme over all cycles, which is small for the meshes that exist (8 GPUs).
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np

MAX_MESH_GPUS = 8

Capacities = tuple[tuple[float, ...], ...]


@lru_cache(maxsize=256)
def pack_rings(capacities: Capacities) -> float:
    """Bandwidth of the best set of rings, given what each GPU can send each other one directly.

    Zero when no cycle passes all GPUs. Beyond 8 GPUs the bound by the poorest GPU is taken.
    """
    count = len(capacities)
    matrix = np.array(capacities, dtype=float)
    if count > MAX_MESH_GPUS:
        return float(min(matrix.sum(axis=0).min(), matrix.sum(axis=1).min()))
    if count == 2:
        return float(min(matrix[0, 1], matrix[1, 0]))
    cycles = _usable_cycles(matrix)
    if not cycles.size:
        return 0.0
    return _best_packing(cycles, matrix)


def _usable_cycles(matrix: np.ndarray) -> np.ndarray:
    count = len(matrix)
    rest = np.array(list(itertools.permutations(range(1, count))), dtype=np.int64)
    cycles = np.hstack([np.zeros((len(rest), 1), dtype=np.int64), rest])
    exists = matrix[cycles, np.roll(cycles, -1, axis=1)] > 0
    usable: np.ndarray = cycles[exists.all(axis=1)]
    return usable


def _best_packing(cycles: np.ndarray, matrix: np.ndarray) -> float:
    from scipy.optimize import linprog  # heavy, and only meshes need it
    from scipy.sparse import csr_matrix

    count = len(matrix)
    wires = cycles * count + np.roll(cycles, -1, axis=1)
    columns = np.repeat(np.arange(len(cycles)), count)
    load = csr_matrix(
        (np.ones(wires.size), (wires.ravel(), columns)), shape=(count * count, len(cycles))
    )
    # In units of the widest wire: with bytes a second the solver takes 1e11 for infinite.
    widest = float(matrix.max())
    answer = linprog(
        -np.ones(len(cycles)),
        A_ub=load,  # type: ignore[call-overload]  # the stubs do not know sparse matrices
        b_ub=matrix.ravel() / widest,
    )
    assert answer.success, answer.message  # nothing sent is always possible
    return float(-answer.fun) * widest


def chain_bandwidth(capacities: Capacities) -> float:
    """Bandwidth of one chain or tree over the direct wires; zero when they do not join all GPUs.

    NCCL finds one such chain where no ring fits, over one lane: the thinnest wire bounds it.
    """
    matrix = np.array(capacities, dtype=float)
    reached = {0}
    waiting = [0]
    while waiting:
        place = waiting.pop()
        new = {int(other) for other in np.nonzero(matrix[place])[0]} - reached
        reached |= new
        waiting.extend(sorted(new))
    if len(reached) < len(matrix):
        return 0.0
    return float(matrix[matrix > 0].min())
