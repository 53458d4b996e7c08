"""Software stacks: how a framework runs a model, and what each operator costs the host.

A stack is data (`catalog/*.yaml`): what it fuses, overlaps, captures, copies and waits for. Figures
of a chip are not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator, Field

from collectives.collective import CollectiveAlgorithm
from embeddings.sharders import DEFAULT_SHARDER, HYBRID_SHARDERS, SHARDERS
from embeddings.table import KERNELS
from perfmodel.base.dtypes import DType
from perfmodel.base.fields import (
    Count,
    Duration,
    Factor,
    Line,
    NaturalNumber,
    Number,
    NumberFormat,
    OneOf,
    ReadAs,
    Size,
    Switch,
    Words,
)
from perfmodel.base.forms import Form
from perfmodel.graph.ops import HostPart
from perfmodel.stacks.capabilities import (
    KERNEL_WORDS,
    Dispatcher,
    Execution,
    FrameworkBehaviour,
    Fusion,
    OptimizerKernels,
    Overlap,
    Residency,
    RowSums,
)
from perfmodel.stacks.optimizers import load_optimizers
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE, ScheduleName
from topologies import cpu_speed
from topologies.device import list_generations

PLAIN_GEMM = "plain_gemm"
"""GEMMs outside tensor cores, as a family of kernels with a time ratio of its own."""
_INCLUDED = {
    Fusion.ACTIVATION_FORWARD: (Fusion.BIAS_ACTIVATION,),
    Fusion.BIAS: (Fusion.BIAS_ACTIVATION, Fusion.ELEMENTWISE),
    Fusion.GELU: (Fusion.BIAS_ACTIVATION, Fusion.ELEMENTWISE),
    Fusion.NORM: (Fusion.ELEMENTWISE,),
    Fusion.DROPOUT_RESIDUAL: (Fusion.ELEMENTWISE,),
    Fusion.SWIGLU: (Fusion.ELEMENTWISE,),
    Fusion.ROTARY: (Fusion.ELEMENTWISE,),
    Fusion.SOFTMAX_MASK: (Fusion.ELEMENTWISE,),
}
"""Fusions that a wider one brings along."""


COMMON_CPU = "EPYC 7763"
"""What hosts have whose CPU nobody stated."""


def _state_parts(default: Mapping[HostPart, float]) -> Mapping[HostPart, float]:
    for part in (HostPart.BEFORE_LAUNCH, HostPart.AFTER_LAUNCH, HostPart.BETWEEN_LAUNCHES):
        if part not in default:
            raise ValueError(f"must state {part.name.lower()}")
    return default


def _state_default(kernels: Mapping[str, str]) -> Mapping[str, str]:
    if "default" not in kernels:
        raise ValueError("must name a `default` kernel")
    return kernels


_PartWord = Annotated[str, OneOf(tuple(part.name.lower() for part in HostPart))]
_Part = Annotated[HostPart, ReadAs(_PartWord, lambda word: HostPart[word.upper()])]
_Parts = Mapping[_Part, Duration]


def _check_chip(word: str) -> str:
    """Refuse a misspelt generation; one that the catalog does not have is a user's own."""
    near = get_close_matches(word, ("default", *list_generations()), n=1, cutoff=0.7)
    if near and near[0] != word:
        raise ValueError(f"must be a generation of GPUs; did you mean {near[0]}?")
    return word


_Chip = Annotated[str, AfterValidator(_check_chip)]
KINDS_OF_RUNS = ("any", "dense", "experts", "adapters")


def _check_scope(words: str) -> str:
    """Refuse a misspelt kind of runs or generation, alone or a kind `on` a chip."""
    kind, on, chip = words.partition(" on ")
    known = KINDS_OF_RUNS if on else (*KINDS_OF_RUNS, *list_generations())
    near = get_close_matches(kind, known, n=1, cutoff=0 if on else 0.7)
    if near and near[0] != kind:
        raise ValueError(f"must be a kind of runs or a chip; did you mean {near[0]}?")
    if on:
        _check_chip(chip)
    return words


