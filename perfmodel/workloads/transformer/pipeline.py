"""Pipelines: the order in which a stage takes its micro-batches, and transfers between stages.

A pipeline stage runs one forward, one backward (1F1B): as many forwards ahead as stages follow,
then it alternates, then it drains. Interleaved, a stage holds several runs of layers; micro-batches
go round in groups of as many as stages, and the bubble shrinks with the length of a run.
Source: Narayanan et al., arXiv 2104.04473, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.graph.ops import Pass
from perfmodel.stacks.capabilities import Overlap
from perfmodel.workloads.eager import EagerWriter, StepWriter, communication
from perfmodel.workloads.transformer.layout import Layout, Slot
from perfmodel.workloads.transformer.run import TransformerRun


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass over one micro-batch, through run *run* of the stage's layers."""

    direction: Pass
    micro_batch: int
    run: int = 0


def build_schedule(layout: Layout, stage: int) -> tuple[Turn, ...]:
    """The turns of *stage*, in order; interleaved, the stages divide the micro-batches."""
    total, ahead = layout.micro_batches * layout.interleaving, turns_ahead(layout, stage)
    turns = [_turn(layout, Pass.FORWARD, number) for number in range(ahead)]
    for number in range(total):
        if ahead + number < total:
            turns.append(_turn(layout, Pass.FORWARD, ahead + number))
        turns.append(_turn(layout, Pass.BACKWARD, number))
    return tuple(turns)


def pair_turns(layout: Layout, stage: int) -> Iterator[tuple[Turn, Turn | None]]:
    """The turns of *stage*; where the layout says so, a forward with the backward turn behind it.

    Those are of different micro-batches, because stages start further ahead then.
    """
    turns = iter(build_schedule(layout, stage))
    held = next(turns, None)
    while held is not None:
        after = next(turns, None)
        if (
            layout.runs_beside
            and after is not None
            and (held.direction, after.direction) == (Pass.FORWARD, Pass.BACKWARD)
        ):
            yield held, after
            held = next(turns, None)
        else:
            yield held, None
            held = after


def turns_ahead(layout: Layout, stage: int) -> int:
    """Forward turns of *stage* before its first backward one, without the one just before it."""
    behind, total = layout.pp - stage - 1, layout.micro_batches * layout.interleaving
    # Beside another micro-batch a stage sends only at the end of both: one more is on its way to
    # every stage behind, and one more is in work.
    if layout.interleaving == 1:
        return min(2 * behind + 1 if layout.runs_beside else behind, total)
    if layout.micro_batches == layout.pp:
        return total
    ahead = 2 * behind + (layout.interleaving - 1) * layout.pp + layout.runs_beside
    return min(ahead, total)


def _turn(layout: Layout, direction: Pass, number: int) -> Turn:
    """The turn with *number* among those of its *direction*."""
    stages, runs = layout.pp, layout.interleaving
    if runs == 1:
        return Turn(direction, number)
    group, place = divmod(number, stages * runs)
    run, within = divmod(place, stages)
    if direction is Pass.BACKWARD:
        run = runs - 1 - run
    return Turn(direction, group * stages + within, run)


class Transfers:
    """Writes the transfers of *stage*; each direction and side has its own stream."""

    def __init__(
        self, run: TransformerRun, writer: EagerWriter, steps: StepWriter, *, stage: int
    ) -> None:
        self._run, self._writer, self._steps = run, writer, steps
        self._is_ring = run.layout.interleaving > 1
        self._overlaps = run.stack.overlaps_with_compute(Overlap.PIPELINE_TRANSFER)
        before = (Slot.FORWARD_IN, Slot.BACKWARD_OUT) if self._is_ring or stage > 0 else ()
        has_next = self._is_ring or stage < run.layout.pp - 1
        after = (Slot.FORWARD_OUT, Slot.BACKWARD_IN) if has_next else ()
        self._streams = {slot: writer.add_lane(slot.stream_name) for slot in (*before, *after)}
        self._size_bytes = run.tokens * run.spec.model.hidden * run.dtype.size_bytes

    def receive(self, slot: Slot, label: str) -> None:
        """Wait for what the neighbouring stage sends, and put its parts together."""
        writer, layout = self._writer, self._run.layout
        task = self._transfer(slot, label, is_behind_compute=False)
        writer.hold(writer.compute, task)
        if layout.tp > 1 and not layout.is_sequence_parallel:
            # Every rank needs the whole.
            kind = CollectiveKind.ALL_GATHER
            gather = communication(kind, label, self._size_bytes, self._run.dtype)
            self._steps.write(gather, prefix="pipeline/")
        if not self._overlaps:
            # The host waits for the device, too.
            last = writer.compute.last_task
            writer.synchronize(task, last, label=f"pipeline/{label} on the host")

    def send(self, slot: Slot, label: str) -> None:
        """Send what was just computed."""
        task = self._transfer(slot, label, is_behind_compute=True)
        # Stages of several runs send to a stage that may itself wait to send: that never blocks.
        if not (self._is_ring or self._overlaps):
            self._writer.hold(self._writer.compute, task)

    def _transfer(self, slot: Slot, label: str, *, is_behind_compute: bool) -> int:
        # Every rank of the tensor group sends its part, whether or not it holds the whole.
        size_bytes = self._size_bytes // self._run.layout.tp
        return self._writer.communicate(
            Collective(CollectiveKind.SEND_RECV, size_bytes, self._run.dtype),
            label=f"pipeline/{label}",
            stream=self._streams[slot],
            slot=slot,
            is_behind_compute=is_behind_compute,
        )
