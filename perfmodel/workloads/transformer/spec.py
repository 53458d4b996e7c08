"""TransformerSpec: a Transformer, how it is trained and how it is spread over ranks.

`batch` counts sequences over all ranks; a file may state `replica_batch` instead, those of a
data-parallel rank. What is left out under `parallel` is chosen by the number of ranks; see
`layout_choice`.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import model_validator

from perfmodel.base.dtypes import DType
from perfmodel.base.fields import (
    Count,
    Degree,
    NaturalNumber,
    Number,
    NumberFormat,
    Ratio,
    Size,
    Switch,
    Width,
)
from perfmodel.stacks.capabilities import Dispatcher
from perfmodel.stacks.optimizers import OptimizerName, load_optimizers
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE, ScheduleName
from perfmodel.workloads.fields import SpecSection, Workload
from perfmodel.workloads.transformer.model import ModelSection
from perfmodel.workloads.transformer.words import (
    AdapterPlaces,
    AttentionKernel,
    ContextKind,
    CudaGraph,
    DataOverlap,
    Head,
    Master,
    Recompute,
    RecomputedPart,
    Routing,
    SavedOutput,
    StageSplit,
    StateSharding,
    TensorOverlap,
)

_FP32_BYTES = DType.FP32.size_bytes


class ParallelSection(SpecSection):
    """How the job is spread over ranks; what is left out is chosen.

    *cp* ranks share every sequence; *ep* ranks divide the experts, each spread over *etp* ranks.
    *shard_group* is how many data-parallel ranks divide what *sharding* says: left out, all of
    them, for `hsdp` those of a host. With *expert_overlap* tokens are exchanged while another
    micro-batch computes. *dispatcher* and overlaps left out are those of the software stack.
    *schedule* is the order in which pipeline stages take micro-batches. *stage_layers* states the
    layers of each virtual stage in the order of the pipeline; left out, *stages* says how they are
    split. Layers that predict further tokens are on the last one and not counted.
    """

    tp: Degree | None = None
    cp: Degree = 1
    cp_kind: ContextKind = ContextKind.RING
    ep: Degree = 1
    etp: Degree = 1
    pp: Degree | None = None
    dp: Degree | None = None
    micro_batch: Count | None = None
    sequence_parallel: Switch | None = None
    sharding: StateSharding = StateSharding.NONE
    shard_group: Degree | None = None
    interleaving: Degree = 1
    schedule: ScheduleName = DEFAULT_SCHEDULE
    stages: StageSplit = StageSplit.EQUAL
    stage_layers: tuple[NaturalNumber, ...] | None = None
    tp_overlap: TensorOverlap | None = None
    dp_overlap: DataOverlap | None = None
    dispatcher: Dispatcher | None = None
    expert_overlap: Switch = False


class TrainingSection(SpecSection):
    """How the model is trained.

    *precision* is the format of activations and, without *compute*, of GEMMs. With
    *adapters_only* the weights are frozen, and low-rank GEMMs of inner width *adapter_rank* beside
    those that *adapter_places* names are trained. With *capacity_factor* an expert takes at most
    that many times its fair share of tokens and drops the rest; without, it takes all. Unless
    they are *grouped_experts*, the experts of a rank are multiplied one by one. A sequence may be
    packed of samples of *packed_tokens* tokens that do not see each other. Beside *recompute*,
    *recompute_modules* of all layers are recomputed, and the activations of the first
    *offload_layers* layers wait in host memory. With `full`, *saved_outputs* are kept and not
    computed again. The share *offload_optimizer* of the optimizer's
    state is in host memory, too, and is updated there. *attention_precision* is the format of the
    attention core; left out, that of activations.
    """

    precision: NumberFormat = DType.BF16
    compute: NumberFormat | None = None
    master: Master = Master.OPTIMIZER
    gradient_dtype: NumberFormat = DType.FP32
    optimizer: OptimizerName = "adam"
    clip_gradients: Switch = True
    recompute: Recompute = Recompute.NONE
    recompute_fraction: Ratio = 1.0
    recompute_modules: tuple[RecomputedPart, ...] = ()
    saved_outputs: tuple[SavedOutput, ...] = ()
    offload_layers: NaturalNumber = 0
    offload_optimizer: Ratio = 0.0
    attention: AttentionKernel = AttentionKernel.AUTO
    attention_precision: NumberFormat | None = None
    adapters_only: Switch = False
    adapter_rank: Width = 16
    adapter_places: AdapterPlaces = AdapterPlaces.ALL
    bucket_size: Size = 25 * 2**20
    routing: Routing = Routing.BALANCED
    routing_exponent: Number = 1.2
    capacity_factor: Number | None = None
    grouped_experts: Switch | None = None
    packed_tokens: Count | None = None
    cuda_graph: CudaGraph = CudaGraph.NONE

    @property
    def gemm_dtype(self) -> DType:
        """The format that GEMMs inside layers are computed in."""
        return self.compute or self.precision

    @property
    def is_autocast(self) -> bool:
        """Whether weights are fp32 and cast for every micro-batch."""
        return self.master is Master.AUTOCAST and self.precision.size_bytes < _FP32_BYTES

    @property
    def weight_dtype(self) -> DType:
        """What weights are stored in between iterations."""
        return DType.FP32 if self.is_autocast else self.precision

    @model_validator(mode="after")
    def _check_offload(self) -> Self:
        optimizers = load_optimizers()
        hosted = [name for name, one in optimizers.items() if one.is_local]
        if self.offload_optimizer and self.optimizer not in hosted:
            raise ValueError(
                f"offload_optimizer must be 0 with the optimizer {self.optimizer}: hosts run those "
                "that update each weight by itself; got "
                f"{self.offload_optimizer}. Use {', '.join(hosted[:-1])} or {hosted[-1]}"
            )
        return self

    @property
    def state_dtype(self) -> DType:
        """The format of the optimizer's state."""
        return self.weight_dtype if self.master is Master.NONE else DType.FP32

    def recomputes(self, layer: int) -> bool:
        """Whether *layer* is in the recomputed fraction, which is spread evenly."""
        before, after = (
            math.floor(count * self.recompute_fraction) for count in (layer, layer + 1)
        )
        return self.recompute is not Recompute.NONE and after > before


class TransformerSpec(Workload):
    """A Transformer workload; with *replica_batch* its batch grows with the data-parallel ranks."""

    family: Literal["transformer"]
    replica_batch: Count | None = None
    sequence_length: Count
    masked_tokens: Count | None = None
    model: ModelSection
    parallel: ParallelSection = ParallelSection()
    training: TrainingSection = TrainingSection()

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        longest = self.model.max_positions
        if longest is not None and self.sequence_length > longest:
            raise ValueError(
                f"sequence_length must be at most model.max_positions {longest}, "
                f"got {self.sequence_length}"
            )
        if self.model.head is Head.MASKED_TOKENS and self.masked_tokens is None:
            raise ValueError("a model that predicts masked tokens needs masked_tokens per sequence")
        return self

    @property
    def packed_length(self) -> int:
        """Tokens that attention works on together: a sequence, or a sample packed into one."""
        return min(self.training.packed_tokens or self.sequence_length, self.sequence_length)

    @property
    def predicted_tokens(self) -> int:
        """Tokens of a sequence that logits are computed for."""
        if self.model.head is Head.MASKED_TOKENS and self.masked_tokens is not None:
            return self.masked_tokens
        return self.sequence_length