_Scope = Annotated[str, AfterValidator(_check_scope)]
_Ratios = Annotated[
    Mapping[str, float],
    ReadAs(
        Mapping[_Chip, Factor] | Factor,
        lambda ratio: ratio if isinstance(ratio, Mapping) else {"default": ratio},
    ),
]
_Operators = Annotated[
    Mapping[str, _Parts],
    AfterValidator(lambda parts: {canonical_operator(name): own for name, own in parts.items()}),
]
_Kernel = Annotated[str, OneOf(KERNELS)]
_KernelFamily = Annotated[
    str,
    OneOf(("attention", "communication", "copy", "embedding", "gemm", "memory", PLAIN_GEMM)),
]


def kernel_words() -> tuple[str, ...]:
    """Memory-bound kernels of workloads, those of optimizers included."""
    return tuple(sorted((*KERNEL_WORDS, *load_optimizers())))


def _words_of_passes() -> tuple[str, ...]:
    words = kernel_words()
    return (*words, *(f"{word}_backward" for word in words))


_MemoryKernel = Annotated[str, OneOf(_words_of_passes)]


def _check_cpu(cpu: str) -> str:
    if cpu_speed(cpu) is None:
        raise ValueError("must be a CPU of topologies/cpus.yaml")
    return cpu


@dataclass(frozen=True, slots=True)
class HostTime:
    """A host duration and whether the stack states it or assumes it."""

    duration_ns: float
    is_assumed: bool


@dataclass(frozen=True, slots=True)
class HostTimes(Form):
    """Host time of one stack: by part, by operator, with a default for unknown operators.

    *iteration_ns* is spent at the start of every iteration, before anything is launched, and
    *further_rank_ns* more for each further rank, where one process drives all ranks of a host. They
    hold on hosts with *cpu*; without one, on any.
    """

    between_operators_ns: Duration
    launch_ns: Duration
    wait_ns: Duration
    launch_latency_ns: Duration
    default: Annotated[_Parts, AfterValidator(_state_parts)]
    operators: _Operators = field(default_factory=dict)
    iteration_ns: Duration = 0.0
    further_rank_ns: Duration = 0.0
    cpu: Annotated[Line, AfterValidator(_check_cpu)] = ""

    def faster(self, ratio: float) -> HostTimes:
        """The same host, *ratio* times as fast; what the device adds to a launch stays."""
        parts = ("between_operators_ns", "launch_ns", "wait_ns", "iteration_ns", "further_rank_ns")
        return replace(
            self,
            **{name: getattr(self, name) / ratio for name in parts},
            operators={name: _divided(parts, ratio) for name, parts in self.operators.items()},
            default=_divided(self.default, ratio),
        )

    def begin_ns(self, ranks_per_host: int) -> float:
        """What an iteration takes before anything is launched, on hosts of so many ranks."""
        return self.iteration_ns + (ranks_per_host - 1) * self.further_rank_ns

    def time(self, operator: str, part: HostPart) -> HostTime:
        """What *part* of *operator* takes."""
        fixed_ns = {
            HostPart.BETWEEN_OPERATORS: self.between_operators_ns,
            HostPart.LAUNCH: self.launch_ns,
            HostPart.WAIT: self.wait_ns,
        }
        stated = self.operators.get(canonical_operator(operator), {})
        if part in stated:
            return HostTime(stated[part], is_assumed=False)
        if part in fixed_ns:
            return HostTime(fixed_ns[part], is_assumed=False)
        return HostTime(self.default[part], is_assumed=True)


def _divided(parts: Mapping[HostPart, float], ratio: float) -> dict[HostPart, float]:
    return {part: duration_ns / ratio for part, duration_ns in parts.items()}


@dataclass(frozen=True, slots=True)
class Compiled(Form):
    """What compiling changes: further fusions, and a host that is so much faster."""

    fusions: frozenset[Fusion] = frozenset()
    host_speed_ratio: Annotated[Number, Field(ge=0.01)] = 1.0


