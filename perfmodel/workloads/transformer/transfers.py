"""Transfers: what a pipeline stage receives from the stages beside it, and sends to them."""

from __future__ import annotations

from collectives.collective import Collective, CollectiveKind
from perfmodel.graph.program import LaneKind
from perfmodel.stacks.stack import Overlap
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Step, StepWriter
from perfmodel.workloads.transformer.slots import Slot


class Transfers:
    """Writes the transfers of *stage*; each direction and side has a stream of its own."""

    def __init__(
        self, run: TransformerRun, writer: EagerWriter, steps: StepWriter, *, stage: int
    ) -> None:
        self._run, self._writer, self._steps = run, writer, steps
        self._is_round = run.layout.interleaving > 1
        self._overlaps = run.overlaps(Overlap.PIPELINE_TRANSFER)
        has_before = self._is_round or stage > 0
        has_behind = self._is_round or stage < run.layout.pp - 1
        slots = [Slot.FORWARD_IN, Slot.BACKWARD_OUT] if has_before else []
        slots += [Slot.FORWARD_OUT, Slot.BACKWARD_IN] if has_behind else []
        self._streams = {
            slot: writer.add_stream(slot.stream_name, LaneKind.COMMUNICATION) for slot in slots
        }

    def receive(self, slot: Slot, label: str) -> None:
        """Wait for what the stage beside sends, and put it together."""
        writer = self._writer
        task = self._transfer(slot, label, is_behind_compute=False)
        writer.hold(writer.compute, [task])
        self._collect(label)
        if self._overlaps:
            return
        # The host waits for the device, too.
        last = writer.compute.last_task
        awaited = [task] if last is None else [task, last]
        writer.block(awaited, label=f"pipeline/{label} on the host")

    def send(self, slot: Slot, label: str) -> None:
        """Send what was just computed."""
        task = self._transfer(slot, label, is_behind_compute=True)
        # Stages of several runs send to a stage that may itself wait to send: that never blocks.
        if not (self._is_round or self._overlaps):
            self._writer.hold(self._writer.compute, [task])

    def _collect(self, label: str) -> None:
        """Put the parts of a transfer together where every rank needs the whole."""
        layout, dtype = self._run.layout, self._run.spec.training.precision
        if layout.tp == 1 or layout.is_sequence_parallel:
            return
        kind = CollectiveKind.ALL_GATHER
        collective = Collective(kind, size_bytes=self._size_bytes, dtype=dtype)
        step = Step(kind.value, f"{label} {kind.value}", collective=collective)
        self._steps.write(step, prefix="pipeline/")

    @property
    def _size_bytes(self) -> int:
        spec = self._run.spec
        return self._run.tokens * spec.model.hidden * spec.training.precision.size_bytes

    def _transfer(self, slot: Slot, label: str, *, is_behind_compute: bool) -> int:
        dtype = self._run.spec.training.precision
        # Every rank of the tensor group sends its part, whether or not it holds the whole.
        size_bytes = self._size_bytes // self._run.layout.tp
        return self._writer.communicate(
            "send_recv",
            Collective(CollectiveKind.SEND_RECV, size_bytes=size_bytes, dtype=dtype),
            label=f"pipeline/{label}",
            stream=self._streams[slot],
            slot=slot,
            is_behind_compute=is_behind_compute,
        )
