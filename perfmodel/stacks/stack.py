"""Software stacks: how a framework runs a model, and what each operator costs the host.

A stack is data (`catalog/*.yaml`): what it fuses, overlaps, captures, copies and waits for. Figures
of a chip are not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any

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
from topologies.device import Architecture


class Residency(Enum):
    """Where the operands are when a GEMM starts.

    COLD is training: weights come from memory, activations from the cache if they fit. ROTATING is
    a benchmark that rotates over up to five copies of the weights, enough to fill the cache; if all
    copies fit, weights are hot, and time jumps with size. REPEATED runs on the same operands.
    """

    COLD = "cold"
    ROTATING = "rotating"
    REPEATED = "repeated"


KERNEL_WORDS = (
    "accumulate", "adagrad", "adam", "adamw", "add", "batch_norm", "bce_loss", "bias_add",
    "bias_dropout_add", "bias_gelu", "binary_cross_entropy", "cast", "concat", "copy",
    "cross_entropy", "div", "dropout", "dropout_residual", "embedding", "fill", "gather", "geglu",
    "gelu", "gradient_accumulation", "gradient_clip", "gradient_norm", "index", "interaction",
    "interaction_tril", "l2_norm", "lamb", "layer_norm", "log_softmax", "mask", "master_weights",
    "momentum", "mse_loss", "mul", "pow", "prepare_keys", "rearrange_vectors", "reduce_sum",
    "reduction", "relu", "residual_add", "rms_norm", "rope", "rotary", "scale", "scale_mask",
    "scale_mask_softmax", "sgd", "sigmoid", "silu", "slice", "softmax", "split", "sub", "sum",
    "swiglu", "tanh", "transpose", "zero",
)  # fmt: skip
"""Memory-bound kernels of workloads; the suffix `_backward` names the kernel of that pass."""


class Fusion(Enum):
    """Chains of operators that a stack may run as one kernel.

    LOOKUP_CAST: a lookup writes rows in the format of the exchange. WEIGHT_CAST: the optimizer
    writes weights in the format of the GEMMs, and gradients stay in it. GRADIENT_COPY: gradients
    are written directly to the buffer they are reduced in. GRADIENT_SUM: the GEMM for a weight
    gradient adds to that of earlier micro-batches. BIAS_ACTIVATION: GEMMs include bias and
    activation, and the gradients of both; ACTIVATION_FORWARD: forward only, and one backward
    kernel does both.
    """

    NORM = "norm"
    BIAS = "bias"
    GELU = "gelu"
    BIAS_ACTIVATION = "bias_activation"
    ACTIVATION_FORWARD = "activation_forward"
    DROPOUT_RESIDUAL = "dropout_residual"
    SWIGLU = "swiglu"
    ROTARY = "rotary"
    SOFTMAX_MASK = "softmax_mask"
    CROSS_ENTROPY = "cross_entropy"
    ELEMENTWISE = "elementwise"
    INTERACTION = "interaction"
    LOOKUP_CAST = "lookup_cast"
    WEIGHT_CAST = "weight_cast"
    GRADIENT_COPY = "gradient_copy"
    GRADIENT_SUM = "gradient_sum"


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


class FrameworkBehaviour(Enum):
    """What a framework or its training scripts do by default.

    Costs that a script could avoid:

    * BLOCKING_COPIES: every copy to or from the device blocks the host until it is done, and the
      loss is copied in each iteration.
    * UNFUSED_BIAS: a layer copies its bias before the GEMM and sums its gradient in an operator of
      its own.
    * ZEROED_GRADIENTS: gradients are added to zeros.
    * HOST_TRIANGLE: the indices of the triangle of dot products come from the host, and the
      backward pass is an index_add.
    * LONE_BOTTOM: the bottom layers run on rank 0 alone, for the whole batch, and their output is
      sent with the pooled vectors.
    * LEAN_EXCHANGES: on several hosts exchanges and reductions are kernels of the framework, not of
      a collective library.
    * UNRELAYED: GPUs without NVLink between them exchange through the host, even if other GPUs
      could forward.
    * CASTS_WEIGHTS: an optimizer with state leaves weights in fp32, and one kernel casts all of
      them for the GEMMs.

    Defaults that a workload can override:

    * READS_LOSS: the host waits for every iteration.
    * SHORT_GRADIENTS: gradients are kept and reduced in the format they are computed in, not in
      fp32; FP16_GRADIENTS: only in fp16.
    * ONE_REDUCTION: gradients are reduced in one piece.
    * WEIGHT_BUCKETS: the size of the weights fills a bucket, whatever format gradients have.
    * DROPOUT: models without a gate are trained with dropout.
    * UNBIASED: layers have no biases.
    * STAGES_BY_COST: a pipeline stage takes layers until it exceeds its share of the FLOPs.
    * QKV_ADAPTERS: only the projections of queries, keys and values have adapters.
    * ALTERNATE_RECOMPUTE: every second layer is recomputed.
    * ALL_LOGITS: a masked language model computes the logits of all tokens.
    * TOKENS_ONCE: a token is sent once to each rank that has experts for it, and once to each other
      host, however many of its experts are there.
    * COPIED_GATHERS: gathered weights are copied out of the buffer that they arrived in.
    """

    BLOCKING_COPIES = "blocking_copies"
    UNFUSED_BIAS = "unfused_bias"
    ZEROED_GRADIENTS = "zeroed_gradients"
    HOST_TRIANGLE = "host_triangle"
    LONE_BOTTOM = "lone_bottom"
    LEAN_EXCHANGES = "lean_exchanges"
    UNRELAYED = "unrelayed"
    CASTS_WEIGHTS = "casts_weights"
    READS_LOSS = "reads_loss"
    SHORT_GRADIENTS = "short_gradients"
    FP16_GRADIENTS = "fp16_gradients"
    ONE_REDUCTION = "one_reduction"
    WEIGHT_BUCKETS = "weight_buckets"
    DROPOUT = "dropout"
    UNBIASED = "unbiased"
    STAGES_BY_COST = "stages_by_cost"
    QKV_ADAPTERS = "qkv_adapters"
    ALTERNATE_RECOMPUTE = "alternate_recompute"
    ALL_LOGITS = "all_logits"
    TOKENS_ONCE = "tokens_once"
    COPIED_GATHERS = "copied_gathers"


PLAIN_GEMM = "plain_gemm"
"""GEMMs outside tensor cores, as a family of kernels with a time ratio of its own."""


class Family(Enum):
    """Workloads that a stack can run."""

    TRANSFORMER = "transformer"
    DLRM = "dlrm"


class Execution(Enum):
    """How kernels get to the device."""

    EAGER = "eager"
    COMPILED = "compiled"
    CUDA_GRAPH = "cuda_graph"


class OptimizerKernels(Enum):
    """How the optimizer runs over parameters: one by one, in lists, or in one kernel."""

    PLAIN = "plain"
    FOREACH = "foreach"
    FUSED = "fused"


class Overlap(Enum):
    """What a stack runs at the same time.

    TENSOR_GRADIENT: the reduction of an input gradient over a tensor group overlaps with the GEMM
    for the weight gradient. TENSOR_EXCHANGE: all communication of a tensor group overlaps, in
    pieces. SHARDED_LAYERS: reductions and gathers overlap for weights that are gathered layer by
    layer, even if others do not. INDEX_EXCHANGE: the exchange of the next batch's indices overlaps
    with all other communication. EXCHANGE_AND_REDUCTION: reductions of gradients overlap with
    exchanges of pooled vectors.
    """

    GRADIENT_REDUCTION = "gradient_reduction"
    PARAMETER_GATHER = "parameter_gather"
    PIPELINE_TRANSFER = "pipeline_transfer"
    SHARDED_LAYERS = "sharded_layers"
    TENSOR_GRADIENT = "tensor_gradient"
    TENSOR_EXCHANGE = "tensor_exchange"
    EMBEDDING_EXCHANGE = "embedding_exchange"
    INDEX_EXCHANGE = "index_exchange"
    EXCHANGE_AND_REDUCTION = "exchange_and_reduction"
    INPUT = "input"


def _state_parts(default: Mapping[HostPart, float]) -> Mapping[HostPart, float]:
    for part in (HostPart.BEFORE_LAUNCH, HostPart.AFTER_LAUNCH, HostPart.BETWEEN_LAUNCHES):
        if part not in default:
            raise ValueError(f"must state {part.name.lower()}")
    return default


def _state_default(kernels: Mapping[str, str]) -> Mapping[str, str]:
    if "default" not in kernels:
        raise ValueError("must name a `default` kernel")
    return kernels


def _by_canonical_name(operators: Mapping[str, Any]) -> Mapping[str, Any]:
    return {canonical_operator(name): parts for name, parts in operators.items()}


def _of_every_chip(ratio: Any) -> Any:
    return ratio if isinstance(ratio, Mapping) else {"default": ratio}


_PartWord = Annotated[str, OneOf(tuple(part.name.lower() for part in HostPart))]
_Part = Annotated[HostPart, ReadAs(_PartWord, lambda word: HostPart[word.upper()])]
_Parts = Mapping[_Part, Duration]
_Chip = Annotated[str, OneOf(("default", *(one.value for one in Architecture)))]
_Ratios = Annotated[Mapping[str, float], ReadAs(Mapping[_Chip, Factor] | Factor, _of_every_chip)]
_Kernel = Annotated[str, OneOf(KERNELS)]
_KernelFamily = Annotated[
    str,
    OneOf(("attention", "communication", "copy", "embedding", "gemm", "memory", PLAIN_GEMM)),
]
_MemoryKernel = Annotated[
    str, OneOf((*KERNEL_WORDS, *(f"{word}_backward" for word in KERNEL_WORDS)))
]


@dataclass(frozen=True, slots=True)
class HostTime:
    """A host duration and whether the stack states it or assumes it."""

    duration_ns: float
    is_assumed: bool


@dataclass(frozen=True, slots=True)
class HostTimes(Form):
    """Host time of one stack: by part, by operator, with a default for unknown operators.

    *iteration_ns* is spent at the start of every iteration, before anything is launched.
    """

    between_operators_ns: Duration
    launch_ns: Duration
    wait_ns: Duration
    launch_latency_ns: Duration
    default: Annotated[_Parts, AfterValidator(_state_parts)]
    operators: Annotated[Mapping[str, _Parts], AfterValidator(_by_canonical_name)] = field(
        default_factory=dict
    )
    iteration_ns: Duration = 0.0

    def faster(self, ratio: float) -> HostTimes:
        """The same host, *ratio* times as fast; what the device adds to a launch stays."""
        return HostTimes(
            between_operators_ns=self.between_operators_ns / ratio,
            launch_ns=self.launch_ns / ratio,
            wait_ns=self.wait_ns / ratio,
            launch_latency_ns=self.launch_latency_ns,
            operators={name: _divided(parts, ratio) for name, parts in self.operators.items()},
            default=_divided(self.default, ratio),
            iteration_ns=self.iteration_ns / ratio,
        )

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
class Loader(Form):
    """What loading takes: for a batch, and more for each of its samples, over all ranks."""

    batch_ns: Duration = 0.0
    sample_ns: Duration = 0.0

    def load_ns(self, samples: int) -> float:
        """What a batch of *samples* takes."""
        return self.batch_ns + self.sample_ns * samples


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
    and their gradients are copied *vector_passes* more times.
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

    def kernel_for(self, optimizer: str) -> str:
        """The lookup that is taken; an optimizer with state needs sorted gradients."""
        return self.lookup_kernel if optimizer == "sgd" else self.sorted_kernel


@dataclass(frozen=True, slots=True)
class Evidence(Form):
    """The runs that a stack was compared with on a generation of GPUs.

    *spread* is the standard deviation of the logarithm of predicted over measured, with each source
    left out of the fit; *hosts* is the largest number of hosts.
    """

    rows: Count
    sources: Count
    hosts: Count
    spread: Number


@dataclass(frozen=True, slots=True)
class Claim(Form):
    """A framework that a stack is for: all of it, releases *since* and *before*, a *placement*."""

    framework: Words
    since: Annotated[Words | None, Field(alias="from")] = None
    before: Words | None = None
    placement: Words | None = None

    @property
    def has_releases(self) -> bool:
        """Whether only some releases are meant."""
        return self.since is not None or self.before is not None

    def covers(self, release: str, placement: str) -> bool:
        """Whether runs of *release* that place tables as *placement* says are meant."""
        if self.placement is not None and self.placement != placement:
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

    *family* is what it can run, None for both. *attention_kernels* maps an architecture (or
    `default`) to a kernel name. *loads_long* means that GEMMs keep the chip busy enough to lower
    its clocks. *collective_algorithm* overrides NCCL's own choice. *kernel_time_ratio* maps a
    family of kernels and an architecture to how much longer they take in this framework than alone
    on the chip, as fitted to runs. *kernel_operations* are instructions per byte of traffic, by
    name of a memory-bound kernel that instructions limit and not the memory. *evidence* is by
    architecture. *stands_for* lists frameworks that run with this stack. *extends* names the stack
    that it inherits from, and *host_speed_ratio* is how much faster its host is than that one's.
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
    family: Family | None = None
    matmul_dtypes: Mapping[NumberFormat, NumberFormat] = field(default_factory=dict)
    loads_long: Switch = False
    collective_algorithm: CollectiveAlgorithm | None = None
    kernel_time_ratio: Mapping[_KernelFamily, _Ratios] = field(default_factory=dict)
    kernel_operations: Mapping[_MemoryKernel, Number] = field(default_factory=dict)
    residency: Residency = Residency.COLD
    habits: frozenset[FrameworkBehaviour] = frozenset()
    tables: TableHandling = TableHandling()
    loader: Loader = Loader()
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
