"""The sparse part of a recommendation model: lookups and exchanges, operator by operator.

Every rank looks its pieces up for the whole batch, then all ranks exchange the
pooled vectors so that each has all vectors of its own samples.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from collectives.collective import Collective
from embeddings.plan import ShardingKind, ShardingPlan
from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance
from perfmodel.graph.ops import EmbeddingOp, Fixed, MemoryBound, Op, Pass
from perfmodel.stacks.stack import FrameworkBehaviour, Fusion, SoftwareStack
from perfmodel.workloads.dlrm.exchange import (
    Exchanges,
    HostExchange,
    sent_numbers,
    shards_by_host,
)
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.eager import EagerWriter, Stream
from perfmodel.workloads.kernels import cast, elementwise
from perfmodel.workloads.optimizers import STATES
from perfmodel.workloads.reduction import GradientReduction

EXCHANGE_SLOT, HOST_SLOT, RAIL_SLOT = 0, 2, 3
"""Communicators: all ranks, those of a host, those at one place of all hosts; 1 is dense."""
_BY_ROWS = (ShardingKind.ROW_WISE, ShardingKind.TABLE_ROW_WISE, ShardingKind.GRID)


@dataclass(frozen=True, slots=True)
class SparsePart:
    """What one rank looks up, and what all ranks exchange (None on a single rank).

    *partial_numbers* are those of partial sums that this rank adds up, *received_width* those of
    a sample's vectors that come from tables of other ranks or its own, not from copied ones.
    *bottom_samples* are those whose dense features this rank runs through the bottom layers.
    """

    lookup: Lookup | None
    copied: Lookup | None
    exchanges: Exchanges | None
    partial_numbers: int
    received_width: int
    bottom_samples: int
    in_host: HostExchange | None = None


def build_sparse_part(
    spec: DlrmSpec,
    plan: ShardingPlan,
    stack: SoftwareStack,
    *,
    rank: int,
    exchanges: Exchanges | None,
    partial_numbers: int,
) -> SparsePart:
    """The lookups of *rank* under *plan*, where all ranks add up *partial_numbers*."""
    held = plan.tables_of_rank[rank]
    copied = plan.copied_tables
    local_batch = spec.batch // plan.rank_count
    optimizer = spec.embedding.optimizer
    kernel = stack.tables.kernel_for(optimizer)
    dtype = arriving_dtype(spec, stack)
    return SparsePart(
        lookup=Lookup(held, spec.batch, optimizer, kernel, gradient_dtype=dtype) if held else None,
        copied=Lookup(copied, local_batch, optimizer, kernel, gradient_dtype=dtype)
        if copied
        else None,
        exchanges=exchanges,
        partial_numbers=partial_numbers,
        received_width=plan.received_width,
        bottom_samples=_bottom_samples(spec, plan, stack, rank),
        in_host=exchanges.of_hosts[plan.host_of(rank)]
        if exchanges is not None and exchanges.of_hosts
        else None,
    )


def own_ops(spec: DlrmSpec, lookup: Lookup) -> tuple[Op, ...]:
    """What a rank runs for *lookup* alone, in that order; casts only where there are any."""
    numbers = spec.batch * sum(table.width for table in lookup.tables)
    sent = spec.embedding.exchange_dtype
    return (
        EmbeddingOp(lookup, Pass.FORWARD),
        cast(numbers, DType.FP32, sent),
        cast(numbers, sent, DType.FP32),
        EmbeddingOp(lookup, Pass.BACKWARD),
    )


def arriving_dtype(spec: DlrmSpec, stack: SoftwareStack) -> DType:
    """The format in which updates read the gradients of pooled vectors."""
    return spec.embedding.exchange_dtype if stack.fuses(Fusion.LOOKUP_CAST) else DType.FP32


def has_lone_bottom(stack: SoftwareStack, rank_count: int) -> bool:
    """Whether one rank runs the bottom layers for all."""
    return rank_count > 1 and stack.has(FrameworkBehaviour.LONE_BOTTOM)


def _bottom_samples(spec: DlrmSpec, plan: ShardingPlan, stack: SoftwareStack, rank: int) -> int:
    if not has_lone_bottom(stack, plan.rank_count):
        return spec.batch // plan.rank_count
    return 0 if rank else spec.batch


def count_partial_numbers(plan: ShardingPlan, exchanges: Exchanges | None, *, samples: int) -> int:
    """Numbers that a rank gets as partial sums, from pieces by rows or from several hosts."""
    is_in_host = exchanges is not None and bool(exchanges.of_hosts)
    kinds = plan.kinds
    by_rows = [
        shard
        for shard in plan.shards
        if kinds[shard.table] in _BY_ROWS and not (is_in_host and shard.table in plan.summed_places)
    ]
    numbers = sent_numbers(plan, by_rows, samples=samples)
    if is_in_host and plan.frequent_rows:
        cold = [shard for shard in plan.shards if shard.table in plan.summed_places]
        numbers += sent_numbers(plan, cold, samples=samples)
    elif is_in_host:
        of_hosts = shards_by_host(plan)
        hosts_of = Counter(columns[1:] for columns in of_hosts)
        # What only one host holds arrives whole.
        shared = sum(
            shards[0].width for columns, shards in of_hosts.items() if hosts_of[columns[1:]] > 1
        )
        numbers += samples * shared
    return numbers


@dataclass(frozen=True, slots=True)
class LookupTasks:
    """The first lookup kernel and the exchange of what was looked up, where there are any."""

    lookup: int | None
    exchange: int | None


@dataclass(frozen=True, slots=True)
class SparseWriter:
    """Writes the sparse part of one rank."""

    writer: EagerWriter
    spec: DlrmSpec
    part: SparsePart
    samples: int
    stream: Stream | None
    index_stream: Stream | None
    reduction: GradientReduction | None
    stack: SoftwareStack

    def distribute_indices(self) -> int | None:
        """Send indices to the ranks that hold their tables; the task, if there is one."""
        if self.part.exchanges is None or self.stack.tables.has_all_keys:
            return None
        label = "embedding/indices all_to_all"
        return self._exchange(self.part.exchanges.indices, label, stream=self.index_stream)

    def look_up(self) -> LookupTasks:
        """Look up, and start the exchange of pooled vectors; copied tables are not part of it."""
        self._take_keys()
        self._prepare_keys()
        held, copied = self.part.lookup, self.part.copied
        first = None if held is None else self._run_lookup(held, "lookup")
        exchange = self._exchange_pooled()
        if copied is not None:
            self._run_lookup(copied, "data-parallel lookup")
        return LookupTasks(first, exchange)

    def _run_lookup(self, lookup: Lookup, word: str) -> int:
        op = EmbeddingOp(lookup, Pass.FORWARD)
        return self.writer.run("LookupFunction", [op], label=f"embedding/{word} forward")

    def _exchange_pooled(self) -> int | None:
        if self.part.exchanges is None:
            return None
        self._cast_sent(DType.FP32, self.spec.embedding.exchange_dtype, "forward")
        last = None
        if self.part.exchanges.has_direct:
            label = "embedding/pooled all_to_all forward"
            last = self._exchange(self.part.exchanges.pooled, label)
        if self.part.in_host is not None:
            last = self._sum_in_host(self.part.in_host)
        return last

    def _sum_in_host(self, host: HostExchange) -> int:
        """Sum inside the host, then send the sums along the rails; the last task."""
        label = "embedding/partial sums in host forward"
        inside = self._exchange(host.inside, label, slot=HOST_SLOT)
        self.writer.hold(self.writer.compute, [inside])
        members = len(host.inside.byte_matrix or ((),))
        numbers = self.spec.batch // members * host.summed_width
        kernel = elementwise("reduce_sum", numbers, self.spec.embedding.exchange_dtype)
        self.writer.run("sum", [kernel], label="embedding/sums in host forward")
        label = "embedding/pooled between hosts forward"
        return self._exchange(host.across, label, slot=RAIL_SLOT)

    @property
    def copied_tables(self) -> tuple[EmbeddingTable, ...]:
        """The data-parallel tables."""
        return self.part.copied.tables if self.part.copied is not None else ()

    def join(self, task: int | None) -> None:
        """Let compute wait for the pooled vectors and add up partial sums."""
        if task is None:
            return
        self.writer.note("All2All_Wait")
        self.writer.hold(self.writer.compute, [task])
        dtype = self.spec.embedding.exchange_dtype
        if self.part.partial_numbers:
            kernel = elementwise("reduce_sum", self.part.partial_numbers, dtype)
            self.writer.run("sum", [kernel], label="embedding/partial sums forward")
        self._rearrange("forward")

    def return_gradients(self) -> int | None:
        """Start the exchange of gradients of pooled vectors; the task to wait for."""
        if self.part.exchanges is None:
            return None
        self._rearrange("backward")
        last = None
        if self.part.exchanges.has_direct:
            label = "embedding/gradients all_to_all backward"
            last = self._exchange(self.part.exchanges.gradients, label)
        host = self.part.in_host
        if host is not None:
            label = "embedding/gradients between hosts backward"
            self._exchange(host.across_back, label, slot=RAIL_SLOT)
            label = "embedding/gradients in host backward"
            last = self._exchange(host.inside_back, label, slot=HOST_SLOT)
        return last

    def update(self, task: int | None) -> None:
        """Wait for the gradients, then update the tables in the same kernel."""
        if task is not None:
            self.writer.note("All2All_ReqBackward")
            self.writer.hold(self.writer.compute, [task])
            self._cast_sent(self.spec.embedding.exchange_dtype, DType.FP32, "backward")
        if self.part.lookup is not None:
            op = EmbeddingOp(self.part.lookup, Pass.BACKWARD)
            label = "embedding/update backward"
            self.writer.run("LookupFunctionBackward", [op], label=label)
        if self.stack.tables.updates_all_rows:
            self._update_all_rows()

    def _take_keys(self) -> None:
        """Time that the stack spends on each key of the whole batch, on every rank."""
        key_ns = self.stack.tables.key_ns
        if not key_ns:
            return
        keys = self.spec.batch * sum(t.pooling_factor for t in self.spec.embedding.tables())
        work = Fixed("handle keys", round(keys * key_ns), Provenance.EXTRAPOLATED)
        self.writer.run("handle_keys", [work], label="embedding/keys forward")

    def _prepare_keys(self) -> None:
        """Find out where each key of this rank's samples goes, count, and put them in order."""
        traffic_bytes = self.stack.tables.key_traffic_bytes
        if not traffic_bytes or self.part.exchanges is None:
            return
        keys = self.samples * sum(t.pooling_factor for t in self.spec.embedding.tables())
        half = round(keys * traffic_bytes / 2)
        kernel = MemoryBound("prepare_keys", half, half, self.spec.embedding.index_dtype)
        self.writer.run("prepare_keys", [kernel], label="embedding/keys forward")

    def _rearrange(self, way: str) -> None:
        """Put vectors that were received, or their gradients, in the order that is needed."""
        passes = self.stack.tables.vector_passes
        if not passes:
            return
        dtype = self.spec.embedding.exchange_dtype
        half = round(passes * self.samples * self.part.received_width * dtype.size_bytes)
        kernel = MemoryBound("rearrange_vectors", half, half, dtype)
        self.writer.run("rearrange", [kernel], label=f"embedding/rearrange {way}")

    def _update_all_rows(self) -> None:
        """A pass over weights and state of all tables, whoever holds them."""
        numbers = sum(table.rows * table.width for table in self.spec.embedding.tables())
        # A state a row is small beside the row.
        states = STATES.get(self.spec.embedding.optimizer, 0)
        size_bytes = numbers * DType.FP32.size_bytes * (1 + states)
        kernel = MemoryBound(self.spec.embedding.optimizer, size_bytes, size_bytes, DType.FP32)
        self.writer.run("update_all_rows", [kernel], label="embedding/all rows backward")

    def reduce_copied(self) -> None:
        """Make the gradients of copied tables and let them join those of the dense part.

        The kernel that would update the tables adds to zeroed gradients of their size.
        """
        lookup = self.part.copied
        if lookup is None:
            return
        numbers = sum(table.rows * table.width for table in lookup.tables)
        zero = MemoryBound("zero", 0, numbers * DType.FP32.size_bytes, DType.FP32)
        add = EmbeddingOp(replace(lookup, optimizer="sgd"), Pass.BACKWARD)
        label = "embedding/data-parallel gradients backward"
        self.writer.run("EmbeddingBagBackward", [zero, add], label=label)
        if self.reduction is not None:
            self.reduction.add(numbers)

    def _cast_sent(self, source: DType, target: DType, way: str) -> None:
        if source is target or self.part.lookup is None:
            return
        if self.stack.fuses(Fusion.LOOKUP_CAST):
            return
        width = sum(table.width for table in self.part.lookup.tables)
        kernel = cast(self.spec.batch * width, source, target)
        self.writer.run("to", [kernel], label=f"embedding/cast {way}")

    def _exchange(
        self,
        collective: Collective,
        label: str,
        *,
        slot: int = EXCHANGE_SLOT,
        stream: Stream | None = None,
    ) -> int:
        stream = stream or self.stream
        assert stream is not None
        return self.writer.communicate(
            "All2All_Req", collective, label=label, stream=stream, slot=slot
        )
