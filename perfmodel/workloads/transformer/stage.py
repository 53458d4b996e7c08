"""StageWriter: the program of the ranks of one pipeline stage.

The main thread issues forwards, transfers and the optimizer; the autograd
thread issues backwards and the reductions of gradients, while the main thread waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.ops import Pass
from perfmodel.graph.program import LaneKind, Program
from perfmodel.stacks.stack import FrameworkBehaviour, Overlap
from perfmodel.workloads.eager import EagerWriter, Stream, issuing_under
from perfmodel.workloads.feeding import feed_batch
from perfmodel.workloads.reduction import BucketFill, GradientReduction, Replicas
from perfmodel.workloads.repetition import KnownStretches, Repetition, Stateful
from perfmodel.workloads.transformer.ends import build_embedding_steps, build_head_steps
from perfmodel.workloads.transformer.finishing import FinishWriter
from perfmodel.workloads.transformer.gathering import LayerGathering, WeightsReady
from perfmodel.workloads.transformer.layers import LayerKind, LayerKinds
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Step, StepWriter, Turn, build_schedule
from perfmodel.workloads.transformer.shapes import LayerShapes, end_parameters
from perfmodel.workloads.transformer.slots import Slot
from perfmodel.workloads.transformer.spec import ContextKind
from perfmodel.workloads.transformer.transfers import Transfers

_ROOT = "embedding and head"
_LAYER = "layer "
"""What labels of a layer begin with, before its number and a slash."""


@dataclass(frozen=True, slots=True)
class _LayerNaming:
    """Labels of layers count from the *first* one of a stretch."""

    first: int

    def take_off(self, label: str) -> str:
        """*label* with its layer counted from the first."""
        number, slash, rest = label.removeprefix(_LAYER).partition("/")
        if not (slash and label.startswith(_LAYER)):
            return label
        return f"{_LAYER}{int(number) - self.first}/{rest}"

    def put_on(self, label: str) -> str:
        """*label* with its layer counted from the model's first."""
        return _LayerNaming(-self.first).take_off(label)


class StageParts:
    """What all stages of runs are made of, and what was written of them before.

    The runs differ in the number of micro-batches only, and none has just one.
    """

    def __init__(self, run: TransformerRun) -> None:
        self.layers = LayerKinds(run)
        self.embedding = build_embedding_steps(run)
        self.head = build_head_steps(run)
        self.known = KnownStretches()
        self._number_of_kinds: dict[tuple[LayerKind, ...], int] = {}

    def number_of_kinds(self, layers: Sequence[int]) -> int:
        """The same number for *layers* that are of the same kinds, one by one."""
        kinds = tuple([self.layers.steps(number).kind for number in layers])
        return self._number_of_kinds.setdefault(kinds, len(self._number_of_kinds))


@dataclass(slots=True)
class _Reductions:
    """Reductions over one set of ranks: of the last micro-batch, of earlier ones, and the active.

    *ready* knows the kernels that use the weights whose gradients these are.
    """

    ready: WeightsReady
    last: GradientReduction | None = None
    early: GradientReduction | None = None
    active: GradientReduction | None = None

    def note(self, elements: int, part: str) -> None:
        """Put gradients of *part* that were just made into the bucket being filled."""
        if self.active is None:
            return
        if self.active is self.last:
            self.ready.note_bucket(part, self.active.fill.closed)
        self.active.add(elements)

    def finish(self) -> None:
        """Reduce what is left."""
        for reduction in (self.early, self.last):
            if reduction is not None:
                reduction.finish()


