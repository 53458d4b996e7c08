"""The memory of a DLRM rank: its pieces of tables, the dense part, activations and buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embeddings.plan import ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.graph.job import RUNTIME_BYTES, USUAL_ADVICE, MemoryPart, RankMemory
from perfmodel.stacks.optimizers import load_optimizers
from perfmodel.workloads.dlrm.dense import (
    DenseLayer,
    dense_layers,
    dense_parameters,
    token_layers,
    top_layers,
)
from perfmodel.workloads.dlrm.spec import DlrmSpec, local_batch
from perfmodel.workloads.kernels import FP32_BYTES

_ADVICE = dict.fromkeys(
    ("embedding tables", "embedding optimizer state"),
    "Use more hosts, rank plans (`perfmodel rank`), or keep tables that the GPUs have "
    "no room for in host memory: --set sharding.sharder=balanced.",
)


def dlrm_memory(spec: DlrmSpec, *, rank_count: int, plan: ShardingPlan) -> tuple[RankMemory, ...]:
    """Peak memory of every rank."""
    samples = local_batch(spec, rank_count=rank_count)
    held = np.column_stack([plan.by_rank(column) for column in _columns(spec, plan.pieces.tables)])
    copied = _totals(spec, plan.copied_tables)
    return tuple(_rank_memory(spec, of_rank, copied, samples) for of_rank in held.tolist())


def _columns(spec: DlrmSpec, pieces: Sequence[EmbeddingTable]) -> tuple[list[float], ...]:
    """By piece: bytes, those on the device, those of state, numbers and lookups per sample."""
    return (
        [table.size_bytes for table in pieces],
        [table.device_bytes for table in pieces],
        [table.state_bytes(spec.embedding.optimizer) for table in pieces],
        [table.sample_numbers for table in pieces],
        [table.pooling_factor for table in pieces],
    )


def _totals(spec: DlrmSpec, pieces: Sequence[EmbeddingTable]) -> list[float]:
    return [sum(column) for column in _columns(spec, pieces)]


def piece_memory_bytes(spec: DlrmSpec, piece: EmbeddingTable) -> int:
    """Memory that *piece* adds to its rank: weights, state and buffers."""
    weights_and_state = piece.held_bytes(spec.embedding.optimizer)
    return weights_and_state + _sent_bytes(spec, piece.sample_numbers, piece.pooling_factor)


def base_memory_bytes(spec: DlrmSpec, copied: list[EmbeddingTable], *, samples: int) -> int:
    """Memory of a rank that holds no piece, with *copied* data-parallel tables."""
    return _rank_memory(spec, _totals(spec, []), _totals(spec, copied), samples).total_bytes


def room_for_tables(spec: DlrmSpec, *, rank_count: int, memory_bytes: int) -> int:
    """The part of *memory_bytes* that is left for pieces of tables and their buffers."""
    return memory_bytes - base_memory_bytes(spec, [], samples=-(-spec.batch // rank_count))


def _rank_memory(
    spec: DlrmSpec, held: Sequence[float], copied: Sequence[float], samples: int
) -> RankMemory:
    """The memory of a rank with the totals of the tables that it alone, and that all ranks hold."""
    _, device, state, numbers, lookups = held
    size, _, copied_state, _, _ = (int(total) for total in copied)
    dense_bytes = dense_parameters(spec) * FP32_BYTES
    # Pooled vectors and their gradients, sent and received, and two batches of indices.
    received = round(number_bytes(spec) * samples * spec.embedding.received_numbers)
    parts = {
        "embedding tables": int(device) + size,
        "embedding optimizer state": int(state) + copied_state,
        "dense weights": dense_bytes,
        # Gradients and the buckets they are copied to, dense ones of copied tables too.
        "dense gradients": 2 * (dense_bytes + size),
        "dense optimizer state": load_optimizers()[spec.training.optimizer].states * dense_bytes,
        "activations": samples * _activation_bytes(spec),
        "exchange buffers": _sent_bytes(spec, numbers, lookups) + received,
        "runtime and buffers": RUNTIME_BYTES,
    }
    return RankMemory(
        tuple(
            MemoryPart(name, part, _ADVICE.get(name, USUAL_ADVICE)) for name, part in parts.items()
        )
    )


def _activation_bytes(spec: DlrmSpec) -> int:
    """Bytes per sample for the backward pass: input and output of every layer."""
    tokens, top = (_layer_numbers(layers) for layers in (token_layers(spec), top_layers(spec)))
    numbers = _layer_numbers(dense_layers(spec)) - tokens + (spec.outputs - 1) * top
    section = spec.sequence
    if section is None:
        # Vectors are put in order and joined; top layers that read the latter keep it anyway.
        is_input = spec.top_inputs == spec.interaction_inputs
        numbers += spec.interaction_inputs * (1 if is_input else 2)
    else:
        # Beside the layers: normalised tokens, attended values and the residual.
        further = section.layers * (2 * section.width + section.heads * section.value_width)
        numbers += round(section.length * (further + tokens))
    return numbers * spec.training.precision.size_bytes


def _layer_numbers(layers: Sequence[DenseLayer]) -> int:
    return sum(layer.inputs + layer.outputs for layer in layers)


def _sent_bytes(spec: DlrmSpec, numbers: float, lookups: float) -> int:
    vectors = round(number_bytes(spec) * spec.batch * numbers)
    return vectors + key_bytes(spec) * round(spec.batch * lookups)


def number_bytes(spec: DlrmSpec) -> int:
    """Buffers of a number of a pooled vector, as it is computed and, cast, as it is sent."""
    sent = spec.embedding.exchange_dtype
    return FP32_BYTES + (0 if sent is DType.FP32 else sent.size_bytes)


def key_bytes(spec: DlrmSpec) -> int:
    """Buffers of an index, in this batch and, where it travels ahead, the next."""
    return (1 + spec.training.distribute_ahead) * spec.embedding.index_dtype.size_bytes
