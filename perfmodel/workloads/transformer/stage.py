"""StageWriter: the program of the ranks of one pipeline stage.

The main thread issues forwards, transfers and the optimizer; the autograd
thread issues backwards and the reductions of gradients, while the main thread waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import ProgramBuilder
from perfmodel.graph.issuing import OpenLane
from perfmodel.graph.ops import Pass
from perfmodel.graph.program import Program
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.workloads.eager import EagerWriter, Joining, Step, StepWriter, feed_batch
from perfmodel.workloads.repetition import Repetition, Stateful
from perfmodel.workloads.transformer.data_parallel import (
    LayerGathering,
    Reductions,
    build_reduction,
)
from perfmodel.workloads.transformer.layers import LAYER, LayerNaming
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.parts import StageParts
from perfmodel.workloads.transformer.pipeline import Transfers
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedules import Gradients, Turn, merge_layers, pair_turns
from perfmodel.workloads.transformer.shapes import LayerShapes, end_parameters
from perfmodel.workloads.transformer.update import UpdateWriter
from perfmodel.workloads.transformer.words import ContextKind

_ROOT = "embedding and head"
_UNCAPTURED = tuple(
    f"ffn/{word}" for word in ("experts", "permute", "dispatch", "combine", "sort", "unsort")
)
"""Labels of steps whose shapes the routing decides."""


class StageWriter:
    """Writes one program of *run*, made of *parts*; use it once."""

    def __init__(
        self, program: ProgramBuilder, run: TransformerRun, parts: StageParts, *, stage: int
    ) -> None:
        spec, layout = run.spec, run.layout
        self._run, self._spec, self._layout, self._parts = run, spec, layout, parts
        self._stage = stage
        self._runs = layout.layer_runs(spec.model.layers, stage=stage)
        self._kind_of = {number: parts.kind(number) for layers in self._runs for number in layers}
        self._shapes = LayerShapes(spec.model, layout)
        self._root_size = end_parameters(spec.model, layout, stage=stage)
        self._trained_root = 0 if spec.training.adapters_only else self._root_size
        self._writer = EagerWriter(program, run.stack, is_captured=run.captures_all)
        self._steps = StepWriter(self._writer, self._add_group_streams())
        data = self._writer.add_lane("data stream") if layout.weight_copies > 1 else None
        self._transfers = Transfers(run, self._writer, self._steps, stage=stage)
        self._first_task: dict[str, int] = {}
        self._dense, self._experts = Reductions(self._first_task), Reductions(self._first_task)
        self._reductions = (self._dense, self._experts)
        of_experts = None
        if run.has_separate_experts and layout.expert_copies > 1:
            of_experts = self._writer.add_lane("expert data stream")
            self._add_reductions(self._experts, of_experts, Slot.EXPERT_DATA)
        if data is not None:
            self._add_reductions(self._dense, data, Slot.DATA)
        is_gathered = spec.parallel.sharding.divides_weights
        self._gathering = LayerGathering(self._writer, run, data if is_gathered else None)
        self._gathering_experts = LayerGathering(
            self._writer, run, of_experts if is_gathered else None, Slot.EXPERT_DATA
        )
        self._cast_layers: set[int] = set()
        self._is_capturing = False
        states: list[Stateful] = [self._writer, self._steps]
        gatherings = self._gathering, self._gathering_experts
        states += [one for one in gatherings if one.stream is not None]
        self._repetition = Repetition(program, states, parts.known)

    def write(self) -> Program:
        """The program."""
        writer, layout = self._writer, self._layout
        is_end = self._stage in (0, layout.last_stage)
        if is_end:
            sequences = layout.micro_batch * layout.micro_batches
            tokens = sequences * self._spec.sequence_length // layout.sharers
            feed_batch(writer, self._spec.input, [tokens * DType.INT64.size_bytes])
        root = [(self._trained_root,)] if self._trained_root else []
        groups = [*map(self._tensors, self._kind_of), *root]
        layers, experts = [*map(self._shapes.of, self._kind_of)], []
        if self._run.has_separate_experts:
            experts = [shape.expert_tensors for shape in layers if shape.expert_tensors]
        update = UpdateWriter(writer, self._run, groups, experts, layers)
        first_task = update.zero_gradients()
        for turn, beside in pair_turns(layout, self._stage):
            if beside is None or not self._take_both(turn, beside):
                self._take(turn)
                if beside is not None:
                    self._take(beside)
        self._repetition.resume()
        if is_end:
            update.reduce_tied_weight()
        for reductions in self._reductions:
            reductions.finish()
        update.step()
        for reductions in self._reductions:
            update.gather_weights(reductions, first_task=first_task)
        return writer.finish(reads_loss=self._spec.sync_each_iteration)

    def _tensors(self, number: int) -> tuple[int, ...]:
        """Trained tensors of layer *number* that the data-parallel group reduces."""
        shape, training = self._shapes.of(number), self._spec.training
        if training.adapters_only:
            return shape.adapter_tensors(training)
        return shape.tensors + (() if self._run.has_separate_experts else shape.expert_tensors)

    @property
    def _is_reducing(self) -> bool:
        return self._dense.active is not None or self._experts.active is not None

    def _take(self, turn: Turn) -> None:
        """Write *turn*; equal turns that reduce nothing are written once."""
        is_forward = turn.is_forward
        is_final = turn.micro_batch == self._layout.micro_batches - 1
        if not is_forward:
            for reductions in self._reductions:
                reductions.active = reductions.last if is_final else reductions.early
        write = partial(self._writer_of(turn), turn)
        # The first pass also notes which kernels use which weights first.
        if turn.micro_batch == 0 if is_forward else self._is_reducing:
            self._repetition.resume()
            write()
            return
        layers = self._runs[turn.run]
        kinds = tuple([self._kind_of[number] for number in layers])
        key = (is_forward, turn.gradients.value, kinds, self._neighbours(turn))
        self._repetition.write(key, write, naming=LayerNaming(layers[0] if layers else 0))

    def _writer_of(self, turn: Turn) -> Callable[[Turn], None]:
        if turn.is_forward:
            return self._forward
        is_rest = turn.gradients is Gradients.WEIGHTS
        return self._weight_gradients if is_rest else self._backward

    def _take_both(self, forward: Turn, backward: Turn) -> bool:
        """Write both turns overlapped, unless one of them is special."""
        is_sharded = self._gathering.stream is not None
        is_last = backward.micro_batch == self._layout.micro_batches - 1
        has_early = any(one.early is not None for one in self._reductions)
        if is_sharded or has_early or is_last or forward.micro_batch == 0:
            return False
        for reductions in self._reductions:
            reductions.active = None
        runs = [self._runs[turn.run] for turn in (forward, backward)]
        kinds = tuple(tuple([self._kind_of[number] for number in run]) for run in runs)
        ends = tuple([self._neighbours(turn) for turn in (forward, backward)])
        first = [run[0] if run else 0 for run in runs]
        key = ("beside", kinds, ends, first[1] - first[0])
        write = partial(self._both, forward, backward)
        self._repetition.write(key, write, naming=LayerNaming(first[0]))
        return True

    def _both(self, forward: Turn, backward: Turn) -> None:
        """A forward turn and the backward turn of another micro-batch, layer by layer."""
        self._begin_forward(forward)
        self._begin_backward(backward)
        numbers = self._runs[forward.run], [*reversed(self._runs[backward.run])]
        for ahead, behind in zip_longest(*numbers):
            merged = merge_layers(
                self._labelled(ahead, Pass.FORWARD), self._labelled(behind, Pass.BACKWARD)
            )
            self._write_steps(merged, "")
        self._steps.wait(Joining.TOKENS, Joining.GRADIENTS_OF_TOKENS)
        self._end_backward(backward)
        self._end_forward(forward)

    def _labelled(self, number: int | None, direction: Pass) -> list[Step]:
        """The steps of layer *number*, labelled with it; none without a layer."""
        if number is None:
            return []
        layer = self._parts.layer(self._kind_of[number])
        casts = layer.casts if self._spec.training.is_autocast else ()
        is_forward = direction is Pass.FORWARD
        steps = casts + layer.forward if is_forward else layer.recompute + layer.backward
        return [replace(step, label=f"{LAYER}{number}/{step.label}") for step in steps]

    def _neighbours(self, turn: Turn) -> tuple[bool, bool, int]:
        """What decides where *turn* receives from and sends to."""
        way = turn.run if self._layout.is_folded else 0
        return self._is_begin(turn), self._is_end(turn), way

    def _is_begin(self, turn: Turn) -> bool:
        return self._stage == 0 and turn.run == 0

    def _is_end(self, turn: Turn) -> bool:
        is_last_run = turn.run == self._layout.interleaving - 1
        return self._stage == self._layout.last_stage and is_last_run

    def _forward(self, turn: Turn) -> None:
        self._begin_forward(turn)
        for number in self._runs[turn.run]:
            self._use_layer(number, number + 1)
            layer = self._parts.layer(self._kind_of[number])
            casts = layer.casts if self._needs_cast(number) else ()
            self._write_layer(number, casts + layer.forward, "forward")
            self._release()
        self._end_forward(turn)

    def _begin_forward(self, turn: Turn) -> None:
        if not self._is_begin(turn):
            self._transfers.receive(turn)
        if self._root_size:
            self._gathering.use(_ROOT, self._root_size)
        if self._is_begin(turn):
            self._write_end(self._parts.embedding.forward, "embedding")

    def _end_forward(self, turn: Turn) -> None:
        if self._is_end(turn):
            self._write_end(self._parts.head.forward, "head")
            if self._run.stack.has(FrameworkBehaviour.CHECKED_NUMBERS):
                self._writer.synchronize(self._writer.compute.last_task, label="head/loss checked")
        else:
            self._transfers.send(turn)

    def _backward(self, turn: Turn) -> None:
        self._begin_backward(turn)
        for number in reversed(self._runs[turn.run]):
            self._use_layer(number, number - 1)
            self._write_backward(number, turn)
            self._release()
        self._end_backward(turn)

    def _weight_gradients(self, turn: Turn) -> None:
        """The gradients of weights that the backward turn of the same micro-batch left out."""
        self._writer.switch(self._writer.autograd, label="backward hand-over")
        if self._is_end(turn):
            self._write_end(self._parts.backward(None, turn.gradients), "head")
        for number in reversed(self._runs[turn.run]):
            self._write_backward(number, turn)
        self._reduce_root(turn)
        self._writer.switch(self._writer.main, label="forward hand-over")

    def _write_backward(self, number: int, turn: Turn) -> None:
        """The backward pass of layer *number*, and the reduction of gradients that are complete."""
        steps = self._parts.backward(self._kind_of[number], turn.gradients)
        self._write_layer(number, steps, f"backward {turn.gradients.value}")
        if turn.ends_use and self._is_reduced_whole:
            self._reduce(self._dense, sum(self._tensors(number)))
            if self._run.has_separate_experts:
                self._reduce(self._experts, sum(self._shapes.of(number).expert_tensors))

    def _reduce_root(self, turn: Turn) -> None:
        if turn.ends_use and self._is_reduced_whole and self._trained_root:
            self._reduce(self._dense, self._trained_root)

    def _begin_backward(self, turn: Turn) -> None:
        if not self._is_end(turn):
            self._transfers.receive(turn)
        self._writer.switch(self._writer.autograd, label="backward hand-over")
        if self._is_end(turn):
            self._write_end(self._parts.backward(None, turn.gradients), "head")

    def _end_backward(self, turn: Turn) -> None:
        if self._is_begin(turn):
            self._write_end(self._parts.embedding.backward, "embedding")
        self._reduce_root(turn)
        self._writer.switch(self._writer.main, label="forward hand-over")
        if not self._is_begin(turn):
            self._transfers.send(turn)

    def _write_layer(self, number: int, steps: tuple[Step, ...], way: str) -> None:
        """Write the *steps* that go *way* through layer *number*; equal stretches are pasted.

        A stretch ends with the layer, or where the gradients of a step fill a bucket.
        """
        part, start = f"{LAYER}{number}", 0
        if self._is_reducing and not self._is_reduced_whole:
            for place, step in enumerate(steps):
                if not step.parameters:
                    continue
                reductions = self._reductions_of(step)
                active = reductions.active
                if active is not None and active.is_issued_by(step.parameters):
                    self._write_stretch(number, steps, slice(start, place + 1), way)
                    start = place + 1
                reductions.note(step.parameters, part)
        if start < len(steps):
            self._write_stretch(number, steps, slice(start, len(steps)), way)

    def _write_stretch(
        self, number: int, steps: tuple[Step, ...], stretch: slice, way: str
    ) -> None:
        part = f"{LAYER}{number}"
        key = (way, self._kind_of[number], len(steps), stretch.start, stretch.stop)
        write = partial(self._write_steps, steps[stretch], part + "/")
        self._note_use(part, self._repetition.write(key, write, naming=LayerNaming(number)))
        self._repetition.resume()

    def _write_steps(self, steps: Sequence[Step], prefix: str) -> int | None:
        """Write *steps*; the first task of one of their kernels."""
        tasks = [*map(partial(self._write_step, prefix=prefix), steps)]
        self._capture(is_captured=False)
        return next((task for task in tasks if task is not None), None)

    def _write_step(self, step: Step, prefix: str) -> int | None:
        if self._run.captures_layers:
            # Shapes after the router change with every micro-batch, so they cannot be captured.
            self._capture(is_captured=not any(word in step.label for word in _UNCAPTURED))
        return self._steps.write(step, prefix=prefix)

    def _capture(self, *, is_captured: bool) -> None:
        """Begin or end a captured stretch; steps of one stretch are one graph."""
        if is_captured is not self._is_capturing:
            self._is_capturing = is_captured
            self._writer.capture(is_captured=is_captured)

    def _write_end(self, steps: tuple[Step, ...], part: str) -> None:
        """Write *steps* of the embedding or the head."""
        for step in steps:
            self._note_use(part, self._steps.write(step, prefix=""))
            if step.parameters and not self._is_reduced_whole:
                self._reductions_of(step).note(step.parameters, part)

    def _note_use(self, part: str, task: int | None) -> None:
        """Note that *task* works on *part*; only the first such task waits for the weights."""
        if task is not None:
            self._first_task.setdefault(part, task)

    def _reductions_of(self, step: Step) -> Reductions:
        is_separate = step.is_expert and self._run.has_separate_experts
        return self._experts if is_separate else self._dense

    @property
    def _is_reduced_whole(self) -> bool:
        """Whether gradients are reduced one layer at a time, because weights are gathered so."""
        return self._gathering.stream is not None and self._dense.active is not None

    def _reduce(self, reductions: Reductions, elements: int) -> None:
        """Reduce the gradients of a sharded layer; without overlap, compute waits for it."""
        active = reductions.active
        if active is None or not elements:
            return
        active.add(elements)
        if not self._run.overlaps_reduction:
            self._writer.hold(self._writer.compute, *active.tasks[-1:])

    def _needs_cast(self, number: int) -> bool:
        """Whether weights of layer *number* must be cast for this micro-batch.

        A quantised copy is kept while the weights are; autocast drops its own.
        """
        is_dropped = self._gathering.stream is not None and not self._gathering.is_kept
        is_new = number not in self._cast_layers
        self._cast_layers.add(number)
        return is_new or is_dropped or self._spec.training.is_autocast

    def _use_layer(self, number: int, following: int) -> None:
        """Gather layer *number*, and prefetch the *following* one."""
        if self._gathering.stream is None:
            return
        pairs = [(self._gathering, self._gathered_parameters)]
        if self._gathering_experts.stream is not None:
            pairs.append((self._gathering_experts, self._gathered_experts))
        for gathering, size_of in pairs:
            gathering.gather(f"{LAYER}{number}", size_of(number))
            if following in self._kind_of and self._run.overlaps_gathers:
                gathering.gather(f"{LAYER}{following}", size_of(following))
        for gathering, size_of in pairs:
            gathering.use(f"{LAYER}{number}", size_of(number))

    def _release(self) -> None:
        for gathering in (self._gathering, self._gathering_experts):
            gathering.release()

    def _gathered_parameters(self, number: int) -> int:
        shape = self._shapes.of(number)
        return sum(shape.tensors) if self._run.has_separate_experts else shape.all_parameters

    def _gathered_experts(self, number: int) -> int:
        return sum(self._shapes.of(number).expert_tensors)

    def _add_reductions(self, reductions: Reductions, stream: OpenLane, slot: Slot) -> None:
        reductions.last = build_reduction(self._run, self._writer, stream, slot)
        if self._spec.parallel.sharding.divides_gradients and self._layout.pp == 1:
            reductions.early = build_reduction(self._run, self._writer, stream, slot)

    def _add_group_streams(self) -> dict[int, OpenLane]:
        """The streams of the groups that the steps of a layer communicate in."""
        layout, spec = self._layout, self._spec
        is_ring = spec.parallel.cp_kind is ContextKind.RING
        has_experts = spec.model.has_experts
        slots = {
            Slot.TENSOR: layout.tp > 1,
            Slot.CONTEXT: layout.cp > 1 and not is_ring,
            Slot.RING_OUT: layout.cp > 1 and is_ring,
            Slot.RING_IN: layout.cp > 1 and is_ring,
            Slot.EXPERTS: has_experts and layout.ep > 1,
            Slot.EXPERT_TENSOR: has_experts and layout.etp > 1,
        }
        return {
            slot: self._writer.add_lane(slot.stream_name)
            for slot, is_used in slots.items()
            if is_used
        }
