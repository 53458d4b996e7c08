"""Embedding cases: measured lookups and updates, as a file of cases describes them.

A case lists the tables that were looked up and where its times are: stated in the file with their
source, in a table of kernels, or in a recording.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from embeddings.distribution import UNIFORM, IndexDistribution, ReuseHistogram
from embeddings.table import OPTIMIZERS, EmbeddingTable, Lookup
from perfmodel.base.errors import MeasurementError
from perfmodel.base.fields import Count, Duration, Number, OneOf, Switch, Words
from perfmodel.base.forms import load_document
from perfmodel.base.units import NS_PER_US
from perfmodel.workloads.fields import SpecSection
from topologies import Device, load_device

FIRST_KERNEL = "linearize_index_kernel"
HISTOGRAM_EDGES = tuple(2.0**power for power in range(16))
"""Upper edges of the first 16 bins of reuse: up to 1, 2, 4 ... 32,768; the 17th is open."""
_MEAN_IN_BIN = 1 / (2 * math.log(2))
"""Mean of what is spread evenly in logarithm over (u / 2, u], over u."""


def read_kernel_table(
    path: Path, *, runs: Sequence[str], words: Mapping[str, str]
) -> dict[str, float]:
    """Mean time over all calls in *runs* of the kernel whose name holds each of *words*."""
    _check_file(path, "a table of kernels")
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("trace") in runs]
    found = {}
    for part, word in words.items():
        times = [float(row["time_us"]) for row in rows if word in row["kernel"]]
        if not times:
            raise MeasurementError(
                f"{path}: has no kernel with {word!r} in its name in {', '.join(runs)}."
            )
        found[part] = NS_PER_US * sum(times) / len(times)
    return found


def _check_file(path: Path, what: str) -> None:
    if not path.is_file():
        raise MeasurementError(f"{path}: must be {what}, but there is no such file.")


def read_recording(path: Path, kind: str) -> dict[str, float]:
    """Mean times of the parts of lookups of *kind* and their updates in the recording at *path*.

    A sorted backward pass is a sequence of kernels on one stream: indices are made linear, sorted
    and coded, then long rows and all others are updated.
    """
    from traces.kineto import load_kineto
    from traces.trace import Category

    _check_file(path, "a Kineto file")
    trace = load_kineto(path)
    columns = trace.columns.take(trace.columns.is_in(Category.KERNEL))
    forward_word = f"codegen_forward_{kind}_kernel"
    forward_ns: list[int] = []
    updates: list[dict[str, int]] = []
    stream, update = None, {"prepared": 0, "long": 0}
    for row, number in enumerate(columns.name.tolist()):
        name, duration_ns = trace.names[number], int(columns.duration_ns[row])
        if forward_word in name:
            forward_ns.append(duration_ns)
        elif FIRST_KERNEL in name:
            stream, update = columns.stream[row], {"prepared": duration_ns, "long": 0}
        elif columns.stream[row] == stream:
            if f"_{kind}_kernel_warp_per_row" in name:
                updates.append({**update, "short": duration_ns})
            if "_kernel_warp_per_row" in name:
                # The update ends here, also one of the other kind.
                stream = None
            elif f"_{kind}_kernel_cta_per_row" in name:
                update["long"] += duration_ns
            elif update["long"] == 0:
                update["prepared"] += duration_ns
    if not forward_ns or not updates:
        raise MeasurementError(f"{path}: has no whole lookup with {forward_word!r} in its names.")
    parts = {part: sum(one[part] for one in updates) / len(updates) for part in updates[0]}
    forward = sum(forward_ns) / len(forward_ns)
    return {"forward": forward, "backward": sum(parts.values()), **parts}


HISTOGRAMS = "embeddings/index_reuse_histograms.csv"


class TableGroup(SpecSection):
    """*count* tables of each of *rows*; *lookups* are those of a batch in one table."""

    count: Count = 1
    rows: Count | tuple[Count, ...]
    width: Count
    lookups: Number
    reuse_year: Words | None = None
    is_weighted: Switch = False
    deviation: Number = 0.0

    def tables(self, batch: int, distribution: IndexDistribution) -> list[EmbeddingTable]:
        """The tables, all with *distribution*."""
        rows = self.rows if isinstance(self.rows, tuple) else (self.rows,)
        return [
            EmbeddingTable(
                f"t{number}",
                number,
                self.width,
                self.lookups / batch,
                distribution=distribution,
                is_weighted=self.is_weighted,
                pooling_deviation=self.deviation,
            )
            for number in rows
            for _ in range(self.count)
        ]


class KernelTableSource(SpecSection):
    """Kernels of *runs* in a table with columns trace, kernel and time_us."""

    file: Words
    runs: tuple[Words, ...]
    forward: Words
    backward: Words


class RecordingSource(SpecSection):
    """Kernels in a Kineto file; *kind* is the word in their names."""

    file: Words
    kind: Literal["unweighted", "weighted"]


_Part = Literal["forward", "backward", "prepared", "long", "short"]


class CaseSection(SpecSection):
    """One case; exactly one of *figures*, *kernel_table* and *recording* states its times."""

    name: Words
    device: Words
    kernel: Literal["fbgemm", "fbgemm_2022", "table_batched"]
    batch: Count
    optimizer: Annotated[str, OneOf((*OPTIMIZERS,))] = "sgd"
    tables: tuple[TableGroup, ...]
    source: Words
    figures: dict[_Part, Duration] | None = None
    kernel_table: KernelTableSource | None = None
    recording: RecordingSource | None = None
    heuristic: dict[Literal["forward", "backward"], Duration] | None = None
    not_fitted: tuple[Words, ...] = ()


class CasesDocument(SpecSection):
    """A file of cases."""

    description: Words
    hardware: Words
    software: Words
    licence: Words
    cases: tuple[CaseSection, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingCase:
    """A measured *lookup*: times by part, and predictions of another method for some of them.

    Parts are `forward` and `backward`, and of a sorted backward pass also
    `prepared`, `long` and `short`. *fitted* are the parts that constants are fitted to.
    """

    name: str
    device: Device
    lookup: Lookup
    measured_ns: Mapping[str, float]
    heuristic_ns: Mapping[str, float]
    fitted: tuple[str, ...]

    @property
    def generation(self) -> str:
        """The architecture of its GPU."""
        return self.device.generation


def load_cases(path: Path, *, data: Path) -> tuple[tuple[EmbeddingCase, ...], dict[str, str]]:
    """The cases in *path* and its header; the files that they name are in the folder *data*."""
    document = load_document(path, MeasurementError).read(CasesDocument)
    names = [case.name for case in document.cases]
    if len(names) < 2 or len(set(names)) < len(names):
        raise MeasurementError(
            f"{path}: must have two cases or more, each with a name of its own, "
            f"got {', '.join(names) or 'none'}."
        )
    about = {
        "source": "; ".join(f"{case.name}: {case.source}" for case in document.cases),
        "hardware": document.hardware,
        "software": document.software,
        "licence": document.licence,
    }
    return tuple(_build(case, path, data) for case in document.cases), about


def _build(case: CaseSection, path: Path, data: Path) -> EmbeddingCase:
    tables = [
        table
        for group in case.tables
        for table in group.tables(case.batch, _distribution(group, data))
    ]
    measured = _read_times(case, path, data)
    # The whole backward pass is fitted only if its kernels are not known one by one.
    left_out = (*case.not_fitted, *(("backward",) if "prepared" in measured else ()))
    return EmbeddingCase(
        name=case.name,
        device=load_device(case.device),
        lookup=Lookup(tuple(tables), case.batch, case.optimizer, case.kernel),
        measured_ns=measured,
        heuristic_ns={str(part): ns for part, ns in (case.heuristic or {}).items()},
        fitted=tuple(part for part in measured if part not in left_out),
    )


def _read_times(case: CaseSection, path: Path, data: Path) -> dict[str, float]:
    figures, table, recording = case.figures, case.kernel_table, case.recording
    if sum(way is not None for way in (figures, table, recording)) != 1:
        raise MeasurementError(
            f"{path}: case {case.name!r} must state its times in exactly one of figures, "
            "kernel_table and recording."
        )
    if table is not None:
        words = {"forward": table.forward, "backward": table.backward}
        return read_kernel_table(data / table.file, runs=table.runs, words=words)
    if recording is not None:
        return read_recording(data / recording.file, recording.kind)
    return {str(part): ns for part, ns in (figures or {}).items()}


def _distribution(group: TableGroup, data: Path) -> IndexDistribution:
    """The index reuse of that year, used as the reuse within a batch."""
    if group.reuse_year is None:
        return UNIFORM
    path = data / HISTOGRAMS
    _check_file(path, f"the histograms for the reuse of {group.reuse_year}")
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["year"] == group.reuse_year:
                return histogram_from_bins(
                    tuple(float(row[key]) for key in row if key.startswith("uniq_rows_frac")),
                    tuple(float(row[key]) for key in row if key.startswith("lookup_frac")),
                    draws=group.lookups,
                    reuse=float(row["avg_reuse"]),
                )
    raise MeasurementError(f"{path}: has no row of the year {group.reuse_year}.")


def histogram_from_bins(
    row_shares: tuple[float, ...], lookup_shares: tuple[float, ...], *, draws: float, reuse: float
) -> ReuseHistogram:
    """A histogram from the shares of distinct rows and of lookups by power-of-two bin.

    *reuse* is the mean over all rows. Where a share of rows is printed too
    coarsely to divide by, rows are taken to be spread evenly in logarithm.
    """
    means = []
    edges = (*HISTOGRAM_EDGES, 2 * HISTOGRAM_EDGES[-1])
    for row_share, lookup_share, edge in zip(row_shares, lookup_shares, edges, strict=True):
        spread = max(edge * _MEAN_IN_BIN, 1.0)
        mean = lookup_share * reuse / row_share if row_share >= 0.01 else spread
        means.append(min(max(mean, edge / 2, 1.0), edge))
    return ReuseHistogram(lookup_shares, tuple(means), draws)
