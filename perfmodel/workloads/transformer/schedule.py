"""Schedule: in which order a pipeline stage works on its micro-batches.

One forward, one backward (1F1B): a stage runs as many forwards ahead as there
are stages behind it, then alternates, then drains. Interleaved, a stage holds
several runs of layers; micro-batches go round in groups as large as there are
stages, and the bubble shrinks with the length of a run.
Source: Narayanan et al., arXiv 2104.04473, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Pass


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass over one micro-batch; *run* is the stage's run of layers it goes through."""

    direction: Pass
    micro_batch: int
    run: int = 0


def build_schedule(
    *, stage: int, stages: int, micro_batches: int, runs: int = 1
) -> tuple[Turn, ...]:
    """The turns of *stage*, in order; with several *runs*, *stages* divide the micro-batches."""
    total = micro_batches * runs
    ahead = turns_ahead(stage=stage, stages=stages, micro_batches=micro_batches, runs=runs)
    turns = [_turn(Pass.FORWARD, number, stages, runs) for number in range(ahead)]
    for number in range(total):
        if ahead + number < total:
            turns.append(_turn(Pass.FORWARD, ahead + number, stages, runs))
        turns.append(_turn(Pass.BACKWARD, number, stages, runs))
    return tuple(turns)


def turns_ahead(*, stage: int, stages: int, micro_batches: int, runs: int) -> int:
    """Forward turns of *stage* before its first backward one, the one just before it aside."""
    if runs == 1:
        return min(stages - stage - 1, micro_batches)
    if micro_batches == stages:
        return micro_batches * runs
    return min(2 * (stages - stage - 1) + (runs - 1) * stages, micro_batches * runs)


def _turn(direction: Pass, number: int, stages: int, runs: int) -> Turn:
    """The turn with *number* among those of its *direction*."""
    if runs == 1:
        return Turn(direction, number)
    group, place = divmod(number, stages * runs)
    run, within = divmod(place, stages)
    if direction is Pass.BACKWARD:
        run = runs - 1 - run
    return Turn(direction, group * stages + within, run)
