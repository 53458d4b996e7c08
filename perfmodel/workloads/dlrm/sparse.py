"""The sparse part of a recommendation model: lookups and exchanges, operator by operator.

Every rank looks its pieces up for the whole batch, then all ranks exchange the
pooled vectors so that each has all vectors of its own samples.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from collectives.collective import Collective
from embeddings.plan import ShardingPlan
from embeddings.table import OPTIMIZERS as TABLE_OPTIMIZERS
from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance
from perfmodel.graph.issuing import OpenLane
from perfmodel.graph.ops import EmbeddingOp, Fixed, MemoryBound, Op, Pass
from perfmodel.workloads.dlrm.exchange import (
    Exchanges,
    HostExchange,
    is_by_rows,
    reduced_places,
    sent_numbers,
    shards_by_host,
)
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import cast, elementwise
from perfmodel.workloads.reduction import GradientReduction

EXCHANGE_SLOT, HOST_SLOT, RAIL_SLOT = 0, 2, 3
"""Communicators: all ranks, those of a host, those at one place in all hosts; 1 is dense."""


@dataclass(frozen=True, slots=True)
class SparsePart:
    """What one rank looks up, and what all ranks exchange (None on a single rank).

    *partial_numbers* counts the partial sums that this rank adds up, *received_width* the numbers
    per sample from tables that are not copied. *bottom_samples* counts the samples whose dense
    features this rank runs through the bottom layers.
    """

    lookup: Lookup | None
    copied: Lookup | None
    exchanges: Exchanges | None
    partial_numbers: int
    received_width: int
    bottom_samples: int
    in_host: HostExchange | None = None


def build_sparse_part(
    run: DlrmRun,
    plan: ShardingPlan,
    *,
    rank: int,
    exchanges: Exchanges | None,
    partial_numbers: int,
) -> SparsePart:
    """The lookups of *rank* under *plan*, where all ranks add up *partial_numbers*."""
    spec, optimizer = run.spec, run.spec.embedding.optimizer
    kernel = run.stack.tables.kernel_for(optimizer)
    bottom_samples = run.samples
    if run.has_lone_bottom:
        bottom_samples = 0 if rank else spec.batch

    def look_up(tables: tuple[EmbeddingTable, ...], samples: int) -> Lookup | None:
        if not tables:
            return None
        return Lookup(tables, samples, optimizer, kernel, gradient_dtype=run.arriving_dtype)

    in_host = None
    if exchanges is not None and exchanges.of_hosts:
        in_host = exchanges.of_hosts[plan.host_of(rank)]
    return SparsePart(
        lookup=look_up(plan.tables_of_rank[rank], spec.batch),
        copied=look_up(plan.copied_tables, run.samples),
        exchanges=exchanges,
        partial_numbers=partial_numbers,
        received_width=plan.received_width,
        bottom_samples=bottom_samples,
        in_host=in_host,
    )


def own_ops(spec: DlrmSpec, lookup: Lookup) -> tuple[Op, ...]:
    """The ops of a rank that depend on *lookup*, in order; casts only where there are any."""
    numbers = sum(table.vectors(spec.batch) * table.width for table in lookup.tables)
    sent = spec.embedding.exchange_dtype
    return (
        EmbeddingOp(lookup, Pass.FORWARD),
        cast(numbers, DType.FP32, sent),
        cast(numbers, sent, DType.FP32),
        EmbeddingOp(lookup, Pass.BACKWARD),
    )


def count_partial_numbers(run: DlrmRun, plan: ShardingPlan) -> int:
    """Numbers that a rank gets as partial sums, from row-wise pieces or from several hosts."""
    samples, in_host = run.samples, plan.summed_places
    apart = reduced_places(plan, run.stack.tables.row_sums) | in_host
    by_rows = [
        shard for shard in plan.shards if is_by_rows(plan, shard) and shard.table not in apart
    ]
    numbers = sent_numbers(plan, by_rows, samples=samples)
    if plan.frequent_rows:
        cold = [shard for shard in plan.shards if shard.table in in_host]
        return numbers + sent_numbers(plan, cold, samples=samples)
    of_hosts = shards_by_host(plan)
    hosts_of = Counter(columns[1:] for columns in of_hosts)
    # A table on only one host arrives whole.
    return numbers + samples * sum(
        shards[0].width * plan.tables[shards[0].table].features
        for columns, shards in of_hosts.items()
        if hosts_of[columns[1:]] > 1
    )


@dataclass(frozen=True, slots=True)
class SparseWriter:
    """Writes the sparse part of one rank."""

    writer: EagerWriter
    run: DlrmRun
    part: SparsePart
    stream: OpenLane | None
    index_stream: OpenLane | None
    reduction: GradientReduction | None

    @property
    def copied_tables(self) -> tuple[EmbeddingTable, ...]:
        """The data-parallel tables."""
        return self.part.copied.tables if self.part.copied is not None else ()

    @property
    def _sent_dtype(self) -> DType:
        return self.run.spec.embedding.exchange_dtype

    def distribute_indices(self) -> int | None:
        """Send indices to the ranks that hold their tables; the task, if there is one."""
        if self.part.exchanges is None or self.run.stack.tables.has_all_keys:
            return None
        label = "indices all_to_all"
        return self._exchange(self.part.exchanges.indices, label, stream=self.index_stream)

    def look_up(self) -> tuple[int | None, int | None]:
        """Look up, and start the exchange of pooled vectors; copied tables are not part of it.

        Returns the first lookup kernel and the last exchange, where there are any.
        """
        tables, held, copied = self.run.stack.tables, self.part.lookup, self.part.copied
        keys = sum(table.pooling_factor for table in self.run.spec.embedding.tables())
        if tables.key_ns:
            # Every rank spends it on each key of the whole batch.
            key_ns = round(self.run.spec.batch * keys * tables.key_ns)
            self._run("handle_keys", "keys", Fixed("handle keys", key_ns, Provenance.EXTRAPOLATED))
        if tables.key_traffic_bytes and self.part.exchanges is not None:
            # Find out where each key of this rank's samples goes, count, and sort them.
            half = round(self.run.samples * keys * tables.key_traffic_bytes / 2)
            kernel = MemoryBound("prepare_keys", half, half, self.run.spec.embedding.index_dtype)
            self._run("prepare_keys", "keys", kernel)
        lookup = None
        if held is not None:
            lookup = self._run("LookupFunction", "lookup", EmbeddingOp(held, Pass.FORWARD))
        exchange = self._exchange_pooled()
        if copied is not None:
            op = EmbeddingOp(copied, Pass.FORWARD)
            self._run("LookupFunction", "data-parallel lookup", op)
        return lookup, exchange

    def _exchange_pooled(self) -> int | None:
        exchanges, host, dtype = self.part.exchanges, self.part.in_host, self._sent_dtype
        if exchanges is None:
            return None
        self._cast_sent("forward")
        last = None
        if exchanges.has_direct:
            last = self._exchange(exchanges.pooled, "pooled all_to_all forward")
        if exchanges.by_rows is not None:
            last = self._exchange(exchanges.by_rows.sums, "row sums reduce_scatter forward")
        if host is not None:
            # Sum inside the host, then send the sums along the rails.
            inside = self._exchange(host.inside, "partial sums in host forward", slot=HOST_SLOT)
            if host.inside.byte_matrix is not None:
                self.writer.hold(self.writer.compute, inside)
                members = len(host.inside.byte_matrix)
                read = self.run.spec.batch // members * host.summed_width * dtype.size_bytes
                # Each sum is written once for the partial sums of all members.
                kernel = MemoryBound("reduce_sum", read, read // members, dtype)
                self._run("sum", "sums in host", kernel)
            last = self._exchange(host.across, "pooled between hosts forward", slot=RAIL_SLOT)
        return last

    def join(self, task: int | None) -> None:
        """Make compute wait for the pooled vectors, and add up partial sums."""
        if task is None:
            return
        self.writer.note("All2All_Wait")
        self.writer.hold(self.writer.compute, task)
        if self.part.partial_numbers:
            kernel = elementwise("reduce_sum", self.part.partial_numbers, self._sent_dtype)
            self._run("sum", "partial sums", kernel)
        self._rearrange("forward")

    def return_gradients(self) -> int | None:
        """Start the exchange of gradients of pooled vectors; the task to wait for."""
        exchanges, host = self.part.exchanges, self.part.in_host
        if exchanges is None:
            return None
        self._rearrange("backward")
        last = None
        if exchanges.has_direct:
            last = self._exchange(exchanges.gradients, "gradients all_to_all backward")
        if exchanges.by_rows is not None:
            label = "row gradients all_gather backward"
            last = self._exchange(exchanges.by_rows.gradients, label)
        if host is not None:
            label = "gradients between hosts backward"
            self._exchange(host.across_back, label, slot=RAIL_SLOT)
            label = "gradients in host backward"
            last = self._exchange(host.inside_back, label, slot=HOST_SLOT)
        return last

    def update(self, task: int | None) -> None:
        """Wait for the gradients, then update the tables in the same kernel."""
        if task is not None:
            self.writer.note("All2All_ReqBackward")
            self.writer.hold(self.writer.compute, task)
            self._cast_sent("backward")
        if self.part.lookup is not None:
            op = EmbeddingOp(self.part.lookup, Pass.BACKWARD)
            self._run("LookupFunctionBackward", "update", op, way="backward")
        if self.run.stack.tables.updates_all_rows:
            # A pass over weights and state of all tables, also those of other ranks. State per
            # row is small compared with the row.
            name, tables = self.run.spec.embedding.optimizer, self.run.spec.embedding.tables()
            numbers = sum(table.rows * table.width for table in tables)
            numbers *= 1 + TABLE_OPTIMIZERS[name]
            kernel = elementwise(name, numbers, DType.FP32)
            self._run("update_all_rows", "all rows", kernel, way="backward")

    def reduce_copied(self) -> None:
        """Make the gradients of copied tables and reduce them with those of the dense part.

        The kernel that would update the tables adds to zeroed gradients of their size.
        """
        lookup = self.part.copied
        if lookup is None:
            return
        numbers = sum(table.rows * table.width for table in lookup.tables)
        zero = elementwise("zero", numbers, DType.FP32, reads=0)
        add = EmbeddingOp(replace(lookup, optimizer="sgd"), Pass.BACKWARD)
        label = "data-parallel gradients"
        self._run("EmbeddingBagBackward", label, zero, add, way="backward")
        if self.reduction is not None:
            self.reduction.add(numbers)

    def _rearrange(self, way: str) -> None:
        """Put received vectors, or their gradients, in the order that is needed."""
        passes, dtype = self.run.stack.tables.vector_passes, self._sent_dtype
        if passes:
            half = round(passes * self.run.samples * self.part.received_width * dtype.size_bytes)
            kernel = MemoryBound("rearrange_vectors", half, half, dtype)
            self._run("rearrange", "rearrange", kernel, way=way)

    def _cast_sent(self, way: str) -> None:
        lookup = self.part.lookup
        if lookup is None or self.run.arriving_dtype is self._sent_dtype:
            return
        _, there, back, _ = own_ops(self.run.spec, lookup)
        self._run("to", "cast", there if way == "forward" else back, way=way)

    def _run(self, operator: str, label: str, *kernels: Op, way: str = "forward") -> int:
        return self.writer.run(operator, kernels, label=f"embedding/{label} {way}")

    def _exchange(
        self,
        collective: Collective,
        label: str,
        *,
        slot: int = EXCHANGE_SLOT,
        stream: OpenLane | None = None,
    ) -> int:
        stream = stream or self.stream
        assert stream is not None
        return self.writer.communicate(
            collective, label=f"embedding/{label}", stream=stream, slot=slot, operator="All2All_Req"
        )
