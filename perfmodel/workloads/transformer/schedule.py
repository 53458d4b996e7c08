"""Schedule: in which order a pipeline stage works on its micro-batches.

One forward, one backward (1F1B): a stage runs as many forwards ahead as there
are stages behind it, then alternates, then drains. Interleaved, a stage holds
several runs of layers; micro-batches go round in groups as large as there are
stages, and the bubble shrinks with the length of a run.
Source: Narayanan et al., arXiv 2104.04473, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from collectives.collective import Collective
from perfmodel.graph.ops import Op, Pass
from perfmodel.workloads.eager import EagerWriter, Stream
from perfmodel.workloads.transformer.slots import Slot


class Joining(Enum):
    """When compute waits for a collective: at once, where a later step says so, or never."""

    AT_ONCE = "at once"
    INPUT = "input"
    GRADIENT = "gradient"
    PIECES = "pieces"
    NEXT_BLOCK = "next block"
    BLOCK_GRADIENT = "block gradient"
    EXPERTS = "experts"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Step:
    """An operator with its kernels, or with a collective over the group behind *slot*.

    *joins* are the collectives that compute, and a collective of this step, wait for before they
    start, *closes* those that whatever comes after the kernels waits for.
    *parameters* counts the elements whose gradients are ready afterwards; with *is_expert* they
    are reduced over the ranks that hold the same experts.
    """

    operator: str
    label: str
    kernels: tuple[Op, ...] = ()
    collective: Collective | None = None
    joining: Joining = Joining.AT_ONCE
    joins: tuple[Joining, ...] = ()
    closes: tuple[Joining, ...] = ()
    parameters: int = 0
    slot: Slot = Slot.TENSOR
    is_expert: bool = False


@dataclass(slots=True)
class StepWriter:
    """Writes steps; *streams* are those of the groups that there are, by their slots."""

    writer: EagerWriter
    streams: Mapping[Slot, Stream]
    outstanding: dict[Joining, int] = field(default_factory=dict)

    def write(self, step: Step, *, prefix: str) -> int | None:
        """Write *step*, labelled with *prefix*; its last kernel, if it has one."""
        awaited = self._join(step.joins)
        task = None
        if step.collective is not None:
            self.writer.hold(self.streams[step.slot], awaited)
            self._communicate(step, step.collective, prefix)
        elif step.kernels:
            task = self.writer.run(step.operator, step.kernels, label=prefix + step.label)
        else:
            self.writer.note(step.operator)
        self._join(step.closes)
        return task

    def state(self) -> list[list[Any]]:
        """Collectives that compute has yet to wait for."""
        return [[joining.value for joining in self.outstanding], [*self.outstanding.values()]]

    def restore(self, cells: Sequence[list[Any]]) -> None:
        """Go on from what `state` said."""
        words, tasks = cells
        self.outstanding = dict(zip(map(Joining, words), tasks, strict=True))

    def _join(self, joinings: tuple[Joining, ...]) -> list[int]:
        awaited = [
            self.outstanding.pop(joining) for joining in joinings if joining in self.outstanding
        ]
        self.writer.hold(self.writer.compute, awaited)
        return awaited

    def _communicate(self, step: Step, collective: Collective, prefix: str) -> None:
        task = self.writer.communicate(
            step.operator,
            collective,
            label=prefix + step.label,
            stream=self.streams[step.slot],
            slot=step.slot,
        )
        if step.joining is Joining.AT_ONCE:
            self.writer.hold(self.writer.compute, [task])
        elif step.joining is not Joining.NEVER:
            self.outstanding[step.joining] = task


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
