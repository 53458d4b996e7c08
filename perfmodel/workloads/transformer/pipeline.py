"""Pipeline: the order of a stage's micro-batches, and the transfers between stages.

One forward, one backward (1F1B): a stage runs as many forwards ahead as there
are stages behind it, then alternates, then drains. Interleaved, a stage holds
several runs of layers; micro-batches go round in groups as large as there are
stages, and the bubble shrinks with the length of a run.
Source: Narayanan et al., arXiv 2104.04473, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.graph.ops import Pass
from perfmodel.stacks.stack import Overlap
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.steps import StepWriter, TransformerRun, communication


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass over one micro-batch, through run *run* of the stage's layers."""

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
    """Forward turns of *stage* before its first backward one, without the one just before it."""
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


class Transfers:
    """Writes the transfers of *stage*; each direction and side has its own stream."""

    def __init__(
        self, run: TransformerRun, writer: EagerWriter, steps: StepWriter, *, stage: int
    ) -> None:
        self._run, self._writer, self._steps = run, writer, steps
        self._is_ring = run.layout.interleaving > 1
        self._overlaps = run.overlaps(Overlap.PIPELINE_TRANSFER)
        before = (Slot.FORWARD_IN, Slot.BACKWARD_OUT) if self._is_ring or stage > 0 else ()
        has_next = self._is_ring or stage < run.layout.pp - 1
        after = (Slot.FORWARD_OUT, Slot.BACKWARD_IN) if has_next else ()
        self._streams = {slot: writer.add_stream(slot.stream_name) for slot in (*before, *after)}
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
            writer.block(task, last, label=f"pipeline/{label} on the host")

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
