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
    LayerCount,
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
from perfmodel.workloads.fields import Section, Workload
from perfmodel.workloads.transformer.words import (
    AdapterPlaces,
    AttentionKernel,
    ContextKind,
    CudaGraph,
    DataOverlap,
    Head,
    Master,
    Norm,
    Positions,
    Recompute,
    RecomputedPart,
    Routing,
    SavedOutput,
    StageSplit,
    StateSharding,
    TensorOverlap,
)

_FP32_BYTES = DType.FP32.size_bytes


class ModelSection(Section):
    """The shape of the model. Left out, *kv_heads* is *heads*, *head_dim* is hidden / heads.

    Where *window* is given, the first of every *window_every* layers lets a token see only that
    many before it; with *full_every*, all but the last of so many layers do. Behind the first
    *dense_layers*, a token passes through *top_k* of *experts* feed-forward networks of width
    *moe_ffn*, and through *shared_experts* that all tokens pass. *mtp_layers* more layers after
    the last predict further tokens, each with logits of its own. With *kv_lora_rank*, keys and
    values are made from a latent vector of that length, queries from one of *q_lora_rank*, and
    *rope_dim* numbers per head carry the positions, in addition to *head_dim*. With *clamped_ffn*
    both halves of a gated activation are clamped first.
    """

    layers: LayerCount
    hidden: Width
    heads: Degree
    kv_heads: Degree | None = None
    head_dim: Width | None = None
    ffn: Width
    gated_ffn: Switch = False
    clamped_ffn: Switch = False
    vocab: Count
    positions: Positions = Positions.LEARNED
    max_positions: Count | None = None
    token_types: Degree | None = None
    norm: Norm = Norm.LAYER
    bias: Switch = True
    dropout: Switch = False
    tied_embeddings: Switch = True
    causal: Switch = True
    head: Head = Head.ALL_TOKENS
    pooler: Switch = False
    window: Count | None = None
    window_every: Degree = 1
    full_every: Degree | None = None
    experts: Degree = 1
    top_k: Degree = 1
    moe_ffn: Width | None = None
    shared_experts: NaturalNumber = 0
    dense_layers: NaturalNumber = 0
    mtp_layers: NaturalNumber = 0
    kv_lora_rank: Width | None = None
    q_lora_rank: Width | None = None
    rope_dim: NaturalNumber = 0

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k must be at most experts {self.experts}, got {self.top_k}")
        if self.dense_layers > self.layers:
            raise ValueError(
                f"dense_layers must be at most layers {self.layers}, got {self.dense_layers}"
            )
        if not self.has_experts and (self.moe_ffn or self.ffn) != self.ffn:
            raise ValueError(
                f"one expert is a dense layer of width ffn: moe_ffn must be {self.ffn}, "
                f"got {self.moe_ffn}"
            )
        if self.kv_lora_rank is None and (self.q_lora_rank is not None or self.rope_dim):
            raise ValueError(
                "q_lora_rank and rope_dim belong to latent attention: needs kv_lora_rank"
            )
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be divisible by heads, got {self.hidden} and {self.heads}; "
                "or state head_dim"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(
                f"heads must be divisible by kv_heads, got {self.heads} and {self.kv_heads}"
            )
        if self.positions is Positions.LEARNED and self.max_positions is None:
            raise ValueError(
                "learned positions need max_positions: say how many, or positions: rotary"
            )
        return self

    def has_window(self, layer: int) -> bool:
        """Whether tokens of *layer* see only a window of the tokens before them."""
        if self.window is None:
            return False
        if self.full_every is not None:
            return (layer + 1) % self.full_every != 0
        return layer % self.window_every == 0

    @property
    def has_experts(self) -> bool:
        """Whether there are experts to choose from."""
        return self.experts > 1

    def is_expert_layer(self, layer: int) -> bool:
        """Whether tokens of *layer* choose among experts."""
        return self.has_experts and layer >= self.dense_layers

    @property
    def expert_ffn(self) -> int:
        """Width of one expert."""
        return self.moe_ffn or self.ffn

    @property
    def query_width(self) -> int:
        """Numbers of a head that queries and keys are compared by."""
        return self.head_width + self.rope_dim

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Numbers in one head."""
        return self.head_dim or self.hidden // self.heads


class ParallelSection(Section):
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


class TrainingSection(Section):
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
