"""Words of a Transformer's specification: what its fields can be set to."""

from __future__ import annotations

from enum import Enum


class Norm(Enum):
    """The normalisation of a layer's input."""

    LAYER = "layer_norm"
    RMS = "rms_norm"


class Positions(Enum):
    """How positions of tokens are encoded.

    YARN rotates by scaled sines and cosines, which the fused kernels of frameworks cannot.
    """

    LEARNED = "learned"
    ROTARY = "rotary"
    YARN = "yarn"


class Mixer(Enum):
    """What mixes the tokens of a sequence in a layer; `mixers/table.py` says how each does it."""

    FULL = "full"
    WINDOWED = "windowed"
    LATENT = "latent"
    SPARSE = "sparse"
    LINEAR = "linear"
    STATE_SPACE = "state_space"
    NONE = "none"


RECURRENT = (Mixer.LINEAR, Mixer.STATE_SPACE)
_LATENTS = (Mixer.LATENT, Mixer.SPARSE)
OWNERS: dict[str, tuple[Mixer, ...]] = {
    "window": (Mixer.WINDOWED,),
    "kv_lora_rank": _LATENTS,
    "q_lora_rank": _LATENTS,
    "rope_dim": _LATENTS,
}
"""Fields of the model that other mixers do not have."""
NEEDS: dict[Mixer, tuple[str, ...]] = {
    Mixer.WINDOWED: ("window",),
    Mixer.LATENT: ("kv_lora_rank",),
    Mixer.SPARSE: ("index_heads", "index_top_k"),
}
"""Fields of a model without which it cannot have a mixer."""


class FeedForward(Enum):
    """The feed-forward network of a layer: gated where the model's are."""

    DENSE = "dense"
    EXPERTS = "experts"
    NONE = "none"


class Head(Enum):
    """What is predicted: every token, or the masked ones."""

    ALL_TOKENS = "all_tokens"
    MASKED_TOKENS = "masked_tokens"


class _Synonymous(Enum):
    """An enumeration whose values have older synonyms."""

    @classmethod
    def _missing_(cls, value: object) -> Enum | None:
        word = _OTHER_WORDS.get((cls.__name__, value)) if isinstance(value, str) else None
        return None if word is None else cls(word)


class Recompute(_Synonymous):
    """Which activations the backward pass recomputes, in the layers that do so.

    ATTENTION runs the attention core again, OPS all but that core and every second GEMM
    (counted as scripts issue them), FULL the whole layer.
    """

    NONE = "none"
    ATTENTION = "attention"
    OPS = "ops"
    FULL = "full"


class RecomputedPart(Enum):
    """A part of every layer that the backward pass recomputes, in Megatron's words."""

    NORMS = "layernorm"
    CORE = "core_attn"
    LATENT = "mla_up_proj"
    DENSE_FFN = "mlp"
    SHARED_EXPERTS = "shared_experts"
    EXPERTS = "moe"
    EXPERT_ACTIVATION = "moe_act"


class SavedOutput(Enum):
    """A GEMM or the attention core whose output a recomputed layer keeps, so it runs only once.

    DOWN needs no memory: nothing in the backward pass of a layer reads the output of its last
    GEMM, and compilers that see this (XLA) leave it out.
    """

    QKV = "qkv"
    CORE = "core"
    PROJECTION = "projection"
    UP = "up"
    DOWN = "down"


class StateSharding(_Synonymous):
    """What data-parallel ranks divide among themselves.

    ZERO1 the optimizer's state, ZERO2 also gradients, ZERO3 also weights. HSDP is ZERO3 inside
    groups of ranks; gradients are also reduced over the groups.
    """

    NONE = "none"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    HSDP = "hsdp"

    @property
    def divides_state(self) -> bool:
        """Whether a rank holds and updates only its share of the optimizer's state."""
        return self is not StateSharding.NONE

    @property
    def divides_gradients(self) -> bool:
        """Whether a rank keeps only its share of the gradients."""
        return self in (StateSharding.ZERO2, StateSharding.ZERO3, StateSharding.HSDP)

    @property
    def divides_weights(self) -> bool:
        """Whether weights are gathered before they are used."""
        return self in (StateSharding.ZERO3, StateSharding.HSDP)


_OTHER_WORDS: dict[tuple[str, object], str] = {
    ("Recompute", "selective"): "attention",
    ("Recompute", "operators"): "ops",
    ("StateSharding", "optimizer"): "zero1",
    ("StateSharding", "full"): "zero3",
    ("StateSharding", "fsdp"): "zero3",
    ("StateSharding", "ddp"): "none",
}


class AttentionKernel(Enum):
    """The attention kernel; `auto` leaves it to the stack, `flash` which flash kernel it is."""

    AUTO = "auto"
    FLASH = "flash"
    FLASH2 = "flash2"
    FLASH3 = "flash3"
    CUDNN = "cudnn"
    FMHA = "fmha"
    UNFUSED = "unfused"


class TensorOverlap(Enum):
    """Which communication of a tensor group overlaps GEMMs.

    BACKWARD: the reduction of an input's gradient, with the GEMM for the weight. FULL: every
    collective, in pieces, with the GEMM that it feeds or follows.
    """

    NONE = "none"
    BACKWARD = "backward"
    FULL = "full"


class DataOverlap(Enum):
    """Whether the reductions and gathers of a data-parallel group overlap compute."""

    NONE = "none"
    FULL = "full"


class StageSplit(Enum):
    """How layers are split over pipeline stages.

    EQUAL: as equally as possible. BY_COST: a stage takes layers until it exceeds its share of
    the multiplications, those of the logits included.
    """

    EQUAL = "equal"
    BY_COST = "by_cost"


class Master(Enum):
    """Where the fp32 weights of mixed precision are.

    OPTIMIZER: a copy that only the optimizer sees. AUTOCAST: the weights themselves are fp32, and
    every micro-batch casts them for its GEMMs; the residual stream stays in fp32. NONE: there are
    none, and the optimizer's state has the format of the weights, too.
    """

    OPTIMIZER = "optimizer"
    AUTOCAST = "autocast"
    NONE = "none"


class AdapterPlaces(Enum):
    """Which GEMMs of a layer have adapters."""

    ALL = "all"
    QKV = "qkv"


class ContextKind(Enum):
    """How ranks that share a sequence see each other's keys and values.

    RING passes them round while attention works on those present; ALL_GATHER gathers all of
    them first; ALL_TO_ALL gives every rank all tokens of some heads (Ulysses).
    """

    RING = "ring"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"


class CudaGraph(Enum):
    """What is captured: PARTIAL the layers outside their experts, FULL the passes as a whole."""

    NONE = "none"
    PARTIAL = "partial"
    FULL = "full"


class Routing(Enum):
    """How unevenly tokens choose experts.

    IN_TURN: a token takes the experts that follow those of the token before it, as gates of
    benchmarks do. Few ranks have them, so little is exchanged.
    """

    BALANCED = "balanced"
    POWER_LAW = "power_law"
    IN_TURN = "in_turn"
