"""Recommendation models as a family: what the product asks of them."""

from __future__ import annotations

from typing import Any, ClassVar

from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.errors import PlanError
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.job import build_dlrm_job, choose_plan
from perfmodel.workloads.dlrm.memory import dlrm_memory
from perfmodel.workloads.dlrm.spec import DlrmSpec, EmbeddingSection
from perfmodel.workloads.family import BuiltWorkload, Family, JobRequest
from perfmodel.workloads.reduction import bucket_defaults


class DlrmFamily(Family[DlrmSpec]):
    """Dense layers and embedding tables, which a plan places."""

    title = "a recommendation model"
    spec_type = DlrmSpec
    has_tables = True
    superseded: ClassVar = {"embedding.rows": ("zipf_exponents", "zipf_rows")}

    def stack_defaults(
        self,
        spec: DlrmSpec,  # noqa: ARG002  other families look at it
        stack: SoftwareStack,
    ) -> dict[str, dict[str, Any]]:
        """The sharder of tables, the format of keys, and the buckets of dense gradients."""
        return {
            "sharding": {"sharder": stack.tables.sharder},
            "embedding": {"index_dtype": stack.tables.key_dtype},
            "training": bucket_defaults(stack),
        }

    def build(self, spec: DlrmSpec, request: JobRequest) -> BuiltWorkload:
        """The job with tables placed by *plan*, or by the sharder of *spec*."""
        plan = choose_plan(
            spec,
            rank_count=request.rank_count,
            stack=request.stack,
            given=request.plan,
            ranks_per_host=request.ranks_per_host,
            memory_bytes=request.memory_bytes,
        )
        return BuiltWorkload(
            build_dlrm_job(spec, plan=plan, stack=request.stack),
            dlrm_memory(spec, rank_count=request.rank_count, plan=plan),
        )

    def tables(self, spec: DlrmSpec) -> tuple[EmbeddingTable, ...]:
        """Those of the section `embedding`."""
        return spec.embedding.tables()

    def with_tables(
        self, spec: DlrmSpec, tables: tuple[EmbeddingTable, ...], *, file: str
    ) -> DlrmSpec:
        """*spec* with *tables* of *file* instead of its own.

        The section of a workload knows rows, widths and pooling, a file of tables more about
        indices: that stays in the tables of the plan. The sharder counts as stated.
        """
        formats = tuple(table.dtype for table in tables)
        embedding = {
            **spec.embedding.model_dump(),
            "rows": tuple(table.rows for table in tables),
            "width": tuple(table.width for table in tables),
            "pooling_factors": tuple(table.pooling_factor for table in tables),
            "pooling_deviations": tuple(table.pooling_deviation for table in tables),
            "pooled": tuple(table.is_pooled for table in tables),
            "features": tuple(table.features for table in tables),
            "cached_ratios": tuple(
                1.0 if table.memory is TableMemory.DEVICE else table.cached_ratio
                for table in tables
            ),
            "sharding_types": tuple("+".join(table.sharding_types) for table in tables),
            "zipf_exponents": 0.0,
            "zipf_rows": None,
            "dtype": formats if len(set(formats)) > 1 else formats[0],
        }
        sharding = spec.sharding.model_copy(update={"sharder": spec.sharding.sharder})
        section = EmbeddingSection.model_validate(embedding)
        dense = f"The tables are those of {file}, the dense part is that of {spec.name}."
        found = spec.model_copy(
            update={
                "embedding": section,
                "sharding": sharding,
                "assumed": (*spec.assumed, dense),
            }
        )
        try:
            return found.check_interaction()
        except ValueError as error:
            raise PlanError(
                f"{file}, tables of {spec.name}: {error}. Change them, or add --set "
                "dense.interaction=concat."
            ) from None
