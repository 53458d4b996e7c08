"""Single prices, and measurements: predictions beside them, and constants fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfmodel.api.asking import open_place
from perfmodel.prediction.phases import OnPhase, ignore_phase

if TYPE_CHECKING:
    from collectives.cost import CollectiveCost
    from collectives.nccl_tests import RunPlace
    from collectives.software import CollectiveSoftware
    from embeddings.statistics import DataStatistics
    from perfmodel.costs.measured_kernels import KernelTable
    from perfmodel.graph.ops import Op
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
    ranks: Sequence[int] | None = None,
    dtype: str = "fp32",
    software: CollectiveSoftware | None = None,
    calibration: Sequence[str] = (),
) -> CollectiveCost:
    """What a collective takes on *ranks*, all of them if left out; *size* is bytes, or `64MiB`."""
    from collectives.collective import Collective, parse_kind
    from collectives.pricing import CollectiveCall, price_collectives
    from collectives.software import CollectiveSoftware
    from perfmodel.base.dtypes import parse_dtype
    from perfmodel.base.units import parse_size
    from topologies import build_cluster, load_topology

    machine = load_topology(topology, calibrations=tuple(calibration)).idle
    cluster = build_cluster(machine, hosts=hosts)
    size_bytes = size if isinstance(size, int) else parse_size(size)
    call = CollectiveCall(
        Collective(parse_kind(kind), size_bytes, parse_dtype(dtype)),
        tuple(range(cluster.rank_count)) if ranks is None else tuple(ranks),
    )
    library = CollectiveSoftware() if software is None else software
    [cost] = price_collectives([call], cluster=cluster, software=library)
    return cost


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
        from perfmodel.validation.collectives import validate_collectives

        own = [load_calibration(Path(file)) for file in calibration]
        return validate_collectives(
            load_measurements(paths, place=place), calibration=own[0] if own else None
        )
    from perfmodel.validation.kernels import validate_table

    [path] = paths
    return validate_table(kind, path, calibration=calibration)


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


def calibrate_collectives(
    tables: Sequence[str | Path], out: str | Path, *, place: RunPlace | None = None
) -> tuple[str, ...]:
    """Shift the shipped constants to the machines of *tables* and write them to *out*.

    Tables are CSV or output of nccl-tests, of which *place* says the machine. The sentences
    say what was found; the file is a `calibration` of scenarios.
    """
    from datetime import UTC, datetime

    from collectives.calibration import load_default_calibration
    from collectives.measurements import load_measurements
    from perfmodel.calibration.collectives.rows import about_tables, write_calibration
    from perfmodel.calibration.collectives.shift import shift_collectives

    measurements = load_measurements([Path(table) for table in tables], place=place)
    shifted = shift_collectives(measurements, load_default_calibration())
    about = about_tables(
        measurements,
        command=f"perfmodel.api.calibrate_collectives, {' '.join(map(str, tables))}",
        licence="that of the sources",
        day=datetime.now(UTC).date(),
    )
    write_calibration(shifted.calibration, Path(out), about=about)
    return shifted.sentences


def load_kernels(kind: KernelKind, tables: Sequence[str | Path]) -> KernelTable:
    """The measured kernels of *tables*, as constants are fitted to them."""
    from perfmodel.calibration.kernels import join_tables, preferred_rows
    from perfmodel.validation.kernels import KINDS

    read, _ = KINDS[kind]
    table = join_tables([read(Path(path)) for path in tables])
    return preferred_rows(table) if kind == "gemm" else table


def calibrate_kernels(
    kind: KernelKind,
    tables: Sequence[str | Path],
    out: str | Path,
    *,
    on_phase: OnPhase = ignore_phase,
) -> int:
    """Fit kernels to *tables* and write how many sets of constants to *out*.

    Into a folder goes one file per GPU. A file is a `calibration` of scenarios.
    """
    from datetime import UTC, datetime

    from perfmodel.base.writing import check_writable, write_file
    from perfmodel.calibration.kernels import about_tables, fit_entries
    from perfmodel.costs.calibration_files import entries_to_text

    command = f"perfmodel calibrate {kind} {' '.join(map(str, tables))} --out {out}"
    about = about_tables(kind, command=command, day=datetime.now(UTC).date())
    target = Path(out)
    if not target.is_dir():
        check_writable("--out", target)
    entries = fit_entries(kind, load_kernels(kind, tables), on_phase=on_phase)
    files = {target: entries}
    if target.is_dir():
        files = {
            target / f"{device}.json": tuple(one for one in entries if one.device == device)
            for device in dict.fromkeys(entry.device for entry in entries)
        }
    for path, chosen in files.items():
        write_file(path, entries_to_text(about, chosen))
    return len(entries)