@dataclass(frozen=True, slots=True)
class TableHandling(Form):
    """How a stack treats embedding tables.

    *lookup_kernel* is the implementation of the fused lookup; only SGD can use one that adds
    gradients in place, other optimizers use *sorted_kernel*. Every rank spends *key_ns* on every
    key of the whole batch before the lookup. With *updates_all_rows* every rank updates all rows of
    all tables and their optimizer state, not only those of the batch. *sharder* and *key_dtype* are
    defaults for workloads. A rank that *has_all_keys* of the batch from its own reader receives no
    keys. Before the exchange each key costs *key_traffic_bytes* of memory traffic; received vectors
    and their gradients are copied *vector_passes* more times. *row_sums* says how partial sums of
    row-wise tables are added up.
    """

    lookup_kernel: _Kernel = "fbgemm"
    sorted_kernel: _Kernel = "fbgemm"
    key_ns: Annotated[Duration, Field(alias="key_time")] = 0.0
    updates_all_rows: Switch = False
    sharder: Annotated[str, OneOf((*SHARDERS, *HYBRID_SHARDERS))] = DEFAULT_SHARDER
    key_dtype: NumberFormat = DType.INT64
    has_all_keys: Switch = False
    key_traffic_bytes: Size = 0
    vector_passes: Number = 0.0
    row_sums: RowSums = RowSums.REDUCE_SCATTER

    def kernel_for(self, optimizer: str) -> str:
        """The lookup that is taken; an optimizer with state needs sorted gradients."""
        return self.lookup_kernel if optimizer == "sgd" else self.sorted_kernel


@dataclass(frozen=True, slots=True)
class Evidence(Form):
    """The runs that a stack was compared with on a generation of GPUs.

    *spread* is the standard deviation of the logarithm of predicted over measured, with each source
    left out of the fit; *hosts* is the largest number of hosts, *samples* the smallest batch of a
    rank, 0 where it does not count.
    """

    rows: Count
    sources: Count
    hosts: Count
    spread: Number
    samples: NaturalNumber = 0


@dataclass(frozen=True, slots=True)
class Claim(Form):
    """A framework that a stack is for: all of it, releases *since* and *before*, a *placement*.

    With *generations*, runs on chips of these architectures only.
    """

    framework: Words
    since: Annotated[Words | None, Field(alias="from")] = None
    before: Words | None = None
    placement: Words | None = None
    generations: tuple[Words, ...] = ()

    @property
    def has_releases(self) -> bool:
        """Whether only some releases are meant."""
        return self.since is not None or self.before is not None

    def covers(self, release: str, placement: str, generation: str = "") -> bool:
        """Whether runs of *release* that place tables so, on chips of *generation*, are meant."""
        if self.placement is not None and self.placement != placement:
            return False
        if self.generations and generation not in self.generations:
            return False
        if not self.has_releases:
            return True
        number = _numbers(release)
        is_late = self.since is None or number >= _numbers(self.since)
        is_early = self.before is None or number < _numbers(self.before)
        return bool(number) and is_late and is_early


