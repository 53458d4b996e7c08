"""What a plan takes on every rank."""

from __future__ import annotations

from embeddings.plan import ShardingPlan


def bytes_by_rank(plan: ShardingPlan, *, optimizer: str) -> list[int]:
    """Bytes of tables and their optimizer state on every rank."""
    copied = sum(table.held_bytes(optimizer) for table in plan.copied_tables)
    held = plan.by_rank([table.held_bytes(optimizer) for table in plan.pieces.tables])
    return [copied + int(size_bytes) for size_bytes in held]
