"""Details: prices of single kernels and collectives, indices, traces, comparisons with tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.api.questions import File, Files, open_place
from perfmodel.base.errors import CalibrationError
from perfmodel.base.reading import is_json
from perfmodel.prediction.phases import OnPhase, ignore_phase

if TYPE_CHECKING:
    from collectives.collective import CollectiveCost, CollectiveSoftware
    from collectives.measurements import CollectiveMeasurement
    from collectives.nccl_tests import RunPlace
    from embeddings.index_data import DataStatistics
    from perfmodel.extensions.emulation.request import Emulation
    from perfmodel.extensions.emulation.summary import EmulatedJob
    from perfmodel.extensions.measurements.validation.fits import FitBoard
    from perfmodel.extensions.measurements.validation.scoreboard import Scoreboard
    from perfmodel.graph.ops import Op
    from perfmodel.reports.op_prices import (
        CollectiveAnswer,
        CollectiveGroup,
        KernelAnswer,
        SizeSweep,
    )
    from traces.job_trace import OnFile

KernelKind = Literal["gemm", "attention", "experts", "memory"]


def emulate(
    request: Emulation,
    out: File,
    *,
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
) -> EmulatedJob:
    """Run the torch script of *request* on virtual GPUs and write its job to the folder *out*."""
    from perfmodel.extensions.emulation import emulate as emulation

    with open_place(executor, workers, ray_address) as place:
        return emulation.emulate(request, Path(out), place=place)


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
                f"{file}: must be a file of kernels that `perfmodel calibrate "
                "gemm|attention|experts|memory` wrote, and is none."
            )
    gpu = replace(load_device(device), calibrations=tuple(calibration))
    return answer_op(op, gpu, load_stack(stack))


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
    """The cost of a collective on *ranks*, by default all; *size* is bytes, or `64MiB`."""
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
    """A collective alone, and with others at the same time (*beside*: kind, size, ranks).

    *ranks* are how many, or which; *byte_matrix* is what each rank of an uneven all-to-all sends
    to each.
    """
    from collectives.collective import Collective, parse_kind
    from perfmodel.base.units import parse_size
    from perfmodel.reports.op_prices import answer_calls

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
    measured: Files = (),
    dtype: str = "fp32",
    software: CollectiveSoftware | None = None,
    calibration: Sequence[str] = (),
) -> SizeSweep:
    """A collective over sizes from 512 B to 1 GiB, with the tables *measured* to compare with."""
    from collectives.collective import parse_kind
    from perfmodel.reports.op_prices import answer_sizes

    group = _group(topology, hosts, ranks, dtype, software, calibration)
    rows = load_collectives(measured) if measured else ()
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
    from perfmodel.reports.op_prices import CollectiveGroup
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


def describe_indices(file: File, *, batch: int = 4096) -> DataStatistics:
    """Pooling and reuse of the indices in *file*, over the whole set and within batches."""
    from embeddings.index_data import describe_data
    from embeddings.index_files import load_index_data

    return describe_data(load_index_data(Path(file)), batch_size=batch)


def trace_stats(paths: Files, on_file: OnFile | None = None) -> list[dict[str, Any]]:
    """What every stream of every rank spends its time on, one document per recording in *paths*."""
    from perfmodel.extensions.recordings.trace_stats import stats_document
    from traces.job_trace import ignore_file, load_job_traces

    recorded = load_job_traces(paths, on_file=on_file or ignore_file)
    return [stats_document(one) for one in recorded]


def trace_diff(before: File, after: File) -> dict[str, Any]:
    """What is slower in the later recording: by operator, kernel, profiler range, wait."""
    from perfmodel.extensions.recordings.trace_diff import diff_traces
    from traces.job_trace import load_job_trace

    return diff_traces(load_job_trace(before), load_job_trace(after))


def trace_extract(paths: Files, out: File, *, topology: str = "unknown") -> tuple[Path, ...]:
    """Write the recorded GEMMs, collectives and host times of a job as tables into *out*."""
    from perfmodel.extensions.recordings.extraction import extract_tables, write_tables
    from traces.job_trace import load_job_trace

    tables = extract_tables(load_job_trace(paths), topology=topology)
    return write_tables(tables, Path(out))


def trace_chakra(job: File, out: File) -> tuple[Path, ...]:
    """Write the recorded *job* as Chakra execution traces into *out*, one file per rank."""
    from perfmodel.extensions.recordings.storage import load_recorded_job, write_chakra_job

    return tuple(write_chakra_job(load_recorded_job(Path(job)), Path(out)))


def validate(
    kind: Literal["collectives"] | KernelKind,
    tables: Files,
    *,
    place: RunPlace | None = None,
    calibration: Sequence[str] = (),
) -> Scoreboard:
    """Compare predictions with *tables* of measured collectives or kernels.

    Kernels come in one table, collectives in one or more; *place* says what output of
    nccl-tests does not. Constants of the files *calibration* override the shipped ones.
    """
    from perfmodel.extensions.measurements.validation.tables import (
        validate_collectives,
        validate_kernels,
    )

    if kind != "collectives":
        [table] = tables
        return validate_kernels(kind, Path(table), calibration=calibration)
    from collectives.calibration import load_calibration

    own = [load_calibration(Path(file)) for file in calibration]
    return validate_collectives(
        load_collectives(tables, place), calibration=own[0] if own else None
    )


def validate_fits(tables: Files) -> FitBoard:
    """Compare the memory verdict with *tables* of runs; rows without a time failed."""
    from perfmodel.extensions.measurements.validation.fits import judge_fits
    from perfmodel.extensions.measurements.validation.runs_table import load_runs

    return judge_fits([load_runs(Path(table)) for table in tables])


def validate_runs(
    table: File | None = None,
    *,
    source: str | None = None,
    calibration: Sequence[str] = (),
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> Scoreboard:
    """Compare predictions with a *table* of measured training runs, or those of one *source*.

    The default is the core tables of a clone of the repository. Constants of the files
    *calibration* override the shipped ones.
    """
    from perfmodel.extensions.measurements.validation import runs
    from perfmodel.extensions.measurements.validation.runs_table import (
        find_core_tables,
        load_runs,
        of_source,
    )

    paths = [Path(table)] if table is not None else find_core_tables()
    tables = of_source([load_runs(path) for path in paths], source)
    with open_place(executor, workers, ray_address) as place:
        return runs.validate_tables(
            tables, executor=place, calibration=tuple(calibration), on_phase=on_phase
        )


def load_collectives(
    tables: Files, place: RunPlace | None = None
) -> tuple[CollectiveMeasurement, ...]:
    """The rows of *tables*; *place* says what output of nccl-tests does not."""
    from collectives.measurements import load_measurements

    return tuple(load_measurements([Path(table) for table in tables], place=place))
