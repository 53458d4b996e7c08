"""Schedule: in which order a pipeline stage works on its micro-batches.

One forward, one backward (1F1B): a stage runs as many forwards ahead as there
are stages behind it, then alternates, then drains.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Pass


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass over one micro-batch."""

    direction: Pass
    micro_batch: int


def build_schedule(*, stage: int, stages: int, micro_batches: int) -> tuple[Turn, ...]:
    """The turns of *stage*, in order."""
    ahead = min(stages - stage - 1, micro_batches)
    turns = [Turn(Pass.FORWARD, number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            turns.append(Turn(Pass.FORWARD, ahead + number))
        turns.append(Turn(Pass.BACKWARD, number))
    return tuple(turns)
