"""The job of one DLRM iteration: every rank's program, and the group they all form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from embeddings.offloading import build_offloaded_plan, exceeds_devices, fetched_bytes
from embeddings.piece_work import USUAL_HOST
from embeddings.plan import ShardingPlan
from embeddings.sharders import DEFAULT_SHARDER, build_named_plan
from embeddings.sharding_task import UNKNOWN_ROOM_BYTES, ShardingTask
from embeddings.table import EmbeddingTable, Lookup, TableMemory
from perfmodel.base.errors import PlanError
from perfmodel.base.units import BYTES_PER_GIB
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.program import Program
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.exchange import (
    Exchanges,
    as_exchanged,
    build_exchanges,
    empty_exchanges,
)
from perfmodel.workloads.dlrm.memory import key_bytes, number_bytes, room_for_tables
from perfmodel.workloads.dlrm.rank import REDUCTION_SLOT, DlrmRankWriter
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.sparse import (
    EXCHANGE_SLOT,
    HOST_SLOT,
    RAIL_SLOT,
    SparsePart,
    build_sparse_part,
    count_partial_numbers,
    own_ops,
)
from perfmodel.workloads.dlrm.spec import DlrmSpec, local_batch
from perfmodel.workloads.eager import host_assumptions

_RANKS_TO_SPARE_ONE = 5
"""From so many ranks on, the rank with the bottom layers holds no tables."""


def build_plan(
    spec: DlrmSpec,
    *,
    rank_count: int,
    given: ShardingPlan | None = None,
    ranks_per_host: int | None = None,
    memory_bytes: int | None = None,
    tables: tuple[EmbeddingTable, ...] = (),
) -> ShardingPlan:
    """The plan that was *given*, checked, or the one that the sharding section of *spec* asks for.

    *tables* replace those of *spec* where more is known of their indices.
    *ranks_per_host* of None is the usual number. With the *memory_bytes* of a GPU the plan is one
    that fits, if the sharder finds any.
    """
    if given is not None:
        _check_plan(spec, given, rank_count)
        return given
    tables = tables or spec.embedding.tables()
    sharder = spec.sharding.sharder if rank_count > 1 else DEFAULT_SHARDER
    per_host: int | None = ranks_per_host or USUAL_HOST
    room = UNKNOWN_ROOM_BYTES
    if sharder != DEFAULT_SHARDER:
        per_host = ranks_per_host or min(rank_count, USUAL_HOST)
        per_host = per_host if rank_count % per_host == 0 else None
    if memory_bytes is not None:
        room = room_for_tables(spec, rank_count=rank_count, memory_bytes=memory_bytes)
    task = sharding_task(
        spec, tables, rank_count=rank_count, room_bytes=room, ranks_per_host=per_host
    )
    is_open = sharder == DEFAULT_SHARDER and spec.sharding.host_memory
    if is_open and room < UNKNOWN_ROOM_BYTES and exceeds_devices(task):
        return build_offloaded_plan(task)
    try:
        return build_named_plan(sharder, task)
    except PlanError:
        # Nothing fits: as the sharder would place them, and the answer says how much is missing.
        return build_named_plan(sharder, replace(task, room_bytes=UNKNOWN_ROOM_BYTES))


def sharding_task(
    spec: DlrmSpec,
    tables: tuple[EmbeddingTable, ...],
    *,
    rank_count: int,
    room_bytes: int,
    ranks_per_host: int | None,
    seed: int = 0,
) -> ShardingTask:
    """The task that *spec* sets a sharder for *tables*, the same for `predict` and `rank`."""
    return ShardingTask(
        tables=tables,
        rank_count=rank_count,
        room_bytes=room_bytes,
        batch_size=spec.batch,
        optimizer=spec.embedding.optimizer,
        ranks_per_host=ranks_per_host,
        seed=seed,
        data_parallel_below_bytes=spec.sharding.data_parallel_below,
        min_width=spec.sharding.min_width,
        max_shard_bytes=spec.sharding.max_shard,
        number_bytes=number_bytes(spec),
        key_bytes=key_bytes(spec),
    )


def choose_plan(
    spec: DlrmSpec,
    *,
    rank_count: int,
    stack: SoftwareStack,
    given: ShardingPlan | None = None,
    ranks_per_host: int | None = None,
    memory_bytes: int | None = None,
) -> ShardingPlan:
    """The plan of a job under *stack*; a rank with all bottom layers holds no tables if it can."""
    place = partial(build_plan, spec, ranks_per_host=ranks_per_host, memory_bytes=memory_bytes)
    is_lone = DlrmRun(spec, rank_count, stack).has_lone_bottom
    if given is None and is_lone and rank_count >= _RANKS_TO_SPARE_ONE:
        given = _without_first(place(rank_count=rank_count - 1))
    return place(rank_count=rank_count, given=given)


def build_dlrm_job(spec: DlrmSpec, *, plan: ShardingPlan, stack: SoftwareStack) -> JobGraph:
    """One iteration of *spec*, its tables placed by *plan*, as *stack* issues it.

    The defaults of *stack* are applied to *spec* already.
    """
    run = DlrmRun(spec, plan.rank_count, stack, _ranks_of_host(plan))
    plan = as_exchanged(plan, stack.tables.row_sums)
    local_batch(spec, rank_count=plan.rank_count)
    exchanges = None
    if run.rank_count > 1 and (plan.shards or run.has_lone_bottom):
        exchanges = exchanges_of(run, plan)
    job = JobBuilder()
    program_of_part: dict[SparsePart, int] = {}
    written: dict[SparsePart, tuple[Lookup, Program]] = {}
    partial = count_partial_numbers(run, plan)
    for rank in range(run.rank_count):
        part = build_sparse_part(run, plan, rank=rank, exchanges=exchanges, partial_numbers=partial)
        if part not in program_of_part:
            program_of_part[part] = job.add_program(_program(job, run, part, written))
        job.add_rank(program_of_part[part])
    return _build(job, run, plan, exchanges)


def _ranks_of_host(plan: ShardingPlan) -> int:
    return min(plan.ranks_per_host or plan.rank_count, plan.rank_count)


def exchanges_of(run: DlrmRun, plan: ShardingPlan) -> Exchanges:
    """The exchanges of *plan* in *run*."""
    return build_exchanges(
        plan,
        local_batch=run.samples,
        index_dtype=run.spec.embedding.index_dtype,
        exchange_dtype=run.spec.embedding.exchange_dtype,
        row_sums=run.stack.tables.row_sums,
        first_rank_width=run.spec.dense_width if run.has_lone_bottom else 0,
    )


def _program(
    job: JobBuilder,
    run: DlrmRun,
    part: SparsePart,
    written: dict[SparsePart, tuple[Lookup, Program]],
) -> Program:
    """The program of ranks with *part*, made from one in *written* that only looks up otherwise."""
    others, lookup = replace(part, lookup=None), part.lookup
    if lookup is not None and others in written:
        before, program = written[others]
        pairs = zip(own_ops(run.spec, before), own_ops(run.spec, lookup), strict=True)
        swapped = job.swap_ops(program, pairs)
        if swapped is not None:
            return swapped
    program = DlrmRankWriter(job.new_program(), run, part).write()
    if lookup is not None:
        written[others] = (lookup, program)
    return program


def _without_first(plan: ShardingPlan) -> ShardingPlan:
    """*plan* moved up by one rank, so that rank 0 holds nothing but copied tables.

    Pieces are then shifted against the hosts, so nothing is summed inside them.
    """
    shards = tuple(shard.on_rank(shard.rank + 1) for shard in plan.shards)
    return replace(plan, rank_count=plan.rank_count + 1, shards=shards, summed_in_host=())


def build_variant_job(spec: DlrmSpec, *, plan: ShardingPlan, stack: SoftwareStack) -> JobGraph:
    """Rank 0 as a rank of *plan* that holds pieces, all others as ranks that hold none.

    Plans with the same data-parallel tables consist of these two programs; the durations of
    lookups and exchanges depend on the plan.
    """
    run = DlrmRun(spec, plan.rank_count, stack, _ranks_of_host(plan))
    if run.has_lone_bottom:
        raise PlanError(
            f"stack {stack.name!r}: runs the bottom layers on one rank; plans are compared only "
            "where all ranks do. Use another stack, or predict each plan alone."
        )
    exchanges = empty_exchanges(exchanges_of(run, plan))
    holder = next(rank for rank, shards in enumerate(plan.shards_of_rank) if shards)
    partial = count_partial_numbers(run, plan)
    part = build_sparse_part(run, plan, rank=holder, exchanges=exchanges, partial_numbers=partial)
    job = JobBuilder()
    for variant in (part, replace(part, lookup=None)):
        job.add_program(DlrmRankWriter(job.new_program(), run, variant).write())
    for rank in range(run.rank_count):
        job.add_rank(min(rank, 1))
    return _build(job, run, plan, exchanges)


def _check_plan(spec: DlrmSpec, plan: ShardingPlan, rank_count: int) -> None:
    if plan.rank_count != rank_count:
        raise PlanError(
            f"plan {plan.name!r}: must be for the ranks of the job, is for {plan.rank_count} and "
            f"there are {rank_count}. Make a plan for {rank_count} ranks."
        )
    shapes = [(table.rows, table.width) for table in plan.tables]
    wanted = [(table.rows, table.width) for table in spec.embedding.tables()]
    if shapes != wanted:
        raise PlanError(
            f"plan {plan.name!r}: must place the tables of {spec.name}, in their order: "
            f"{len(wanted)} tables; it places {len(shapes)} or others. Make it from those tables."
        )


def _build(
    job: JobBuilder, run: DlrmRun, plan: ShardingPlan, exchanges: Exchanges | None
) -> JobGraph:
    """*job* with its groups and its assumptions; its ranks are added already."""
    per_host, ranks = plan.ranks_per_host or plan.rank_count, range(plan.rank_count)
    if len(ranks) > 1:
        job.add_group("embedding exchange", ranks, slot=EXCHANGE_SLOT)
        job.add_group("dense", ranks, slot=REDUCTION_SLOT)
    if exchanges is not None and exchanges.of_hosts:
        for host, first in enumerate(ranks[::per_host]):
            job.add_group(f"host {host}", ranks[first : first + per_host], slot=HOST_SLOT)
        for place in range(per_host):
            job.add_group(f"rail {place}", ranks[place::per_host], slot=RAIL_SLOT)
    assumptions = tuple(_iter_assumptions(run, plan, exchanges))
    source = f"specification: {run.spec.source}"
    widths = f"{len(plan.tables)} tables, {sum(table.rows * table.width for table in plan.tables)}"
    facts = JobFacts(
        run.spec.name, source, assumptions, samples=run.spec.batch, model=f"{widths} weights"
    )
    return job.build(facts)


def _iter_assumptions(
    run: DlrmRun, plan: ShardingPlan, exchanges: Exchanges | None
) -> Iterator[str]:
    spec = run.spec
    yield from host_assumptions(spec.input)
    words = sorted({str(table.distribution) for table in plan.tables})
    shown = ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
    yield f"Indices are drawn independently and equally in all samples; distributions: {shown}."
    yield (
        "Kernels of PyTorch's DistributedDataParallel and one fused table kernel per rank are "
        "assumed."
    )
    if exchanges is not None and spec.training.distribute_ahead:
        yield "Indices of the next batch are exchanged during this iteration."
    if exchanges is not None:
        yield "The host knows the sizes of the index exchange and does not wait for them."
    if plan.rank_count > 1:
        copied = f", {len(plan.data_parallel)} of them on every rank" if plan.data_parallel else ""
        yield f"Tables are placed by the {plan.name!r} plan{copied}."
    if exchanges is not None and exchanges.of_hosts:
        yield (
            f"Vectors of {len(plan.summed_in_host)} tables are summed inside a host, then sent "
            f"between ranks with the same position in all hosts."
        )
    if exchanges is not None and exchanges.by_rows is not None:
        yield (
            "Partial sums of row-wise tables are added by a reduce-scatter over all ranks, and an "
            "all-gather returns their gradients."
        )
    if cached := [table for table in plan.tables if table.memory is TableMemory.HOST_CACHED]:
        sizes = (sum(table.size_bytes for table in cached),
                 sum(table.device_bytes for table in cached),
                 sum(fetched_bytes(table, spec.batch) for table in cached))  # fmt: skip
        held, on_device, fetched = (size / BYTES_PER_GIB for size in sizes)
        yield (
            f"{len(cached)} of {len(plan.tables)} tables ({held:.1f} GiB) are in host memory, with "
            f"{on_device:.1f} GiB of caches on the GPUs; a batch fetches {fetched:.2f} GiB from "
            "there and writes as much back. Hosts are assumed to have room for them."
        )
    if plan.frequent_rows:
        frequent = sum(table.rows for table in plan.copied_tables[len(plan.data_parallel) :])
        yield f"{frequent} frequent rows are on every rank; others are sent only where needed."
    empty = sum(not shards for shards in plan.shards_of_rank)
    if empty and plan.rank_count > 1:
        yield f"{empty} of {plan.rank_count} ranks hold no piece of a table."
    if run.has_lone_bottom:
        yield "The bottom layers run on rank 0 alone, for the whole batch."
