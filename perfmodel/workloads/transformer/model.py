"""ModelSection: the shape of a model, and the blocks that its layers are made of.

A block is a mixer and a feed-forward network. `pattern` lists blocks in the order of layers and is
repeated until all have one: `3 x linear/experts + full/experts`. A word may have fields of
its own: `windowed(kv_heads=8)/dense(ffn=1024)`. Without a pattern, `window`, `dense_layers` and
`kv_lora_rank` say what each layer is. Everything that differs between layers is asked of their
blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self, TypeVar

from pydantic import ValidationError, model_validator

from perfmodel.base.documents import parse_value
from perfmodel.base.fields import Count, Degree, LayerCount, NaturalNumber, Switch, Width, Words
from perfmodel.workloads.fields import SpecSection
from perfmodel.workloads.transformer.words import (
    NEEDS,
    OWNERS,
    FeedForward,
    Head,
    Mixer,
    Norm,
    Positions,
)

_WORD = r"(\w+)(?:\(([^()]*)\))?"
_ITEM = re.compile(rf"\s*(?:(\d+)\s*x\s*)?{_WORD}\s*/\s*{_WORD}\s*")
_Word = TypeVar("_Word", Mixer, FeedForward)
_PLAIN: dict[str, Any] = {
    "pattern": None, "window_every": 1, "full_every": None, "dense_layers": 0,
}  # fmt: skip


class ModelSection(SpecSection):
    """The shape of the model. Left out, *kv_heads* is *heads*, *head_dim* is hidden / heads.

    *value_dim* is the width of a head of values where it is not *head_dim*. Where *window* is
    given, the first of every *window_every* layers lets a token see only that many before it; with
    *full_every*, all but the last of so many layers do. Behind the first *dense_layers*, a token
    passes through *top_k* of *experts* feed-forward networks of width *moe_ffn*, and through
    *shared_experts* that all tokens pass; with *expert_hidden* the chosen experts see tokens made
    that short. *mtp_layers* more layers after the last predict further tokens, each with logits of
    its own. With *kv_lora_rank*, keys and values are made from a latent vector of that length,
    queries from one of *q_lora_rank*, and *rope_dim* numbers per head carry the positions, in
    addition to *head_dim*. With *clamped_ffn* both halves of a gated activation are clamped first,
    with *output_gate* what a head of attention writes has a gate.

    Sparse attention sees *index_top_k* tokens that *index_heads* heads of *index_dim* chose; with
    none, those that a layer before chose. A
    linear or state-space mixer keeps a state of *state_size* (left out, *head_dim*) times
    *value_dim* numbers per head after a convolution over *convolution* tokens, and works on
    *chunk* tokens at a time; *channel_gates* let each channel forget at its own pace.
    """

    layers: LayerCount
    hidden: Width
    heads: Degree
    kv_heads: Degree | None = None
    head_dim: Width | None = None
    value_dim: Width | None = None
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
    pattern: Words | None = None
    window: Count | None = None
    window_every: Degree = 1
    full_every: Degree | None = None
    experts: Degree = 1
    top_k: Degree = 1
    moe_ffn: Width | None = None
    shared_experts: NaturalNumber = 0
    expert_hidden: Width | None = None
    dense_layers: NaturalNumber = 0
    mtp_layers: NaturalNumber = 0
    kv_lora_rank: Width | None = None
    q_lora_rank: Width | None = None
    rope_dim: NaturalNumber = 0
    output_gate: Switch = False
    index_heads: NaturalNumber | None = None
    index_dim: Width = 128
    index_top_k: Count | None = None
    state_size: Width | None = None
    convolution: Degree = 4
    chunk: Degree = 64
    channel_gates: Switch = False

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

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        if self.pattern is None:
            return self
        stated = [key for key, value in _PLAIN.items() if getattr(self, key) != value]
        if stated != ["pattern"]:
            raise ValueError(f"pattern says what {', '.join(stated[1:])} would: state one of them")
        chooses = any(block.has_experts for block in blocks_of(self))
        if chooses is not self.has_experts:
            raise ValueError(
                f"pattern must have layers of experts if there are several, got {self.experts}"
            )
        return self

    @property
    def has_experts(self) -> bool:
        """Whether there are experts to choose from."""
        return self.experts > 1

    @property
    def expert_ffn(self) -> int:
        """Width of one expert."""
        return self.moe_ffn or self.ffn

    @property
    def expert_width(self) -> int:
        """Numbers of a token that experts see."""
        return self.expert_hidden or self.hidden

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

    @property
    def value_width(self) -> int:
        """Numbers in one head of values."""
        return self.value_dim or self.head_width


@dataclass(frozen=True, slots=True)
class Block:
    """A kind of layer: its mixer, its feed-forward network, and the model's shape there."""

    mixer: Mixer
    ffn: FeedForward
    model: ModelSection
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.mixer, self.ffn, self.model)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def has_experts(self) -> bool:
        """Whether tokens choose among experts."""
        return self.ffn is FeedForward.EXPERTS

    def costs_no_less(self, other: Block) -> bool:
        """Whether it is *other*, but for seeing all tokens where that has a window."""
        if other.window is None or self.window is not None:
            return self == other
        return self.ffn is other.ffn and self.model == _without_window(other.model)

    @property
    def window(self) -> int | None:
        """How many tokens before it a token sees, if not all."""
        return self.model.window


