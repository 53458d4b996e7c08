"""Family: what the product asks of a family of models, such as recommendation models.

A family is a folder with a specification and one object of this class; `families` is the table of
them. Nothing else knows which families there are: what only some have, tables to place or parallel
layouts to choose, is asked by that name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Generic, TypeVar

from embeddings.plan import ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError
from perfmodel.graph.job import JobGraph, RankMemory
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.fields import Workload
from topologies import Device

Spec = TypeVar("Spec", bound=Workload)

DEFAULT_MEMORY_BYTES = 80 * 10**9
"""Memory of a GPU where none is named."""


@dataclass(frozen=True, slots=True, eq=False)
class Extrapolation:
    """A *larger* job of the same iteration; the whole is *steps* times its difference further."""

    larger: JobGraph
    steps: Fraction
    micro_batches: int

    def extrapolate(self, small: int, large: int) -> int:
        """A quantity of the whole iteration, from those of the smaller and the larger job."""
        return round(small + self.steps * (large - small))


@dataclass(frozen=True, slots=True, eq=False)
class BuiltWorkload:
    """A job and the peak memory of its ranks; with a *extrapolation* the job is the smaller one."""

    job: JobGraph
    memory_of_rank: tuple[RankMemory, ...]
    extrapolation: Extrapolation | None = None


@dataclass(frozen=True, slots=True)
class TakenDefault:
    """A *setting* that nobody stated, and the *value* that *stack* configures for such runs."""

    setting: str
    value: Any
    stack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFlops:
    """Operations of one iteration over all ranks; those that are recomputed are hardware's only.

    GEMMs are in *dtype*, whose peak is the yardstick.
    """

    model_flops: int
    hardware_flops: int
    tokens: int
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """The job that is asked of a workload: on which ranks, issued by which stack.

    *memory_bytes* is what a GPU has: a layout that the workload leaves open is chosen to fit.
    *plan* places tables. *is_whole* builds every micro-batch.
    """

    rank_count: int
    ranks_per_host: int
    stack: SoftwareStack
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    plan: ShardingPlan | None = None
    is_whole: bool = False


class Family(ABC, Generic[Spec]):
    """A family of models whose workloads are read as *spec_type*; sentences call it *title*.

    *superseded* are fields about another one, which lose what the file says when the user states
    that one anew; of two *alternatives* the user's replaces the file's. With *has_tables* its
    specification extends `DlrmSpec` and a plan places its tables; with *has_layouts* it extends
    `TransformerSpec` and what is open of its layout is chosen.
    """

    title: str
    spec_type: type[Spec]
    has_tables: bool = False
    has_layouts: bool = False
    superseded: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    alternatives: ClassVar[Mapping[str, str]] = {}

    def complete(self, content: dict[str, Any], rank_count: int) -> dict[str, Any]:  # noqa: ARG002  a default
        """*content* of a file with what depends on the number of ranks."""
        return content

    def default_stack(self, spec: Spec) -> str:
        """The stack of a *spec* that names none."""
        return spec.stack

    @abstractmethod
    def stack_defaults(self, spec: Spec, stack: SoftwareStack) -> dict[str, dict[str, Any]]:
        """By section, the fields that *stack* sets where *spec* leaves them open."""

    def list_defaults(
        self,
        spec: Spec,  # noqa: ARG002  a default
        stack: SoftwareStack,  # noqa: ARG002
        device: Device | None,  # noqa: ARG002
    ) -> tuple[TakenDefault, ...]:
        """The fields that *spec* leaves open and the file of *stack* lists for such runs."""
        return ()

    @abstractmethod
    def build(self, spec: Spec, request: JobRequest) -> BuiltWorkload:
        """One iteration of *spec*, filled in by the stack already, and its memory."""

    def count_flops(self, spec: Spec) -> IterationFlops | None:
        """What an iteration of *spec* computes; None if that is no yardstick for the family."""

    def count_parameters(self, spec: Spec) -> int | None:
        """Parameters of the model; None where they are not what it is known by."""

    def tables(self, spec: Spec) -> tuple[EmbeddingTable, ...]:
        """The tables that plans place; an error for a family without."""
        raise PlanError(
            f"{spec.name}: has no embedding tables to place. `perfmodel search` finds "
            "layouts of a Transformer; use a dlrm workload here, or leave --plan and --tables out."
        )

    def with_tables(self, spec: Spec, tables: tuple[EmbeddingTable, ...], *, file: str) -> Spec:
        """*spec* with *tables* of *file* instead of its own."""
        raise PlanError(
            f"{file}: has {len(tables)} tables, but {spec.name} has none to replace. "
            "Leave the file out, or use a dlrm workload."
        )
