"""The memory of a DLRM rank: its pieces of tables, the dense part, activations and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from embeddings.plan import ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.graph.job import RUNTIME_BYTES, MemoryPart, RankMemory
from perfmodel.workloads.dlrm.dense import dense_layers, dense_parameters
from perfmodel.workloads.dlrm.spec import DlrmSpec, local_batch
from perfmodel.workloads.kernels import FP32_BYTES, STATES


def dlrm_memory(spec: DlrmSpec, *, rank_count: int, plan: ShardingPlan) -> tuple[RankMemory, ...]:
    """Peak memory of every rank."""
    samples = local_batch(spec, rank_count=rank_count)
    sums = [plan.by_rank(column).tolist() for column in _columns(spec, plan.pieces.tables)]
    copied = _held(map(sum, _columns(spec, plan.copied_tables)))
    return tuple(
        _rank_memory(spec, _held(of_rank), copied, samples) for of_rank in zip(*sums, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """Totals of the tables of a rank: bytes, those on the device, width, and lookups per sample."""

    size_bytes: int = 0
    device_bytes: int = 0
    state_bytes: int = 0
    width: int = 0
    lookups: float = 0.0


def _columns(spec: DlrmSpec, pieces: Sequence[EmbeddingTable]) -> tuple[Sequence[float], ...]:
    """What `_Held` adds up, by piece."""
    return (
        [table.size_bytes for table in pieces],
        [table.device_bytes for table in pieces],
        [table.state_bytes(spec.embedding.optimizer) for table in pieces],
        [table.width for table in pieces],
        [table.pooling_factor for table in pieces],
    )


def _held(sums: Iterable[float]) -> _Held:
    size, device, state, width, lookups = sums
    return _Held(int(size), int(device), int(state), int(width), lookups)


def piece_memory_bytes(spec: DlrmSpec, piece: EmbeddingTable) -> int:
    """Memory that *piece* adds to its rank: weights, state and buffers."""
    weights_and_state = piece.held_bytes(spec.embedding.optimizer)
    return weights_and_state + _sent_bytes(spec, piece.width, piece.pooling_factor)


def base_memory_bytes(spec: DlrmSpec, copied: list[EmbeddingTable], *, samples: int) -> int:
    """Memory of a rank that holds no piece, with *copied* data-parallel tables."""
    return _rank_memory(spec, _Held(), _held(map(sum, _columns(spec, copied))), samples).total_bytes


def room_for_tables(
    spec: DlrmSpec, tables: Sequence[EmbeddingTable], *, rank_count: int, memory_bytes: int
) -> int:
    """The part of *memory_bytes* that is left for weights and state of tables.

    Buffers of the exchange grow with what a rank holds; an even share of them is set aside.
    """
    base = base_memory_bytes(spec, [], samples=-(-spec.batch // rank_count))
    width = sum(table.width for table in tables)
    lookups = sum(table.pooling_factor for table in tables)
    return memory_bytes - base - _sent_bytes(spec, width, lookups) // rank_count


def _rank_memory(spec: DlrmSpec, held: _Held, copied: _Held, samples: int) -> RankMemory:
    dense_bytes = dense_parameters(spec) * FP32_BYTES
    return RankMemory(
        (
            MemoryPart("embedding tables", held.device_bytes + copied.size_bytes),
            MemoryPart("embedding optimizer state", held.state_bytes + copied.state_bytes),
            MemoryPart("dense weights", dense_bytes),
            # Gradients and the buckets they are copied to, dense ones of copied tables too.
            MemoryPart("dense gradients", 2 * (dense_bytes + copied.size_bytes)),
            MemoryPart("dense optimizer state", STATES[spec.training.optimizer] * dense_bytes),
            MemoryPart("activations", samples * _activation_bytes(spec)),
            MemoryPart("exchange buffers", _exchange_bytes(spec, held, samples)),
            MemoryPart("runtime and buffers", RUNTIME_BYTES),
        )
    )


def _activation_bytes(spec: DlrmSpec) -> int:
    """Bytes per sample for the backward pass: input and output of every layer."""
    numbers = sum(layer.inputs + layer.outputs for layer in dense_layers(spec))
    return (numbers + 2 * spec.interaction_inputs) * spec.training.precision.size_bytes


def _exchange_bytes(spec: DlrmSpec, held: _Held, samples: int) -> int:
    """Pooled vectors and their gradients, sent and received, and two batches of indices."""
    width_received = spec.embedding.total_width if samples else 0
    return (
        _sent_bytes(spec, held.width, held.lookups) + _vector_bytes(spec) * samples * width_received
    )


def _sent_bytes(spec: DlrmSpec, width: int, lookups: float) -> int:
    vectors = _vector_bytes(spec) * spec.batch * width
    return vectors + 2 * round(spec.batch * lookups) * spec.embedding.index_dtype.size_bytes


def _vector_bytes(spec: DlrmSpec) -> int:
    """A number of a pooled vector, as it is computed and as it is sent."""
    return FP32_BYTES + spec.embedding.exchange_dtype.size_bytes
