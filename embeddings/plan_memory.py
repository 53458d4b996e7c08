"""Memory of a plan: weights and optimizer state of every rank's pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError
from perfmodel.base.units import BYTES_PER_GIB

_STATE_TENSORS = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 0, "adam": 2}


def state_bytes(table: EmbeddingTable, optimizer: str) -> int:
    """Bytes of optimizer state on the device: fp32, a number a weight or a number a row."""
    numbers = table.rows
    if optimizer != "rowwise_adagrad":
        numbers *= _STATE_TENSORS[optimizer] * table.width
    if table.memory is TableMemory.DEVICE or not numbers:
        return numbers * DType.FP32.size_bytes
    return round(numbers * DType.FP32.size_bytes * (table.device_bytes / table.size_bytes))


def piece_bytes(table: EmbeddingTable, optimizer: str) -> int:
    """Bytes that a table or piece takes on its rank."""
    return table.device_bytes + state_bytes(table, optimizer)


def bytes_by_rank(plan: ShardingPlan, *, optimizer: str) -> NDArray[np.int64]:
    """Bytes of tables and their optimizer state on every rank."""
    copied = sum(piece_bytes(table, optimizer) for table in plan.copied_tables)
    held = plan.by_rank([piece_bytes(table, optimizer) for table in plan.pieces.tables])
    used: NDArray[np.int64] = copied + held.astype(np.int64)
    return used


def check_fits(plan: ShardingPlan, *, room_bytes: int, optimizer: str) -> None:
    """Raise unless the tables of every rank fit in *room_bytes*."""
    used = bytes_by_rank(plan, optimizer=optimizer)
    rank = int(used.argmax())
    if used[rank] <= room_bytes:
        return
    full = int((used > room_bytes).sum())
    raise PlanError(
        f"plan {plan.name!r} does not fit: rank {rank} needs {used[rank] / BYTES_PER_GIB:.1f} GiB "
        f"for tables, has {room_bytes / BYTES_PER_GIB:.1f} GiB"
        f"{f' ({full} ranks are too full)' if full > 1 else ''}. {_advise(plan, rank, optimizer)}"
    )


def _advise(plan: ShardingPlan, rank: int, optimizer: str) -> str:
    shards = plan.shards_of_rank[rank]
    if not shards:
        return "Data-parallel tables alone take that much: shard some of them."
    size, largest = max(
        ((piece_bytes(plan.table_of(shard), optimizer), shard) for shard in shards),
        key=lambda pair: pair[0],
    )
    kind = plan.kinds[largest.table]
    words = kind.value.replace("_", "-")
    return (
        f"Largest shard there: table {plan.tables[largest.table].name!r}, {words}, "
        f"{size / BYTES_PER_GIB:.1f} GiB. {_remedy(plan, kind, largest)}"
    )


def _remedy(plan: ShardingPlan, kind: ShardingKind, largest: Shard) -> str:
    if plan.rank_count == 1:
        return "Take more ranks, or keep that table in host memory."
    if kind is ShardingKind.ROW_WISE:
        return "Give that table more ranks, or keep it in host memory."
    if largest.width >= 64:
        return "Shard that table row-wise or column-wise over more ranks."
    return "Shard that table row-wise over more ranks."
