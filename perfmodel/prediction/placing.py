"""Placing: the tables of a recommendation model from a file, and the plan that places them.

A workload's own section knows rows, widths, pooling and a Zipf exponent; a
file of tables says more about indices. That is kept in the plan's tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from embeddings.plan import ShardingPlan
from embeddings.plan_document import load_plan_document
from embeddings.table import EmbeddingTable
from embeddings.table_files import load_tables
from perfmodel.base.errors import PlanError
from perfmodel.workloads.catalog import Workload
from perfmodel.workloads.dlrm.job import build_plan
from perfmodel.workloads.dlrm.spec import DlrmSpec, EmbeddingSection, Interaction
from topologies import Cluster


@dataclass(frozen=True, slots=True)
class PlacementFiles:
    """Files that say what is placed and where: *tables*, *indices* of them, and the *plan*."""

    tables: str | None = None
    indices: str | None = None
    plan: str | None = None

    def __post_init__(self) -> None:
        if self.indices is not None and self.tables is None:
            raise PlanError("--indices describe the tables of a file; give --tables too.")

    @property
    def is_empty(self) -> bool:
        """Whether the workload alone decides."""
        return self.tables is None and self.plan is None


@dataclass(frozen=True, slots=True, eq=False)
class TabledSpec:
    """A workload, and its tables with all that is known of their indices."""

    spec: DlrmSpec
    tables: tuple[EmbeddingTable, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedWorkload:
    """A workload and the plan that was given for it; None leaves it to the workload."""

    workload: Workload
    plan: ShardingPlan | None = None


def place_workload(workload: Workload, files: PlacementFiles, cluster: Cluster) -> PlacedWorkload:
    """*workload* with the tables and the plan in *files*, for the ranks of *cluster*."""
    if files.is_empty:
        return PlacedWorkload(workload)
    tabled = load_tabled(workload, files)
    if files.plan is None:
        plan = build_plan(
            tabled.spec,
            rank_count=cluster.rank_count,
            ranks_per_host=cluster.ranks_per_host,
            memory_bytes=cluster.device.memory_bytes,
            tables=tabled.tables,
        )
        return PlacedWorkload(tabled.spec, plan)
    plan = load_plan_document(
        files.plan,
        tables=tabled.tables,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
    )
    return PlacedWorkload(tabled.spec, plan)


def load_tabled(workload: Workload, files: PlacementFiles) -> TabledSpec:
    """*workload* with the tables in *files*, or with its own."""
    if not isinstance(workload, DlrmSpec):
        raise PlanError(
            f"{workload.name}: has no embedding tables to place. `perfmodel search` finds "
            "layouts of a Transformer; take a dlrm workload here, or leave --plan and --tables out."
        )
    if files.tables is None:
        return TabledSpec(workload, workload.embedding.tables())
    tables = load_tables(files.tables, indices=files.indices)
    return TabledSpec(_with_tables(workload, tables, files.tables), tables)


def _with_tables(spec: DlrmSpec, tables: tuple[EmbeddingTable, ...], file: str) -> DlrmSpec:
    formats = {table.dtype for table in tables}
    if len(formats) > 1:
        raise PlanError(f"{file}: tables of one model must have one number format.")
    widths = {table.width for table in tables}
    bottom = spec.dense_width
    if spec.dense.interaction is Interaction.DOT and widths != {bottom}:
        raise PlanError(
            f"{file}: dot interaction of {spec.name} needs tables {bottom} wide, as its last "
            f"bottom layer, got {', '.join(map(str, sorted(widths)))}. "
            "Add --set dense.interaction=concat."
        )
    section = EmbeddingSection.model_validate(
        {
            **spec.embedding.model_dump(),
            "rows": tuple(table.rows for table in tables),
            "width": tuple(table.width for table in tables),
            "pooling_factors": tuple(table.pooling_factor for table in tables),
            "zipf_exponents": 0.0,
            "zipf_rows": None,
            "dtype": formats.pop(),
        }
    )
    return spec.model_copy(update={"embedding": section})
