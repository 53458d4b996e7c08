"""TransformerSpec: a Transformer, how it is trained and how it is spread over ranks.

`batch` counts sequences over all ranks. What is left out under `parallel` is
chosen by the number of ranks; see `layout`.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, Self

from pydantic import model_validator

from perfmodel.base.dtypes import DType
from perfmodel.workloads.fields import CommonSpec, Count, NumberFormat, Section, Size, Switch


class Norm(Enum):
    """The normalisation of a layer's input."""

    LAYER = "layer_norm"
    RMS = "rms_norm"


class Positions(Enum):
    """How a token knows where it stands."""

    LEARNED = "learned"
    ROTARY = "rotary"


class Head(Enum):
    """What is predicted: a token at every place, or the masked ones."""

    ALL_TOKENS = "all_tokens"
    MASKED_TOKENS = "masked_tokens"


class Recompute(Enum):
    """Which activations the backward pass computes anew.

    SELECTIVE runs the attention core again, OPERATORS all but that core and every
    second product, FULL the whole layer.
    """

    NONE = "none"
    SELECTIVE = "selective"
    OPERATORS = "operators"
    FULL = "full"


class StateSharding(Enum):
    """What data-parallel ranks divide among themselves: nothing, optimizer state, everything."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    FULL = "full"


class AttentionKernel(Enum):
    """The attention kernel; `auto` leaves it to the software stack."""

    AUTO = "auto"
    FLASH2 = "flash2"
    FLASH3 = "flash3"
    CUDNN = "cudnn"
    UNFUSED = "unfused"


class ModelSection(Section):
    """The shape of the model. Left out, *kv_heads* is *heads*, *head_dim* is hidden / heads."""

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count
    gated_ffn: Switch = False
    vocab: Count
    positions: Positions = Positions.LEARNED
    max_positions: Count | None = None
    token_types: Count | None = None
    norm: Norm = Norm.LAYER
    bias: Switch = True
    dropout: Switch = False
    tied_embeddings: Switch = True
    causal: Switch = True
    head: Head = Head.ALL_TOKENS
    pooler: Switch = False

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden must divide by heads, got {self.hidden} and {self.heads}; "
                "or state head_dim"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads must divide by kv_heads, got {self.heads} and {self.kv_heads}")
        if self.positions is Positions.LEARNED and self.max_positions is None:
            raise ValueError("learned positions need max_positions")
        return self

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Numbers in one head."""
        return self.head_dim or self.hidden // self.heads


class ParallelSection(Section):
    """How the job is spread over ranks; what is left out is chosen."""

    tp: Count | None = None
    pp: Count | None = None
    dp: Count | None = None
    micro_batch: Count | None = None
    sequence_parallel: Switch | None = None
    sharding: StateSharding = StateSharding.NONE
    interleaving: Count = 1


class TrainingSection(Section):
    """How the model is trained."""

    precision: NumberFormat = DType.BF16
    gradient_dtype: NumberFormat = DType.FP32
    optimizer: Literal["adam", "adamw", "adagrad", "lamb", "sgd"] = "adam"
    clip_gradients: Switch = True
    recompute: Recompute = Recompute.NONE
    attention: AttentionKernel = AttentionKernel.AUTO
    bucket_size: Size = 25 * 2**20


class TransformerSpec(CommonSpec):
    """A Transformer workload."""

    family: Literal["transformer"]
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
            raise ValueError("a model that predicts masked tokens needs masked_tokens a sequence")
        return self

    @property
    def predicted_tokens(self) -> int:
        """Tokens of a sequence that logits are computed for."""
        if self.model.head is Head.MASKED_TOKENS and self.masked_tokens is not None:
            return self.masked_tokens
        return self.sequence_length
