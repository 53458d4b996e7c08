"""Single prices, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfmodel.api.asking import open_place
from perfmodel.prediction.phases import OnPhase, ignore_phase

if TYPE_CHECKING:
    from collectives.collective import CollectiveCost, CollectiveSoftware
    from collectives.nccl_tests import RunPlace
    from embeddings.statistics import DataStatistics
    from perfmodel.graph.ops import Op
    from perfmodel.reports.collective import CollectiveAnswer, CollectiveGroup, SizeSweep
    from perfmodel.reports.kernel import KernelAnswer
    from perfmodel.validation.fits import FitBoard
    from perfmodel.validation.scoreboard import Scoreboard

KernelKind = Literal["gemm", "attention", "experts", "memory"]


def price_kernel(op: Op, *, device: str, stack: str = "kernel_benchmark") -> KernelAnswer:
    """What one kernel takes on a GPU: a Gemm, Attention, MemoryBound or EmbeddingOp."""
    from perfmodel.reports.kernel import answer_op
    from perfmodel.stacks.profiles import load_stack
    from topologies import load_device

    return answer_op(op, load_device(device), load_stack(stack))


def price_collective(
    kind: str,
    size: int | str,
    *,
    topology: str,
    hosts: int = 1,
    ranks: int | Sequence[int] | None = None,
    dtype: str = "fp32",
    software: CollectiveSoftware | None = None,
    calibration: Sequence[str] = (),
) -> CollectiveCost:
    """What a collective takes on *ranks*, all of them if left out; *size* is bytes, or `64MiB`."""
    return ask_collective(
        kind,
        size,
        topology=topology,
        hosts=hosts,
        ranks=ranks,
        dtype=dtype,
        software=software,
        calibration=calibration,
    ).alone[0]


def ask_collective(
    kind: str,
    size: int | str,
    *,
    topology: str,
    hosts: int = 1,
    ranks: int | Sequence[int] | None = None,
    beside: Sequence[tuple[str, int | str, Sequence[int]]] = (),
    byte_matrix: Sequence[Sequence[int]] | None = None,
    dtype: str = "fp32",
    software: CollectiveSoftware | None = None,
    calibration: Sequence[str] = (),
) -> CollectiveAnswer:
    """A collective alone, and with others *beside* it (kind, size, ranks) at the same time.

    *ranks* are how many, or which; *byte_matrix* says what each rank of an uneven all-to-all
    sends to each.
    """
    from collectives.collective import Collective, parse_kind
    from perfmodel.base.units import parse_size
    from perfmodel.reports.collective import answer_calls

    group = _group(topology, hosts, ranks, dtype, software, calibration)

    def build(kind: str, size: int | str, matrix: Sequence[Sequence[int]] | None) -> Collective:
        size_bytes = size if isinstance(size, int) else parse_size(size)
        rows = None if matrix is None else tuple(tuple(row) for row in matrix)
        return Collective(parse_kind(kind), size_bytes, group.dtype, byte_matrix=rows)

    others = [(build(word, amount, None), whose) for word, amount, whose in beside]
    return answer_calls(group, build(kind, size, byte_matrix), others)


def sweep_collective(
    kind: str,
    *,
    topology: str,
    hosts: int = 1,
    ranks: int | Sequence[int] | None = None,
    measured: Sequence[str | Path] = (),
    dtype: str = "fp32",
    software: CollectiveSoftware | None = None,
    calibration: Sequence[str] = (),
) -> SizeSweep:
    """A collective over sizes from 512 B to 1 GiB, beside tables of what was *measured*."""
    from collectives.collective import parse_kind
    from collectives.measurements import load_measurements
    from perfmodel.reports.collective import answer_sizes

    group = _group(topology, hosts, ranks, dtype, software, calibration)
    rows = load_measurements([Path(table) for table in measured]) if measured else ()
    return answer_sizes(group, parse_kind(kind), rows)


def _group(
    topology: str,
    hosts: int,
    ranks: int | Sequence[int] | None,
    dtype: str,
    software: CollectiveSoftware | None,
    calibration: Sequence[str],
) -> CollectiveGroup:
    from collectives.collective import CollectiveSoftware
    from perfmodel.base.dtypes import parse_dtype
    from perfmodel.reports.collective import CollectiveGroup
    from topologies import build_cluster, load_topology

    machine = load_topology(topology, calibrations=tuple(calibration)).idle
    count = ranks if isinstance(ranks, int) else None
    cluster = build_cluster(machine, hosts=hosts, ranks=count)
    listed = None if ranks is None or isinstance(ranks, int) else tuple(ranks)
    return CollectiveGroup(
        cluster=cluster,
        ranks=tuple(range(cluster.rank_count)) if listed is None else listed,
        software=CollectiveSoftware() if software is None else software,
        dtype=parse_dtype(dtype),
    )


def describe_indices(file: str | Path, *, batch: int = 4096) -> DataStatistics:
    """Pooling and reuse of the indices in *file*, over the whole set and within batches."""
    from embeddings.index_files import load_index_data
    from embeddings.statistics import describe_data

    return describe_data(load_index_data(Path(file)), batch_size=batch)


def validate(
    kind: Literal["collectives"] | KernelKind,
    tables: Sequence[str | Path],
    *,
    place: RunPlace | None = None,
    calibration: Sequence[str] = (),
) -> Scoreboard:
    """Compare predictions with *tables* of measured collectives or kernels.

    Kernels come in one table, collectives in one or more; *place* says what output of
    nccl-tests does not. Constants of the files *calibration* come before perfmodel's own.
    """
    paths = [Path(table) for table in tables]
    if kind == "collectives":
        from collectives.calibration import load_calibration
        from collectives.measurements import load_measurements
        from perfmodel.validation.tables import validate_collectives

        own = [load_calibration(Path(file)) for file in calibration]
        return validate_collectives(
            load_measurements(paths, place=place), calibration=own[0] if own else None
        )
    from perfmodel.validation.tables import validate_kernels

    [path] = paths
    return validate_kernels(kind, path, calibration=calibration)


def validate_fits(tables: Sequence[str | Path]) -> FitBoard:
    """Compare the memory verdict with *tables* of runs; rows without a time failed."""
    from perfmodel.validation.fits import judge_fits
    from perfmodel.validation.runs_table import load_runs

    return judge_fits([load_runs(Path(table)) for table in tables])


def validate_runs(
    table: str | Path | None = None,
    *,
    source: str | None = None,
    calibration: Sequence[str] = (),
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> Scoreboard:
    """Compare predictions with a *table* of measured training runs, or those of one *source*.

    Without a table, with the core tables that come with a clone of the repository. Constants
    of the files *calibration* come before perfmodel's own.
    """
    from perfmodel.validation import runs
    from perfmodel.validation.runs_table import find_core_tables, load_runs, of_source

    paths = [Path(table)] if table is not None else find_core_tables()
    tables = of_source([load_runs(path) for path in paths], source)
    with open_place(executor, workers, ray_address) as place:
        return runs.validate_tables(
            tables, executor=place, calibration=tuple(calibration), on_phase=on_phase
        )
