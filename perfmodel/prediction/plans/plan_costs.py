"""Plan costs: durations of the tasks that a plan changes, for many plans at once.

Uses the cost models of a whole job, but prices only what plans change. The durations equal those of
`price_job` to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.calibration import calibration_for
from collectives.collective import (
    Collective,
    CollectiveCost,
    CollectiveKind,
    CollectiveSoftware,
)
from collectives.group import wiring_of
from collectives.pricing import DEFAULT_SOFTWARE, price_collective, price_sizes
from collectives.uneven import RankLoad, price_uneven
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.embedding import LookupPricer
from perfmodel.costs.embedding_terms import Term, TermsSetting, tables_terms
from perfmodel.costs.models import COMMUNICATION_FAMILY, price_ops
from perfmodel.costs.pricing import cluster_seen_by
from perfmodel.graph.ops import MemoryBound, Pass
from perfmodel.prediction.plans.placements import Int64s, PlanColumns, RankLoads
from perfmodel.workloads.dlrm.exchange import LENGTH_BYTES, build_row_exchange
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.kernels import cast, elementwise
from topologies import Cluster

Floats = NDArray[np.float64]
CHANGING = (
    "embedding/lookup forward",
    "embedding/update backward",
    "embedding/pooled all_to_all forward",
    "embedding/gradients all_to_all backward",
    "embedding/indices all_to_all",
    "embedding/cast forward",
    "embedding/cast backward",
    "embedding/partial sums forward",
    "embedding/row sums reduce_scatter forward",
    "embedding/row gradients all_gather backward",
)
"""Operators whose durations depend on the plan: the columns of a plan's durations."""
LOOKUP, UPDATE, POOLED, GRADIENTS, INDICES = range(5)
CAST_OUT, CAST_BACK, PARTIAL, ROW_SUMS, ROW_GRADIENTS = range(5, len(CHANGING))
SOME_BYTES = 2**20
GRADIENT_PASSES = 8
"""How often a dense gradient is read or written from clearing to the optimizer's step."""


@dataclass(frozen=True, slots=True, eq=False)
class AloneCosts:
    """Cost of each piece on its own, without fixed kernel time.

    Lookups and updates of a rank add up; only its longest tail counts.
    """

    lookup_ns: Floats
    update_ns: Floats
    tail_ns: Floats

    @property
    def total_ns(self) -> Floats:
        """Total cost of each piece."""
        return self.lookup_ns + self.update_ns + self.tail_ns