@lru_cache(maxsize=256)
def blocks_of(model: ModelSection) -> tuple[Block, ...]:
    """The block of every layer of *model*, then those that predict further tokens."""
    if model.pattern is None:
        return tuple(_stated(model, layer) for layer in range(model.layers + model.mtp_layers))
    period = _read_pattern(model, model.pattern)
    layers = [period[number % len(period)] for number in range(model.layers)]
    return (*layers, *[layers[-1]] * model.mtp_layers)


@lru_cache(maxsize=256)
def counted_blocks(model: ModelSection) -> tuple[tuple[Block, int], ...]:
    """Every kind of block of *model*, and how many of its layers are of it."""
    return tuple(Counter(blocks_of(model)[: model.layers]).items())


def commonest_block(model: ModelSection) -> Block:
    """The block that most layers of *model* are, or cost no less than."""
    counted = counted_blocks(model)
    return max(
        (block for block, _ in counted),
        key=lambda one: sum(count for other, count in counted if other.costs_no_less(one)),
    )


def one_layer_of(block: Block) -> ModelSection:
    """A model with one layer that is *block*."""
    window = "" if block.window is None else f"(window={block.window})"
    pattern = f"{block.mixer.value}{window}/{block.ffn.value}"
    dense = {} if block.has_experts else {"experts": 1, "top_k": 1, "moe_ffn": None}
    update = {**_PLAIN, **dense, "layers": 1, "pattern": pattern}
    return block.model.model_copy(update=update)


def _stated(model: ModelSection, layer: int) -> Block:
    """The block of *layer* of a model without a pattern."""
    is_windowed = model.window is not None and layer % model.window_every == 0
    if model.window is not None and model.full_every is not None:
        is_windowed = (layer + 1) % model.full_every != 0
    mixer = Mixer.WINDOWED if is_windowed else Mixer.FULL
    if model.kv_lora_rank is not None:
        mixer = Mixer.LATENT
    own = _without_window(model) if model.window is not None and not is_windowed else model
    is_chosen = model.has_experts and layer >= model.dense_layers
    return Block(mixer, FeedForward.EXPERTS if is_chosen else FeedForward.DENSE, own)


@lru_cache(maxsize=256)
def _without_window(model: ModelSection) -> ModelSection:
    return model.model_copy(update={"window": None})


def _read_pattern(model: ModelSection, pattern: str) -> list[Block]:
    """The blocks that *pattern* names once through."""
    found = []
    for text in pattern.split("+"):
        item = _ITEM.fullmatch(text)
        if item is None:
            raise ValueError(
                "pattern must list blocks such as 3 x linear/experts + full(heads=16)/dense, "
                f"got {text.strip()!r}"
            )
        count, mixer, of_mixer, ffn, of_ffn = item.groups()
        words = _known(Mixer, mixer), _known(FeedForward, ffn)
        own = _fields(of_mixer) | _fields(of_ffn)
        found += [_block(model, *words, own)] * int(count or 1)
    return found


def _known(kind: type[_Word], word: str) -> _Word:
    try:
        return kind(word)
    except ValueError:
        known = ", ".join(one.value for one in kind)
        raise ValueError(f"pattern must be made of {known}, got {word!r}") from None


def _fields(text: str | None) -> dict[str, Any]:
    """The fields that a word has of its own: `kv_heads=8, output_gate=true`."""
    pairs = [part.partition("=") for part in (text or "").split(",") if part.strip()]
    return {name.strip(): parse_value(value) for name, _, value in pairs}


def _block(model: ModelSection, mixer: Mixer, ffn: FeedForward, own: dict[str, Any]) -> Block:
    """The block with *own* fields, without what its mixer does not have."""
    fields = ModelSection.model_fields
    unused = {name: fields[name].default for name, owners in OWNERS.items() if mixer not in owners}
    stated = {name: getattr(model, name) for name in model.model_fields_set}
    try:
        shape = ModelSection.model_validate(stated | _PLAIN | unused | own)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"pattern: {where} {first['msg']}") from None
    for name in NEEDS.get(mixer, ()):
        if getattr(shape, name) is None:
            raise ValueError(f"{mixer.value} in pattern needs {name}")
    return Block(mixer, ffn, shape)
