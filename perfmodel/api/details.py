"""Details: prices of single kernels and collectives, and statistics of indices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Required, TypedDict, Unpack

from perfmodel.api.questions import File
from perfmodel.base.errors import CalibrationError
from perfmodel.base.reading import is_json

if TYPE_CHECKING:
    from collectives.collective import CollectiveCost, CollectiveSoftware
    from embeddings.index_data import DataStatistics
    from perfmodel.graph.ops import Op
    from perfmodel.reports.op_prices import (
        CollectiveAnswer,
        CollectiveGroup,
        KernelAnswer,
        SizeSweep,
    )

KernelKind = Literal["gemm", "attention", "experts", "memory"]


def price_kernel(
    op: Op,
    *,
    device: str,
    stack: str = "kernel_benchmark",
    calibration: Sequence[str] = (),
) -> KernelAnswer:
    """The time of one kernel on a GPU: a Gemm, Attention, MemoryBound or EmbeddingOp.

    *calibration* names files of constants that were measured on it.
    """
    from dataclasses import replace

    from perfmodel.reports.op_prices import answer_op
    from perfmodel.stacks.profiles import load_stack
    from topologies import load_device

    for file in calibration:
        if not is_json(Path(file)):
            raise CalibrationError(
                f"{file}: must be a file of constants of kernels, as `perfmodel calibrate "
                "embedding` writes it, and is none."
            )
    gpu = replace(load_device(device), calibrations=tuple(calibration))
    return answer_op(op, gpu, load_stack(stack))


class GroupOptions(TypedDict, total=False):
    """Who takes part in a collective: *ranks* are how many, or which; by default all of *hosts*."""

    topology: Required[str]
    hosts: int
    ranks: int | Sequence[int] | None
    dtype: str
    software: CollectiveSoftware | None
    calibration: Sequence[str]
    faults: Sequence[str]


def price_collective(kind: str, size: int | str, **group: Unpack[GroupOptions]) -> CollectiveCost:
    """The cost of a collective; *size* is bytes, or `64MiB`."""
    return ask_collective(kind, size, **group).cost


def ask_collective(
    kind: str,
    size: int | str,
    *,
    byte_matrix: Sequence[Sequence[int]] | None = None,
    **group: Unpack[GroupOptions],
) -> CollectiveAnswer:
    """The price of a collective with everything about it.

    *byte_matrix* is what each rank of an uneven all-to-all sends to each.
    """
    from collectives.collective import Collective, parse_kind
    from perfmodel.base.units import parse_size
    from perfmodel.reports.op_prices import answer_call

    members = _group(**group)
    size_bytes = size if isinstance(size, int) else parse_size(size)
    rows = None if byte_matrix is None else tuple(tuple(row) for row in byte_matrix)
    collective = Collective(parse_kind(kind), size_bytes, members.dtype, byte_matrix=rows)
    return answer_call(members, collective)


def sweep_collective(kind: str, **group: Unpack[GroupOptions]) -> SizeSweep:
    """A collective over sizes from 512 B to 1 GiB, one power of two after the other."""
    from collectives.collective import parse_kind
    from perfmodel.reports.op_prices import answer_sizes

    return answer_sizes(_group(**group), parse_kind(kind))


def _group(
    topology: str,
    hosts: int = 1,
    ranks: int | Sequence[int] | None = None,
    dtype: str = "fp32",
    software: CollectiveSoftware | None = None,
    calibration: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> CollectiveGroup:
    from collectives.collective import CollectiveSoftware
    from perfmodel.base.dtypes import parse_dtype
    from perfmodel.reports.op_prices import CollectiveGroup
    from topologies import build_cluster, load_topology

    machine = load_topology(topology, calibrations=tuple(calibration), faults=faults).idle
    count = ranks if isinstance(ranks, int) else None
    cluster = build_cluster(machine, hosts=hosts, ranks=count)
    cluster.check_faults()
    listed = None if ranks is None or isinstance(ranks, int) else tuple(ranks)
    return CollectiveGroup(
        cluster=cluster,
        ranks=tuple(range(cluster.rank_count)) if listed is None else listed,
        software=CollectiveSoftware() if software is None else software,
        dtype=parse_dtype(dtype),
    )


def describe_indices(file: File, *, batch: int = 4096) -> DataStatistics:
    """Pooling and reuse of the indices in *file*, over the whole set and within batches."""
    from embeddings.index_data import describe_data
    from embeddings.index_files import load_index_data

    return describe_data(load_index_data(Path(file)), batch_size=batch)