class PlanPricer:
    """Prices the tasks that plans of *run* change on *cluster*."""

    def __init__(self, run: DlrmRun, cluster: Cluster) -> None:
        spec, stack = run.spec, run.stack
        self._spec = spec
        self._cluster = cluster
        self._stack = stack
        self._samples = run.samples
        self._lookups = LookupPricer(cluster.device)
        self._kernel = stack.tables.kernel_for(spec.embedding.optimizer)
        self._gradient_dtype = run.arriving_dtype
        architecture = cluster.device.generation
        self._lookup_ratio = stack.time_ratio("embedding", architecture)
        self.exchange = ExchangePricer(
            cluster_seen_by(stack, cluster),
            CollectiveSoftware(algorithm=stack.collective_algorithm),
            time_ratio=stack.time_ratio(COMMUNICATION_FAMILY, architecture),
        )
        self._small_ns: dict[MemoryBound, float] = {}

    def price(self, plans: Sequence[PlanColumns], loads: RankLoads) -> Floats:
        """Durations of *plans* before rounding, plans x columns x ranks.

        They follow from the *loads* of ranks and the widths of each plan's partial sums.
        """
        out = self._price_loads(loads)
        speeds = self._cluster.speeds_of(np.arange(self._cluster.rank_count, dtype=np.int64))
        dtype = self._spec.embedding.exchange_dtype
        for place, plan in enumerate(plans):
            if plan.reduced_width:
                row_exchange = build_row_exchange(self._spec.batch * plan.reduced_width, dtype)
                out[place, ROW_SUMS] = self.exchange.even_ns(row_exchange.sums)
                out[place, ROW_GRADIENTS] = self.exchange.even_ns(row_exchange.gradients)
            if plan.partial_width:
                kernel = elementwise("reduce_sum", self._samples * plan.partial_width, dtype)
                out[place, PARTIAL] = self._small(kernel)
        out[:, (LOOKUP, UPDATE, CAST_OUT, CAST_BACK, PARTIAL)] *= 1.0 / speeds
        if self._spec.training.forward_only:
            out[:, (UPDATE, GRADIENTS, CAST_BACK, ROW_GRADIENTS)] = 0.0
        return out

    def _price_loads(self, loads: RankLoads) -> Floats:
        plans, ranks = loads.made_numbers.shape
        out = np.zeros((plans, len(CHANGING), ranks))
        terms = loads.terms.reshape(plans * ranks, -1)
        for column, direction in ((LOOKUP, Pass.FORWARD), (UPDATE, Pass.BACKWARD)):
            out[:, column] = self.pass_ns(terms, direction).reshape(plans, ranks)
        section = self._spec.embedding
        sent = loads.sent_numbers * section.exchange_dtype.size_bytes
        out[:, POOLED] = out[:, GRADIENTS] = self.exchange.times_ns(sent)
        indices = (
            loads.index_counts * section.index_dtype.size_bytes
            + self._samples * loads.piece_counts * LENGTH_BYTES
        )
        out[:, INDICES] = self.exchange.times_ns(indices)
        if section.exchange_dtype is not DType.FP32:
            formats = (DType.FP32, section.exchange_dtype)
            out[:, CAST_OUT] = self._by_size(loads.made_numbers, *formats)
            out[:, CAST_BACK] = self._by_size(loads.made_numbers, *reversed(formats))
        return out

    def alone(self, terms: Int64s) -> AloneCosts:
        """Costs of single pieces, pieces x terms, without fixed kernel time."""
        floors = np.zeros_like(terms)
        floors[:, Term.ROWS] = terms[:, Term.ROWS]
        smooth = terms.copy()
        smooth[:, Term.TAIL_ROWS] = 0
        lookup, smooth_lookup, update = (
            self.pass_ns(rows, direction) - self.pass_ns(floors, direction)
            for rows, direction in (
                (terms, Pass.FORWARD),
                (smooth, Pass.FORWARD),
                (terms, Pass.BACKWARD),
            )
        )
        return AloneCosts(smooth_lookup, update, lookup - smooth_lookup)

    def pass_ns(self, terms: Int64s, direction: Pass) -> Floats:
        """Lookups or updates of ranks x terms."""
        times, _ = self._lookups.times(terms, direction, self._kernel, self._gradient_dtype)
        return times * self._lookup_ratio

    @property
    def width_ns(self) -> float:
        """Cost of one unit of pooled width in both exchanges, with equal widths on all ranks."""
        ranks = self._cluster.rank_count
        mean = max(1, round(self._spec.embedding.total_width / ranks))
        size = self._spec.embedding.exchange_dtype.size_bytes
        sent = np.full((2, ranks), self._samples * mean * size, dtype=np.int64)
        sent[0] = 0
        nothing, something = self.exchange.times_ns(sent)
        return float(2 * (something.max() - nothing.max()) / mean)

    def copied_ns(self, tables: Sequence[EmbeddingTable]) -> Floats:
        """Approximate cost of data-parallel tables on every rank; only for choosing start layouts.

        A lookup of the rank's own samples, and a dense gradient that is cleared, filled, reduced,
        copied and applied.
        """
        device = self._cluster.device
        setting = TermsSetting(self._samples, self._spec.embedding.optimizer, device.l2_bytes)
        local = tables_terms(tables, setting)
        lookup_ns, _ = self._lookups.times(local, Pass.FORWARD, self._kernel)
        numbers = np.array([table.pooling_factor * table.width for table in tables])
        size_bytes = np.array([table.size_bytes for table in tables], dtype=np.float64)
        filled = 3 * self._samples * numbers * DType.FP32.size_bytes
        moved_ns = (GRADIENT_PASSES * size_bytes + filled) * NS_PER_S
        moved_ns = moved_ns / device.memory_bandwidth_bytes_per_s
        total_ns: Floats = lookup_ns + moved_ns
        return total_ns + self.exchange.reduction_ns_per_byte * size_bytes

    def _by_size(self, numbers: Int64s, source: DType, target: DType) -> Floats:
        distinct, place = np.unique(numbers, return_inverse=True)
        times = [self._small(cast(int(count), source, target)) for count in distinct]
        return np.array(times)[place.reshape(numbers.shape)]

    def _small(self, kernel: MemoryBound) -> float:
        if kernel not in self._small_ns:
            priced = price_ops([kernel], device=self._cluster.device, stack=self._stack)
            self._small_ns[kernel] = float(priced.duration_ns[0])
        return self._small_ns[kernel]


