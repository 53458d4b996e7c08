"""Embedding lookups: one fused kernel for all tables of a rank.

Rows come from device memory or from the L2, depending on the distribution of indices; the launch
floor is paid once, not per table. The backward pass either sorts the indices and updates each
distinct row once (`fbgemm`), writes the sum of its gradients to memory for a second kernel that
does so (`two_step`), or adds every gradient in place (`table_batched`, its predecessor).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embeddings.table import Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.embedding_constants import (
    EmbeddingConstants,
    constants_for,
    load_constants,
    measured_constants,
)
from perfmodel.costs.embedding_terms import (
    CACHE_SHARE,
    GATHER_BYTES,
    MILLI,
    SEGMENT_UPDATES,
    Int64s,
    Term,
    TermsSetting,
    add_terms,
    most_tables_at_once,
    tables_terms,
)
from perfmodel.costs.estimates import Bound, CodeColumn, Estimates, FloatColumn, build_estimates
from perfmodel.graph.ops import EmbeddingOp, Pass
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

CACHE_BANDWIDTH_RATIO = 3.0
CACHE_BYTES_PER_CLOCK = 37.0
"""L2 bandwidth where the datasheet does not state it: so much memory bandwidth, but no more than
multiprocessors read, 35 bytes per clock on an A100 and 37 on an H100."""
PREPARED_BYTES = 64
"""Traffic per index outside sorting: made linear, counted, run-length coded, scanned."""
SORTED_BYTES = 24
"""Traffic per index of one sorting pass: key and value, read and written."""
PASS_BITS = 8
PREPARING_KERNELS = 12
"""Kernels before the updates of a sorted backward pass, without the sorting passes.

