"""Two overlapping micro-batches: the exchange of one runs while the other computes.

The steps of a forward layer and of a backward layer are cut after every exchange of tokens and
issued in turns, the backward layer first. So combine gradients travel during attention, tokens
during the experts' backward pass, token gradients during the experts' forward pass, and results
during the backward pass of attention.
Source of the order: the combined 1F1B schedule of Megatron-Core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from perfmodel.workloads.eager import Joining, Step
from perfmodel.workloads.transformer.layout import Slot


def merge_layers(forward: Sequence[Step], backward: Sequence[Step]) -> list[Step]:
    """The steps of both layers in turns, each exchange joined by its own layer's next part."""
    merged: list[Step] = []
    ahead = _parts(backward, Joining.GRADIENTS_OF_TOKENS)
    behind = _parts(forward, Joining.TOKENS)
    for one, other in zip_longest(ahead, behind, fillvalue=()):
        merged += [*one, *other]
    return merged


def _parts(steps: Iterable[Step], joining: Joining) -> list[list[Step]]:
    """*steps* cut after every exchange; the first step of a part waits for the one before it."""
    parts: list[list[Step]] = [[]]
    for step in steps:
        is_exchange = step.collective is not None and step.slot == Slot.EXPERTS
        joins = step.joins if parts[-1] else (*step.joins, joining)
        when = joining if is_exchange else step.joining
        parts[-1].append(replace(step, joins=joins, joining=when))
        if is_exchange:
            parts.append([])
    return parts
