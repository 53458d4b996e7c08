"""Transfers between pipeline stages: activations on their way forward, gradients on their way back.

On the last stage of a V schedule the first run of layers hands over to the second, and on stage 0
the last run of the model ends: both without a transfer.
"""

from __future__ import annotations

from collectives.collective import Collective, CollectiveKind
from perfmodel.graph.ops import Pass
from perfmodel.stacks.capabilities import Overlap
from perfmodel.workloads.eager import EagerWriter, StepWriter, communication
from perfmodel.workloads.transformer.layout import Layout, Slot
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedules import Turn

_Ways = dict[tuple[Pass, int], Slot]
"""The slot of a direction and, of a V schedule, of a run of layers."""
_BEFORE: tuple[_Ways, _Ways] = (
    {(Pass.FORWARD, 0): Slot.FORWARD_IN, (Pass.BACKWARD, 1): Slot.RETURN_BACKWARD_IN},
    {(Pass.BACKWARD, 0): Slot.BACKWARD_OUT, (Pass.FORWARD, 1): Slot.RETURN_FORWARD_OUT},
)
"""What a stage receives from the stage before it, and what it sends there."""
_AFTER: tuple[_Ways, _Ways] = (
    {(Pass.BACKWARD, 0): Slot.BACKWARD_IN, (Pass.FORWARD, 1): Slot.RETURN_FORWARD_IN},
    {(Pass.FORWARD, 0): Slot.FORWARD_OUT, (Pass.BACKWARD, 1): Slot.RETURN_BACKWARD_OUT},
)


def _ways(layout: Layout, stage: int) -> tuple[_Ways, _Ways]:
    """What *stage* receives and sends, by direction and run."""
    is_ring = layout.interleaving > 1 and not layout.is_folded
    runs = 2 if layout.is_folded else 1
    received, sent = _Ways(), _Ways()
    for ways, is_there in (
        (_BEFORE, is_ring or stage > 0),
        (_AFTER, is_ring or stage < layout.pp - 1),
    ):
        if is_there:
            received |= {way: slot for way, slot in ways[0].items() if way[1] < runs}
            sent |= {way: slot for way, slot in ways[1].items() if way[1] < runs}
    return received, sent


class Transfers:
    """Writes the transfers of *stage*; each direction and side has its own stream."""

    def __init__(
        self, run: TransformerRun, writer: EagerWriter, steps: StepWriter, *, stage: int
    ) -> None:
        self._run, self._writer, self._steps = run, writer, steps
        self._is_folded = run.layout.is_folded
        self._overlaps = run.stack.overlaps_with_compute(Overlap.PIPELINE_TRANSFER)
        self._received, self._sent = _ways(run.layout, stage)
        used = {*self._received.values(), *self._sent.values()}
        self._streams = {
            slot: writer.add_lane(slot.stream_name)
            for ways in (*_BEFORE, *reversed(_AFTER))
            for slot in ways.values()
            if slot in used
        }
        self._size_bytes = run.tokens * run.spec.model.hidden * run.dtype.size_bytes

    def receive(self, turn: Turn) -> None:
        """Wait for what the neighbouring stage sends, and put its parts together."""
        writer, layout = self._writer, self._run.layout
        slot, label = self._received.get(self._way(turn)), f"receive {turn.direction.value}"
        if slot is None:
            return
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

    def send(self, turn: Turn) -> None:
        """Send what was just computed."""
        slot = self._sent.get(self._way(turn))
        if slot is None:
            return
        task = self._transfer(slot, f"send {turn.direction.value}", is_behind_compute=True)
        # Stages of several runs send to a stage that may itself wait to send, and those that put
        # off gradients of weights to one that is not there yet: that never blocks.
        layout = self._run.layout
        is_free = layout.interleaving > 1 or layout.order.splits_backward
        if not (is_free or self._overlaps):
            self._writer.hold(self._writer.compute, task)

    def _way(self, turn: Turn) -> tuple[Pass, int]:
        return turn.direction, turn.run if self._is_folded else 0

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