class StageWriter:
    """Writes one program of *run*, made of *parts*; use it once."""

    def __init__(
        self, program: ProgramBuilder, run: TransformerRun, parts: StageParts, *, stage: int
    ) -> None:
        self._run = run
        spec, layout = run.spec, run.layout
        self._program, self._spec, self._layout = program, spec, layout
        self._stage = stage
        self._is_first, self._is_last = stage == 0, stage == layout.pp - 1
        self._runs = layout.layer_runs(spec.model.layers, stage=stage)
        self._layer_count = sum(len(run) for run in self._runs)
        self._turns = build_schedule(
            stage=stage,
            stages=layout.pp,
            micro_batches=layout.micro_batches,
            runs=layout.interleaving,
        )
        self._layers, self._embedding, self._head = parts.layers, parts.embedding, parts.head
        self._kinds = [parts.number_of_kinds(layers) for layers in self._runs]
        self._shapes = LayerShapes(spec.model, layout)
        self._root_size = end_parameters(spec.model, layout, stage=stage)
        self._trained_root = 0 if spec.training.adapters_only else self._root_size
        self._writer = EagerWriter(program, issuing_under(run.stack))
        self._steps = StepWriter(self._writer, self._add_group_streams())
        self._data = self._add_stream("data stream") if layout.weight_copies > 1 else None
        self._transfers = Transfers(run, self._writer, self._steps, stage=stage)
        self._ready = WeightsReady()
        self._dense = _Reductions(self._ready)
        self._experts = _Reductions(WeightsReady(first_task=self._ready.first_task))
        self._gathering: LayerGathering | None = None
        self._build_sharing()
        self._cast_layers: set[int] = set()
        states: list[Stateful] = [self._writer, self._steps]
        if self._gathering is not None:
            states.append(self._gathering)
        self._repetition = Repetition(program, states, parts.known)

    def write(self) -> Program:
        """The program."""
        writer = self._writer
        if self._is_first or self._is_last:
            sequences = self._layout.micro_batch * self._layout.micro_batches
            tokens = sequences * self._spec.sequence_length // self._layout.cp
            size_bytes = tokens * DType.INT64.size_bytes
            feed_batch(writer, self._program, section=self._spec.input, size_bytes=size_bytes)
        finish = FinishWriter(writer, self._run)
        layers = [number for run in self._runs for number in run]
        groups = [self._tensors(number) for number in layers]
        groups += [(self._trained_root,)] if self._trained_root else []
        experts = [tensors for number in layers if (tensors := self._expert_tensors(number))]
        first_task = finish.zero_gradients(groups, experts)
        for turn in self._turns:
            self._take(turn)
        if self._is_first or self._is_last:
            finish.reduce_tied_weight(is_sole_end=self._is_first and self._is_last)
        for reductions in (self._dense, self._experts):
            reductions.finish()
        finish.step(groups, experts)
        for reductions in (self._dense, self._experts):
            self._gather_updated(finish, reductions, first_task)
        if self._spec.sync_each_iteration:
            last = writer.compute.last_task
            writer.block([] if last is None else [last], label="loss/read on the host")
        return writer.finish()

    def _gather_updated(
        self, finish: FinishWriter, reductions: _Reductions, first_task: int
    ) -> None:
        """Gather the weights of *reductions*, and let the next iteration wait for them."""
        gathers, ready = finish.gather_weights(reductions.last), reductions.ready
        if not self._overlaps(Overlap.PARAMETER_GATHER):
            ready = WeightsReady(users={number: [first_task] for number in gathers})
        for task, gather in ready.iter_waits(gathers):
            self._program.add_dependency(task, Dependency(gather, distance=1))

    def _tensors(self, number: int) -> tuple[int, ...]:
        """Trained tensors of layer *number* that the data-parallel group reduces."""
        shape, training = self._shapes.of(number), self._spec.training
        if training.adapters_only:
            return shape.adapter_tensors(training)
        return shape.tensors + (() if self._run.has_experts_apart else shape.expert_tensors)

    def _expert_tensors(self, number: int) -> tuple[int, ...]:
        """Tensors of layer *number* that only ranks with the same experts reduce."""
        return self._shapes.of(number).expert_tensors if self._run.has_experts_apart else ()

    def _layer_size(self, number: int) -> int:
        return self._shapes.of(number).all_parameters

    @property
    def _is_reducing(self) -> bool:
        return self._dense.active is not None or self._experts.active is not None

    def _take(self, turn: Turn) -> None:
        """Write *turn*; equal ones, which reduce nothing, are written once."""
        is_forward = turn.direction is Pass.FORWARD
        is_final = turn.micro_batch == self._layout.micro_batches - 1
        if not is_forward:
            for reductions in (self._dense, self._experts):
                reductions.active = reductions.last if is_final else reductions.early
        write = partial(self._forward if is_forward else self._backward, turn)
        # The first pass also notes which kernels use which weights first.
        if turn.micro_batch == 0 if is_forward else self._is_reducing:
            write()
            return
        key = (is_forward, self._kinds[turn.run], self._is_begin(turn), self._is_end(turn))
        layers = self._runs[turn.run]
        self._repetition.write(key, write, naming=_LayerNaming(layers[0] if layers else 0))

    def _is_begin(self, turn: Turn) -> bool:
        return self._is_first and turn.run == 0

    def _is_end(self, turn: Turn) -> bool:
        return self._is_last and turn.run == self._layout.interleaving - 1

    def _forward(self, turn: Turn) -> None:
        if not self._is_begin(turn):
            self._transfers.receive(Slot.FORWARD_IN, "receive forward")
        self._use_root()
        if self._is_begin(turn):
            self._write_end(self._embedding.forward, "embedding")
        for number in self._runs[turn.run]:
            self._use_layer(number, number + 1)
            layer = self._layers.steps(number)
            steps = (*layer.casts, *layer.forward) if self._needs_cast(number) else layer.forward
            self._write_layer(number, steps, Pass.FORWARD)
            self._release_layer()
        if self._is_end(turn):
            self._write_end(self._head.forward, "head")
        else:
            self._transfers.send(Slot.FORWARD_OUT, "send forward")

    def _backward(self, turn: Turn) -> None:
        if not self._is_end(turn):
            self._transfers.receive(Slot.BACKWARD_IN, "receive backward")
        self._writer.hand_over(self._writer.autograd, label="backward")
        if self._is_end(turn):
            self._write_end(self._head.backward, "head")
        for number in reversed(self._runs[turn.run]):
            self._use_layer(number, number - 1)
            layer = self._layers.steps(number)
            steps = (*layer.recompute, *layer.backward)
            self._write_layer(number, steps, Pass.BACKWARD)
            self._release_layer(reduced=number)
        if self._is_begin(turn):
            self._write_end(self._embedding.backward, "embedding")
        if self._is_reduced_whole and self._trained_root:
            self._reduce(self._trained_root)
        self._writer.hand_over(self._writer.main, label="forward")
        if not self._is_begin(turn):
            self._transfers.send(Slot.BACKWARD_OUT, "send backward")

    def _write_layer(self, number: int, steps: tuple[Step, ...], direction: Pass) -> None:
        """Write *steps* of layer *number*; equal stretches of equal layers are written once.

        A stretch ends with the layer, or where the gradients of a step fill a bucket.
        """
        part, start = f"{_LAYER}{number}", 0
        if self._is_reducing and not self._is_reduced_whole:
            for place, step in enumerate(steps):
                if step.parameters and self._fills_bucket(step):
                    self._write_stretch(number, steps, slice(start, place + 1), direction)
                    start = place + 1
                if step.parameters:
                    self._reductions_of(step).note(step.parameters, part)
        if start < len(steps):
            self._write_stretch(number, steps, slice(start, len(steps)), direction)

    def _write_stretch(
        self, number: int, steps: tuple[Step, ...], stretch: slice, direction: Pass
    ) -> None:
        kind, part = self._layers.steps(number).kind, f"{_LAYER}{number}"
        key = (direction.value, kind, len(steps), stretch.start, stretch.stop)
        write = partial(self._write_steps, steps[stretch], part + "/")
        task = self._repetition.write(key, write, naming=_LayerNaming(number))
        self._ready.note_use(part, task)

    def _write_steps(self, steps: tuple[Step, ...], prefix: str) -> int | None:
        """Write *steps*; the first task of a kernel that works on them."""
        tasks = [self._steps.write(step, prefix=prefix) for step in steps]
        return next((task for task in tasks if task is not None), None)

    def _write_end(self, steps: tuple[Step, ...], part: str) -> None:
        """Write *steps* of the embedding or the head."""
        for step in steps:
            self._ready.note_use(part, self._steps.write(step, prefix=""))
            if step.parameters and not self._is_reduced_whole:
                self._reductions_of(step).note(step.parameters, part)

    def _fills_bucket(self, step: Step) -> bool:
        active = self._reductions_of(step).active
        return active is not None and active.is_issued_by(step.parameters)

    def _reductions_of(self, step: Step) -> _Reductions:
        is_apart = step.is_expert and self._run.has_experts_apart
        return self._experts if is_apart else self._dense

    @property
    def _is_reduced_whole(self) -> bool:
        """Whether gradients are reduced a layer at a time, because weights are gathered so."""
        return self._gathering is not None and self._dense.active is not None

    def _needs_cast(self, number: int) -> bool:
        """Whether weights of layer *number* must be cast for this micro-batch.

        A quantised copy is kept while the weights are; autocast forgets its own.
        """
        is_forgotten = self._gathering is not None and not self._gathering.is_kept
        if self._spec.training.is_autocast or is_forgotten:
            return True
        is_new = number not in self._cast_layers
        self._cast_layers.add(number)
        return is_new

    def _reduce(self, elements: int) -> None:
        """Reduce the gradients of a sharded layer; without overlap, compute waits for it."""
        active = self._dense.active
        assert active is not None
        active.add(elements)
        if not self._overlaps(Overlap.GRADIENT_REDUCTION):
            self._writer.hold(self._writer.compute, active.tasks[-1:])

    def _overlaps(self, overlap: Overlap) -> bool:
        return self._run.overlaps(overlap)

    def _build_sharing(self) -> None:
        layout, training = self._layout, self._spec.training
        sharding = self._spec.parallel.sharding
        is_kept = layout.pp > 1
        is_early = sharding.divides_gradients and not is_kept
        if self._run.has_experts_apart and layout.expert_copies > 1:
            stream = self._add_stream("expert data stream")
            self._experts.last = self._build_reduction(stream, Slot.EXPERT_DATA)
            if is_early:
                self._experts.early = self._build_reduction(stream, Slot.EXPERT_DATA)
        if self._data is None:
            return
        self._dense.last = self._build_reduction(self._data, Slot.DATA)
        if is_early:
            self._dense.early = self._build_reduction(self._data, Slot.DATA)
        if sharding.divides_weights:
            is_ahead = self._overlaps(Overlap.PARAMETER_GATHER)
            self._gathering = LayerGathering(
                self._writer,
                self._data,
                training.precision,
                is_ahead,
                is_kept,
                self._run.stack.has(FrameworkBehaviour.COPIED_GATHERS),
            )

    def _build_reduction(self, stream: Stream, slot: Slot) -> GradientReduction:
        layout, training = self._layout, self._spec.training
        sharding = self._spec.parallel.sharding
        is_divided = sharding.divides_state
        # Gathered weights are reduced a layer at a time: every layer fills its bucket.
        is_by_layer = sharding.divides_weights
        return GradientReduction(
            self._writer,
            stream,
            slot,
            training.gradient_dtype,
            BucketFill(1 if is_by_layer else training.bucket_size),
            CollectiveKind.REDUCE_SCATTER if is_divided else CollectiveKind.ALL_REDUCE,
            not (is_by_layer or self._overlaps(Overlap.GRADIENT_REDUCTION)),
            Replicas(Slot.REPLICA, layout.shard_ranks)
            if layout.replicas > 1 and slot is Slot.DATA
            else None,
        )

    def _use_root(self) -> None:
        if self._gathering is not None and self._root_size:
            self._gathering.gather(_ROOT, self._root_size)
            self._gathering.use(_ROOT, self._root_size)

    def _use_layer(self, number: int, following: int) -> None:
        if self._gathering is None:
            return
        self._gathering.gather(f"layer {number}", self._layer_size(number))
        is_held = any(following in run for run in self._runs)
        if is_held and self._gathering.is_ahead:
            self._gathering.gather(f"layer {following}", self._layer_size(following))
        self._gathering.use(f"layer {number}", self._layer_size(number))

    def _release_layer(self, *, reduced: int | None = None) -> None:
        if self._gathering is None:
            return
        self._gathering.release()
        if reduced is not None and self._is_reduced_whole:
            self._reduce(sum(self._tensors(reduced)))

    def _add_stream(self, name: str) -> Stream:
        return self._writer.add_stream(name, LaneKind.COMMUNICATION)

    def _add_group_streams(self) -> dict[Slot, Stream]:
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
            slot: self._add_stream(slot.stream_name) for slot, is_used in slots.items() if is_used
        }