class ExchangePricer:
    """The collectives that plans change: uneven all-to-alls and even reductions over all ranks.

    In an all-to-all each rank sends the same size to all others, or receives it from them. A rank
    moves the same bytes in both directions, so pooled vectors and their gradients have the same
    price.
    """

    def __init__(
        self,
        cluster: Cluster,
        software: CollectiveSoftware = DEFAULT_SOFTWARE,
        *,
        time_ratio: float = 1.0,
    ) -> None:
        self._cluster = cluster
        self._software = software
        self._time_ratio = time_ratio
        self._members = tuple(range(cluster.rank_count))
        self._wiring = wiring_of(self._members, cluster)
        self._calibration = calibration_for(cluster.device)
        self._some_cost = self._price_sizes(CollectiveKind.ALL_TO_ALL, float(SOME_BYTES))[0]
        host, nic = cluster.host_of_rank, cluster.nics_of(np.arange(cluster.rank_count))
        self._by_host = _ByOwner(host)
        self._host_size = np.bincount(host)[host].astype(np.float64)
        self._by_nic = _ByOwner(nic) if nic.size else None

    def times_ns(self, each_bytes: Int64s) -> Floats:
        """When each rank is done, plans x ranks; it sends *each_bytes* to every other rank."""
        each = each_bytes.astype(np.float64)
        count = each.shape[1]
        total = each.sum(axis=1, keepdims=True)
        # Sums of whole numbers below 2 ** 53 are exact in any order.
        of_host = self._by_host.sum(each)
        away = np.stack([each * (count - self._host_size), total - of_host])
        nic = np.zeros_like(each)
        if self._by_nic is not None and self._wiring.host_count > 1:
            nic = np.maximum(self._by_nic.sum(away[0]), self._by_nic.sum(away[1]))
            nic = np.maximum(nic, self._nic_of_partners(nic, each > 0))
        load = RankLoad(
            # Every rank of a host receives from the largest sender.
            inside_bytes=(self._by_host.largest(each) * (self._host_size - 1)).reshape(-1),
            local_bytes=np.zeros(each.size),
            nic_bytes=nic.reshape(-1),
            mean_slice_bytes=(np.maximum(each * (count - 1), total - each) / count).reshape(-1),
        )
        cost = price_uneven(
            load,
            wiring=self._wiring,
            software=self._software,
            calibration=self._calibration,
            # Only algorithm and uncertainty come from it, not the times of ranks.
            even=self._some_cost,
        )
        assert cost.per_rank_ns is not None
        times_ns = np.asarray(cost.per_rank_ns, dtype=np.float64) * self._time_ratio
        return times_ns.reshape(each.shape)

    def even_ns(self, collective: Collective) -> float:
        """What an even *collective* takes, the same for all ranks; equal ones are priced once."""
        cost = price_collective(
            collective,
            cluster=self._cluster,
            ranks=self._members,
            software=self._software,
            wiring=self._wiring,
        )
        return float(cost.duration_ns) * self._time_ratio

    def _nic_of_partners(self, nic: Floats, is_sending: NDArray[np.bool_]) -> Floats:
        """The largest of *nic* among the ranks on other hosts that a rank exchanges with."""
        of_all = self._by_host.largest_elsewhere(nic)
        if is_sending.all():
            return of_all
        of_senders = self._by_host.largest_elsewhere(np.where(is_sending, nic, 0.0))
        return np.where(is_sending, of_all, of_senders)

    @property
    def reduction_ns_per_byte(self) -> float:
        """Time per additional byte of a large all-reduce."""
        sizes = (2.0**24, 2.0**26)
        small, large = self._price_sizes(CollectiveKind.ALL_REDUCE, *sizes)
        further_ns = (large.duration_ns - small.duration_ns) * self._time_ratio
        return float(further_ns / (sizes[1] - sizes[0]))

    def _price_sizes(self, kind: CollectiveKind, *sizes: float) -> Sequence[CollectiveCost]:
        return price_sizes(
            kind,
            np.array(sizes),
            wiring=self._wiring,
            software=self._software,
            calibration=self._calibration,
        )


class _ByOwner:
    """Sums and maxima over ranks with the same owner (host or NIC), one value per rank."""

    def __init__(self, owner: Int64s) -> None:
        self._order = np.argsort(owner, kind="stable")
        _, self._first, place = np.unique(
            owner[self._order], return_index=True, return_inverse=True
        )
        self._place = np.empty(len(owner), dtype=np.intp)
        self._place[self._order] = place.reshape(-1)

    def sum(self, values: Floats) -> Floats:
        """The sum of *values*, plans x ranks, over the ranks with the same owner."""
        sums = np.add.reduceat(values[:, self._order], self._first, axis=1)
        return sums[:, self._place]

    def largest(self, values: Floats) -> Floats:
        """The largest of *values* among the ranks with the same owner."""
        return self._largest(values)[:, self._place]

    def largest_elsewhere(self, values: Floats) -> Floats:
        """The largest of *values* among the ranks with other owners."""
        largest = self._largest(values)
        second, first = np.partition(largest, -2, axis=1)[:, -2:].T[:, :, np.newaxis]
        result: Floats = np.where(largest == first, second, first)[:, self._place]
        return result

    def _largest(self, values: Floats) -> Floats:
        found: Floats = np.maximum.reduceat(values[:, self._order], self._first, axis=1)
        return found
