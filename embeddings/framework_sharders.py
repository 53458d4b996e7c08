"""Sharders of other systems, by their published rules.

`torchrec` is its planner: a few options per table (whole, column-wise, row-wise over
all ranks or over those of a host), each priced from fixed bandwidths. Starting from
the cheapest option of every table, one table after another takes its next option,
and the placement whose busiest rank has least to do is kept.
`hugectr_auto` copies small tables to every rank and halves the others row-wise until
lookups are even: over the ranks of a host, or over hosts and all ranks of each.
`hugectr_hybrid` copies the rows that every rank expects in every batch, and
spreads the others row-wise.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embeddings.plan import Shard, ShardingKind, ShardingPlan, find_pieces
from embeddings.sharding_task import (
    NOWHERE,
    Placer,
    Rule,
    ShardingTask,
    cut_table,
    place_greedily,
    spread_over,
    spread_rows,
)
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError

COPIED_BELOW_BYTES = 10_000_000
"""Weights and optimizer state below which HugeCTR copies a table: 7,424 rows of 1,024 bytes are
on every GPU of its plan for 8 x B200, 11,938 are not."""

_VECTOR_LOOKUPS = 15.0
"""Lookups that cost a host as much as sending a vector to others: 3 TB/s over 50 GB/s, a row read
and updated in fp32 against two numbers of fp16."""
_OVER = 1.1
"""How far a piece may exceed its share of lookups: 25 of 23.75 were left whole there, 27 not."""

_PARTS_OF_ROOM = (2, 4, 8, 16, 64)
"""Pieces that must fit together, tried one after the other."""


def shard_as_hugectr(task: ShardingTask) -> ShardingPlan:
    """Small tables on every rank, the others row-wise over hosts and the ranks of a host."""
    sizes, copied = task.sizes, []
    if task.rank_count > 1:
        copied = [place for place, size in enumerate(sizes) if size < COPIED_BELOW_BYTES]
    if len(copied) == len(sizes):
        copied.remove(max(copied, key=lambda place: (sizes[place], place)))
    held = sorted(set(range(len(sizes))) - set(copied))
    hosts = task.host_count
    # A place is a rank of the only host, or one of several hosts.
    places = task.rank_count if hosts == 1 else hosts
    per_place = task.rank_count // places
    room = task.room_bytes - sum(task.copied_bytes(task.tables[place]) for place in copied)
    # Every rank of a place has vectors of the whole batch.
    of_place = replace(
        task,
        rank_count=places,
        room_bytes=max(room * per_place, 1),
        ranks_per_host=None,
        number_bytes=task.number_bytes * per_place,
    )
    pieces, ranks = _place_even_pieces(of_place, held, 0.0 if hosts == 1 else _VECTOR_LOOKUPS)
    shards = [
        shard
        for piece, rank in zip(pieces, ranks, strict=True)
        for shard in spread_over(piece, rank, per_place)
    ]
    in_host = held if hosts > 1 else ()
    return task.plan(shards, "hugectr_auto", data_parallel=copied, summed_in_host=in_host)


def _place_even_pieces(
    task: ShardingTask, held: Sequence[int], vector: float
) -> tuple[list[Shard], list[int]]:
    """Pieces of the tables at *held* and their ranks, smaller ones where large ones do not fit.

    Sending a vector costs as much as *vector* lookups.
    """
    fault = PlanError("sharder: found no placement.")
    for part in _PARTS_OF_ROOM:
        pieces = even_pieces(task, held, part, vector)
        found = find_pieces(task.tables, pieces)
        tables = [found.tables[number] for number in found.number]
        costs = [(table.pooling_factor + vector) * table.width for table in tables]
        sizes = [task.needed_bytes(table) for table in tables]
        try:
            return pieces, place_greedily(costs, sizes, task)
        except PlanError as refused:
            fault = refused
    raise fault


def even_pieces(task: ShardingTask, held: Sequence[int], part: int, vector: float) -> list[Shard]:
    """The tables at *held*, halved row-wise until no piece exceeds its share."""
    tables, places, sizes = task.tables, task.rank_count, task.sizes
    costs = {place: (tables[place].pooling_factor + vector) * tables[place].width for place in held}
    share = sum(costs.values()) / places
    pieces: list[Shard] = []
    for place in held:
        cost, size = costs[place], sizes[place]
        rows, most = 1, min(places, tables[place].rows)
        while rows < most and (cost > _OVER * share * rows or part * size > task.room_bytes * rows):
            rows = min(2 * rows, most)
        pieces += cut_table(place, tables[place], columns=1, rows=rows)
    return pieces


def shard_as_hybrid(task: ShardingTask) -> ShardingPlan:
    """Rows that a rank expects at least once per batch on every rank, the others row-wise."""
    samples = task.batch_size / task.rank_count
    frequent = [
        min(table.rows, table.popularity.rows_expected(samples * table.pooling_factor))
        for table in task.tables
    ]
    copied = [place for place, table in enumerate(task.tables) if frequent[place] >= table.rows]
    if len(copied) == len(frequent):
        copied.pop()
    held = sorted(set(range(len(frequent))) - set(copied))
    return task.plan(
        spread_rows(task.tables, rank_count=task.rank_count, left_out=copied),
        "hugectr_hybrid",
        data_parallel=copied,
        summed_in_host=held if 1 < task.host_count < task.rank_count else (),
        frequent_rows=frequent,
    )


# pytorch/torchrec, torchrec/distributed/planner/constants.py (BSD-3).
_MEMORY_BYTES_PER_S = 897e9
_HOST_BYTES_PER_S = 600e9
_NETWORK_BYTES_PER_S = 12.5e9
_BACKWARD_PASSES = 2
_MIN_COLUMNS = 128
_PLACED, _PROPOSALS = 100_000, 8
"""Tables placed at most, over all proposals, and proposals at least: of many tables several take
their next option at once (our own limit)."""
_INDEX_BYTES = 8
_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """One way to place the table at *place*: how it is cut, and what each piece takes."""

    place: int
    way: ShardingKind
    columns: int
    rows: int
    seconds: float
    piece_bytes: int

    @property
    def count(self) -> int:
        """Number of pieces."""
        return self.columns * self.rows


def shard_as_torchrec(task: ShardingTask) -> ShardingPlan:
    """The best of the placements that a greedy proposer tries."""
    options = [list_options(task, place) for place in range(len(task.tables))]
    chosen = [0] * len(options)
    best: list[PlacementOption] = []
    best_ranks: list[list[int]] = []
    least_s = float("inf")
    fault = PlanError("torchrec: found no placement.")
    count = sum(len(ways) for ways in options)
    at_once = -(-count // max(_PLACED // len(options), _PROPOSALS))
    for _ in range(count):
        proposal = [ways[number] for ways, number in zip(options, chosen, strict=True)]
        try:
            ranks, busiest_s = place_options(task, proposal)
        except PlanError as refused:
            fault = refused
            worst = [float(option.piece_bytes * option.count) for option in proposal]
        else:
            if busiest_s < least_s:
                least_s, best, best_ranks = busiest_s, proposal, ranks
            worst = [option.seconds for option in proposal]
        left = [place for place, ways in enumerate(options) if chosen[place] + 1 < len(ways)]
        if not left:
            break
        for place in heapq.nsmallest(at_once, left, key=lambda place: (-worst[place], place)):
            chosen[place] += 1
    if not best:
        raise fault
    shards: list[Shard] = []
    for option, ranks_of in zip(best, best_ranks, strict=True):
        table = task.tables[option.place]
        pieces = cut_table(option.place, table, columns=option.columns, rows=option.rows)
        shards += [piece.on_rank(rank) for piece, rank in zip(pieces, ranks_of, strict=True)]
    in_host = [option.place for option in best if option.way is ShardingKind.TABLE_ROW_WISE]
    return task.plan(shards, "torchrec", summed_in_host=in_host)


def place_options(
    task: ShardingTask, proposal: Sequence[PlacementOption]
) -> tuple[list[list[int]], float]:
    """Ranks of the pieces of every option, and the seconds of the busiest rank.

    Tables row-wise over all ranks leave no choice and go first; the others follow greedily.
    """
    placer = Placer(task.rank_count, task.room_bytes, Rule.LEAST_WORK)
    ranks: list[list[int]] = [[] for _ in proposal]
    chosen: list[PlacementOption] = []
    for option in sorted(proposal, key=lambda option: (-option.seconds, option.place)):
        if option.way is ShardingKind.ROW_WISE:
            placer.work[0] += option.seconds
            placer.used += option.piece_bytes
            ranks[option.place] = list(range(task.rank_count))
        else:
            span = option.rows if option.way is ShardingKind.TABLE_ROW_WISE else 1
            chosen += [option] * (option.count // span)
    spans = [option.rows if option.way is ShardingKind.TABLE_ROW_WISE else 1 for option in chosen]
    seconds = [option.seconds for option in chosen]
    sizes = [option.piece_bytes for option in chosen]
    placed = placer.place(range(len(chosen)), sizes, seconds, spans=spans)
    for option, first, span in zip(chosen, placed.tolist(), spans, strict=True):
        if first == NOWHERE:
            raise PlanError(
                f"torchrec: no rank has room for a piece of table "
                f"{task.tables[option.place].name!r}. Use more ranks."
            )
        ranks[option.place] += range(first, first + span)
    if placer.used.max() > task.room_bytes:
        raise PlanError("torchrec: row-wise tables do not fit. Use more ranks.")
    return ranks, float(placer.work[0].max())


def list_options(task: ShardingTask, place: int) -> list[PlacementOption]:
    """The ways to place a table, cheapest first, else in this order."""
    table, ranks = task.tables[place], task.rank_count
    cuts = {ShardingKind.TABLE_WISE: (1, 1)}
    columns = table.width // _MIN_COLUMNS
    if columns > 1 and table.width % columns == 0:
        cuts[ShardingKind.COLUMN_WISE] = (columns, 1)
    if table.rows >= ranks > 1:
        cuts[ShardingKind.ROW_WISE] = (1, ranks)
    per_host = ranks // task.host_count
    if task.host_count > 1 and ranks % task.host_count == 0 and table.rows >= per_host > 1:
        cuts[ShardingKind.TABLE_ROW_WISE] = (1, per_host)
    allowed = [way for way in cuts if way.value in table.allowed_kinds] or list(cuts)
    found = []
    for way in allowed:
        columns, rows = cuts[way]
        largest = replace(table, rows=-(-table.rows // rows), width=table.width // columns)
        lookups = table.pooling_factor / rows
        size = task.needed_bytes(replace(largest, pooling_factor=lookups))
        seconds = piece_seconds(task, table, way, columns * rows)
        found.append(PlacementOption(place, way, columns, rows, seconds, size))
    return sorted(found, key=lambda option: option.seconds * option.count)


def piece_seconds(
    task: ShardingTask, table: EmbeddingTable, way: ShardingKind, count: int
) -> float:
    """The planner's estimate for a piece: lookup and exchange, forward and backward."""
    is_by_rows = way in (ShardingKind.ROW_WISE, ShardingKind.TABLE_ROW_WISE)
    width = table.width if is_by_rows else table.width // count
    lookups = task.batch_size * table.pooling_factor / (count if is_by_rows else 1)
    sent = task.batch_size * width * _NUMBER_BYTES
    read = lookups * (_INDEX_BYTES + width * table.dtype.size_bytes) + sent
    compute_s = (1 + _BACKWARD_PASSES) * read / _MEMORY_BYTES_PER_S
    if task.host_count == 1:
        exchange_s = sent / _HOST_BYTES_PER_S
    elif way is ShardingKind.TABLE_ROW_WISE:
        per_rank = sent * task.host_count / task.rank_count
        exchange_s = sent / _HOST_BYTES_PER_S + per_rank / _NETWORK_BYTES_PER_S
    else:
        exchange_s = sent / _NETWORK_BYTES_PER_S
    return compute_s + (2 * exchange_s if task.rank_count > 1 else 0.0)