Counted in a recording. Each pays the floor, as do the passes and both updates.
"""
WEIGHT_KERNELS = 2
"""Further kernels that sort the weights of indices, without the passes."""
WARPS_PER_BLOCK = 16
BLOCKS_PER_SM = 2


def price_embeddings(
    ops: Sequence[EmbeddingOp], device: Device, _stack: SoftwareStack
) -> Estimates:
    """Predict fused lookups and their backward pass with the update."""
    # Both directions of a rank use the same tables.
    lookups = list(dict.fromkeys(op.lookup for op in ops))
    number_of = {lookup: number for number, lookup in enumerate(lookups)}
    terms = lookups_terms(lookups, device)[[number_of[op.lookup] for op in ops]]
    pricer = LookupPricer(device)
    durations = np.empty(len(ops))
    bounds: CodeColumn = np.empty(len(ops), dtype=np.int8)
    alike: dict[tuple[Pass, str, DType], list[int]] = {}
    for row, op in enumerate(ops):
        key = op.direction, op.lookup.kernel, op.lookup.gradient_dtype
        alike.setdefault(key, []).append(row)
    for key, rows in alike.items():
        durations[rows], bounds[rows] = pricer.times(terms[rows], *key)
    is_own = device.generation in load_constants() or measured_constants(device) is not None
    return build_estimates(
        durations,
        relative_sigma=pricer.constants.relative_sigma,
        provenance=Provenance.INTERPOLATED if is_own else Provenance.EXTRAPOLATED,
        bound=bounds,
    )


def lookups_terms(lookups: Sequence[Lookup], device: Device) -> Int64s:
    """Lookups x terms, those of all tables of a lookup together."""
    settings: dict[TermsSetting, list[int]] = {}
    for number, lookup in enumerate(lookups):
        at_once = min(len(lookup.tables), most_tables_at_once(device, lookup.batch_size))
        setting = TermsSetting(
            lookup.batch_size, lookup.optimizer, device.l2_bytes, max(at_once, 1)
        )
        settings.setdefault(setting, []).append(number)
    found = np.empty((len(lookups), len(Term)), dtype=np.int64)
    for setting, numbers in settings.items():
        tables = [table for number in numbers for table in lookups[number].tables]
        bounds = np.cumsum([len(lookups[number].tables) for number in numbers])[:-1]
        for number, terms in zip(
            numbers, np.split(tables_terms(tables, setting), bounds), strict=True
        ):
            together = add_terms(terms)
            is_cached = together[Term.READ_BYTES] <= CACHE_SHARE * device.l2_bytes
            if lookups[number].is_repeated and is_cached:
                together[[Term.READ_BYTES, Term.FETCHED_PIECES]] = 0
            found[number] = together
    return found


class LookupPricer:
    """From terms to durations on one device; rows of terms are kernels.

    *constants* are those of the device's generation unless others are given.
    """

    def __init__(self, device: Device, constants: EmbeddingConstants | None = None) -> None:
        self.constants: EmbeddingConstants = constants or constants_for(device)
        memory = float(device.memory_bandwidth_bytes_per_s)
        read = CACHE_BYTES_PER_CLOCK * device.sm_count * device.clock_hz
        cache = float(device.l2_bandwidth_bytes_per_s or min(CACHE_BANDWIDTH_RATIO * memory, read))
        self._memory_ns = NS_PER_S / (self.constants.memory_ratio * memory)
        self._update_ns = NS_PER_S / (self.constants.update_ratio * memory)
        self._sort_ns = NS_PER_S / (self.constants.sort_ratio * memory)
        self._cache_ns = NS_PER_S / (self.constants.cache_ratio * cache)
        self._plain_cache_ns = NS_PER_S / (self.constants.plain_cache_ratio * cache)
        self._host_ns = NS_PER_S / device.pcie_bandwidth_bytes_per_s
        self._added_ns = NS_PER_S / (self.constants.updates_per_clock * device.clock_hz)
        self._hot_ns = NS_PER_S / (self.constants.row_updates_per_clock * device.clock_hz)
        self._sm_count = device.sm_count
        self._l2_bytes = device.l2_bytes

    def times(
        self,
        terms: Int64s,
        direction: Pass,
        kernel: str,
        gradient_dtype: DType = DType.FP32,
    ) -> tuple[FloatColumn, NDArray[np.int8]]:
        """Durations and what bounds them, of kernels x terms."""
        numbers = terms.T.astype(np.float64)
        if direction is Pass.FORWARD:
            return self._forward(numbers, kernel)
        if kernel == "table_batched":
            return self._added(numbers)
        return self._sorted(numbers, kernel, gradient_dtype)

    def _forward(self, terms: FloatColumn, kernel: str) -> tuple[FloatColumn, NDArray[np.int8]]:
        # The last writes stay in the L2 when the kernel ends.
        written = np.maximum(terms[Term.OUTPUT_BYTES] - self._l2_bytes, 0)
        memory_ns = (terms[Term.READ_BYTES] + written) * self._memory_ns
        is_fbgemm = kernel.startswith("fbgemm")
        cache_ns = terms[Term.CACHE_BYTES] * (self._cache_ns if is_fbgemm else self._plain_cache_ns)
        host_ns = terms[Term.HOST_BYTES] * self._host_ns
        # Warps wait for the rows that they fetch from memory, and few are fetched at once.
        fetched_ns = terms[Term.FETCHED_PIECES] * (self.constants.fetched_ns / self._sm_count)
        tail_ns = terms[Term.TAIL_ROWS] * (self.constants.tail_row_ns / MILLI)
        moved_ns = _norm4(memory_ns, cache_ns, fetched_ns)
        total_ns = self.constants.floor_ns + moved_ns + host_ns + tail_ns
        return total_ns, _bound(memory_ns, cache_ns, host_ns)

    def _added(self, terms: FloatColumn) -> tuple[FloatColumn, NDArray[np.int8]]:
        """Gradients are read once per bag and added to every row in place, all at the same time.

        Additions to the hottest row of a table wait for each other.
        """
        moved = terms[Term.OUTPUT_BYTES] + terms[Term.UPDATE_BYTES]
        memory_ns = moved * self._memory_ns
        contended_ns = terms[Term.HOT_NUMBERS] * self._hot_ns
        added_ns = np.maximum(terms[Term.ADDED_NUMBERS] * self._added_ns, contended_ns)
        host_ns = terms[Term.HOST_BYTES] * self._host_ns
        total_ns = self.constants.floor_ns + np.maximum(memory_ns, added_ns) + host_ns
        return total_ns, _bound(memory_ns, added_ns, host_ns)

    def _sorted(
        self, terms: FloatColumn, kernel: str, gradient_dtype: DType
    ) -> tuple[FloatColumn, NDArray[np.int8]]:
        """Indices are sorted, gradients of a row are summed, and each row is updated once."""
        parts = self.update_parts(terms, kernel, gradient_dtype)
        memory_ns, cache_ns = self._merged_rows(terms)
        host_ns = terms[Term.HOST_BYTES] * self._host_ns
        total_ns = parts["prepared"] + parts["long"] + parts["short"] + host_ns
        return total_ns, _bound(memory_ns + parts["prepared"], cache_ns, host_ns)

    def update_parts(
        self, terms: FloatColumn, kernel: str, gradient_dtype: DType = DType.FP32
    ) -> dict[str, FloatColumn]:
        """Times of the kernels of a sorted backward pass, of terms x kernels.

        `prepared` is the sorting, `long` the rows with many updates, `short` the other rows.
        """
        draws = terms[Term.DRAWS]
        bits = np.ceil(np.log2(np.maximum(terms[Term.ROWS], 2)))
        passes = np.ceil(bits / PASS_BITS)
        weighted = terms[Term.WEIGHTED_DRAWS]
        sorted_bytes = SORTED_BYTES * passes * (draws + weighted)
        launches = PREPARING_KERNELS + passes + (weighted > 0) * (WEIGHT_KERNELS + passes)
        floor_ns = self.constants.floor_ns
        prepared_ns = (PREPARED_BYTES * draws + sorted_bytes) * self._sort_ns + launches * floor_ns
        if kernel == "fbgemm_2022":
            long_ns, short_ns = self._long_and_short(terms)
        elif kernel == "two_step":
            long_ns = self._summed(terms, gradient_dtype.size_bytes)
            moved = terms[Term.UPDATE_BYTES] + terms[Term.SUMMED_BYTES]
            short_ns = moved * self._update_ns
        else:
            # Rows of any length are cut into segments, so a hot row delays no other.
            long_ns, short_ns = np.zeros_like(draws), _norm4(*self._merged_rows(terms))
        return {"prepared": prepared_ns, "long": floor_ns + long_ns, "short": floor_ns + short_ns}

    def _long_and_short(self, terms: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Rows with many updates, one block each, and the others, one warp each."""
        constants = self.constants
        slots = self._sm_count * BLOCKS_PER_SM
        blocks_ns = terms[Term.LONG_ROWS] * (constants.long_row_ns / MILLI / slots)
        long_ns = np.maximum(blocks_ns, terms[Term.LONG_CACHE_BYTES] * self._cache_ns)
        memory_ns, cache_ns = self._short_rows(terms)
        empty_ns = terms[Term.DRAWS] * (constants.block_ns / (WARPS_PER_BLOCK * self._sm_count))
        return long_ns, np.maximum(_norm4(memory_ns, cache_ns), empty_ns)

    def _summed(self, terms: FloatColumn, number_bytes: int) -> FloatColumn:
        """Gradients of every row are read through the cache, and their sum is written."""
        shorter = number_bytes / DType.FP32.size_bytes
        summed = terms[Term.SUMMED_BYTES]
        memory_ns = (shorter * terms[Term.GRADIENT_BYTES] + summed) * self._memory_ns
        narrow = GATHER_BYTES * terms[Term.DRAWS]
        handled = np.hypot(number_bytes * terms[Term.ADDED_NUMBERS], narrow)
        return _norm4(memory_ns, (handled + summed) * self._plain_cache_ns)

    def _merged_rows(self, terms: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Memory and cache time of all rows; each segment writes and reads a partial sum."""
        memory_ns, short_ns = self._short_rows(terms)
        long_ns = terms[Term.LONG_CACHE_BYTES] * self._cache_ns
        partial_ns = terms[Term.CACHE_BYTES] * (2 * self._cache_ns / SEGMENT_UPDATES)
        return memory_ns, short_ns + long_ns + partial_ns

    def _short_rows(self, terms: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Memory and cache time of rows with few updates."""
        read_ns = terms[Term.GRADIENT_BYTES] * self._memory_ns
        moved_ns = read_ns + terms[Term.UPDATE_BYTES] * self._update_ns
        return moved_ns, terms[Term.SHORT_CACHE_BYTES] * self._cache_ns


def _norm4(*times: FloatColumn) -> FloatColumn:
    """Soft maximum of times, from operations that round the same everywhere."""
    total: FloatColumn = np.sqrt(np.sqrt(sum(one * one * one * one for one in times)))
    return total


def _bound(memory_ns: FloatColumn, cache_ns: FloatColumn, host_ns: FloatColumn) -> NDArray[np.int8]:
    names = np.array([Bound.MEMORY, Bound.CACHE, Bound.LINK], dtype=np.int8)
    chosen: NDArray[np.int8] = names[np.argmax(np.stack([memory_ns, cache_ns, host_ns]), axis=0)]
    return chosen