def _numbers(release: str) -> tuple[int, ...]:
    """The numbers in a release, in order: `torch 2.1` is 2, 1 and `2022-01-10` is 2022, 1, 10."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


@dataclass(frozen=True, slots=True)
class SoftwareStack(Form):
    """How a framework runs a model: kernels, fusions, overlaps, default behaviour and host times.

    *family* is the family of models that it can run, None for all. *attention_kernels* maps an
    architecture (or `default`) to a kernel name. *collective_algorithm* overrides NCCL's own
    choice. *dispatchers* are those that it can take tokens to experts with; the first is its
    default. *schedules* are the orders of micro-batches that its pipelines can run. *defaults* are
    the values of a workload's fields (`parallel.etp`) that it configures where nothing is stated,
    by kind of run and chip. *kernel_time_ratio* maps a family of kernels and an architecture to how
    much longer they take in this framework than alone on the chip, as fitted to runs.
    *kernel_operations* are instructions per byte of traffic, by name of a memory-bound kernel that
    instructions limit and not the memory. *evidence* is by architecture. *stands_for* lists
    frameworks that run with this stack. *extends* names the stack that it inherits from, and
    *host_speed_ratio* is how much faster its host is than that one's.
    """

    name: Line
    description: Line
    source: Line
    execution: Execution
    optimizer_kernels: OptimizerKernels
    attention_kernels: Annotated[Mapping[_Chip, Line], AfterValidator(_state_default)]
    host: HostTimes
    fusions: frozenset[Fusion] = frozenset()
    overlaps: frozenset[Overlap] = frozenset()
    family: str | None = None
    matmul_dtypes: Mapping[NumberFormat, NumberFormat] = field(default_factory=dict)
    collective_algorithm: CollectiveAlgorithm | None = None
    kernel_time_ratio: Mapping[_KernelFamily, _Ratios] = field(default_factory=dict)
    kernel_operations: Mapping[_MemoryKernel, Number] = field(default_factory=dict)
    residency: Residency = Residency.COLD
    habits: frozenset[FrameworkBehaviour] = frozenset()
    dispatchers: tuple[Dispatcher, ...] = (Dispatcher.ALL_TO_ALL,)
    schedules: tuple[ScheduleName, ...] = (DEFAULT_SCHEDULE,)
    defaults: Mapping[Line, Mapping[_Scope, bool | int | float | str]] = field(default_factory=dict)
    tables: TableHandling = TableHandling()
    compiled: Compiled = Compiled()
    evidence: Mapping[_Chip, Evidence] = field(default_factory=dict)
    stands_for: tuple[Claim, ...] = ()
    extends: Line = ""
    host_speed_ratio: Factor = 1.0
    date: Line = ""
    licence: Line = ""
    hardware: Line = ""

    def attention_kernel(self, architecture: str) -> str:
        """The attention kernel this stack takes on *architecture*."""
        return self.attention_kernels.get(architecture, self.attention_kernels["default"])

    def time_ratio(self, family: str, architecture: str) -> float:
        """How much longer kernels of *family* take in this stack than alone on *architecture*."""
        if family == PLAIN_GEMM and family not in self.kernel_time_ratio:
            family = "gemm"
        of_family = self.kernel_time_ratio.get(family, {})
        return of_family.get(architecture, of_family.get("default", 1.0))

    def defaults_of(self, kind: str, chips: Sequence[str]) -> dict[str, bool | int | float | str]:
        """What runs of *kind* on *chips*, a device and its generation, configure by default.

        The most specific entry of a field counts: `experts on gb200`, `gb200`, `experts`, `any`.
        """
        scopes = (*(f"{kind} on {chip}" for chip in chips), *chips, kind, "any")
        return {
            setting: values[next(scope for scope in scopes if scope in values)]
            for setting, values in self.defaults.items()
            if not values.keys().isdisjoint(scopes)
        }

    def fuses(self, fusion: Fusion) -> bool:
        """Whether this stack runs *fusion*, or a wider one that includes it, as one kernel."""
        return not self.fusions.isdisjoint((fusion, *_INCLUDED.get(fusion, ())))

    @property
    def unfuses_attention(self) -> bool:
        """Whether attention is GEMMs and passes over the scores on every device.

        Without launches (on a CPU) attention is measured as one call, so it stays one.
        """
        return self.host.launch_ns > 0 and set(self.attention_kernels.values()) == {"unfused"}

    def overlaps_with_compute(self, overlap: Overlap) -> bool:
        """Whether *overlap* runs at the same time as compute."""
        return overlap in self.overlaps

    def has(self, habit: FrameworkBehaviour) -> bool:
        """Whether the framework behaves so by default."""
        return habit in self.habits

    @property
    def sums_bias_gradients(self) -> bool:
        """Whether the gradient of a bias is summed in a kernel of its own."""
        return self.fusions.isdisjoint(
            (Fusion.BIAS_ACTIVATION, Fusion.ACTIVATION_FORWARD, Fusion.ELEMENTWISE)
        )

    def on_cpu(self, cpu: str | None) -> SoftwareStack:
        """This stack on hosts with *cpu*: their threads are as much faster as the CPU is.

        One that is not known counts as `COMMON_CPU`.
        """
        cpu = cpu if cpu and cpu_speed(cpu) else COMMON_CPU
        speed, was = cpu_speed(cpu), cpu_speed(self.host.cpu)
        if not speed or not was or cpu == self.host.cpu:
            return self
        return replace(self, host=replace(self.host.faster(speed / was), cpu=cpu))

    def with_compiling(self) -> SoftwareStack:
        """This stack with the model compiled, where it is not already."""
        if self.execution is not Execution.EAGER:
            return self
        return replace(
            self,
            execution=Execution.COMPILED,
            fusions=self.fusions | self.compiled.fusions,
            host=self.host.faster(self.compiled.host_speed_ratio),
        )


def canonical_operator(operator: str) -> str:
    """*operator* without namespace and version digit: `aten::linear` is `linear`.

    Autograd names end in a digit that counts overloads (`AddmmBackward0`).
    """
    word = operator.rpartition("::")[2]
    if word.rstrip("0123456789").endswith("Backward"):
        word = word.rstrip("0123456789")
    return word
