"""Schedules: the order in which a pipeline stage takes its micro-batches.

1F1B: as many forwards ahead as stages follow, then one forward, one backward, then it drains.
Interleaved, a stage holds several runs of layers; micro-batches go round in groups of as many as
stages, and the bubble shrinks with the length of a run (Narayanan et al., arXiv 2104.04473).

Zero-bubble schedules compute gradients of weights separately from those of inputs, because no other
stage waits for them. ZB-H1 has the order of 1F1B, and stage s is s gradients of weights behind:
a stage of p idles (p - 1) (F + B - W), with the memory of 1F1B. ZB-H2 starts with twice as many
forwards ahead and is twice as many gradients of weights behind: it idles (p - 1) (F + B - 2 W),
with twice the memory (Qi et al., arXiv 2401.10241).

In V schedules a stage holds two runs, of which the second comes back: run 0 of stage 0 is the
first of the model and run 1 of stage 0 the last. ZB-V splits every backward turn (Qi et al., arXiv
2405.15362); DualPipeV only those at both ends, and takes a forward and a whole backward turn
together in between (DeepSeek, DualPipe "cut in half"). DualPipe itself, with a second copy of the
weights, does on 2 p stages what DualPipeV does on p with twice the data parallelism.

Where the layout says so, a forward and a backward turn overlap: the exchange of one runs while the
other computes. Their layers are cut after every exchange of tokens and issued in turns, the
backward layer first. So combine gradients travel during attention, tokens during the experts'
backward pass, token gradients during the experts' forward pass, and results during the backward
pass of attention. Source of the order: the combined 1F1B schedule of Megatron-Core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import zip_longest

from perfmodel.graph.ops import Pass
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE
from perfmodel.workloads.eager import Joining, Step
from perfmodel.workloads.transformer.layout import Layout, Slot


class Gradients(Enum):
    """What a backward turn computes."""

    ALL = "all"
    INPUTS = "inputs"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass over one micro-batch, through run *run* of the stage's layers."""

    direction: Pass
    micro_batch: int
    run: int = 0
    gradients: Gradients = Gradients.ALL

    @property
    def is_forward(self) -> bool:
        """Whether it is a forward pass."""
        return self.direction is Pass.FORWARD

    @property
    def ends_use(self) -> bool:
        """Whether the activations of its micro-batch are free afterwards."""
        return not self.is_forward and self.gradients is not Gradients.INPUTS


def build_schedule(layout: Layout, stage: int) -> tuple[Turn, ...]:
    """The turns of *stage*, in order; interleaved, the stages divide the micro-batches."""
    return tuple(ORDERS[layout.schedule](layout, stage))


def _iter_1f1b(layout: Layout, stage: int) -> Iterator[Turn]:
    total, ahead = layout.micro_batches * layout.interleaving, turns_ahead(layout, stage)
    for number in range(ahead):
        yield _turn(layout, Pass.FORWARD, number)
    for number in range(total):
        if ahead + number < total:
            yield _turn(layout, Pass.FORWARD, ahead + number)
        yield _turn(layout, Pass.BACKWARD, number)


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
            and held.is_forward
            and not after.is_forward
            and after.gradients is Gradients.ALL
            and after.micro_batch != held.micro_batch
        ):
            yield held, after
            held = next(turns, None)
        else:
            yield held, None
            held = after


def merge_layers(forward: Sequence[Step], backward: Sequence[Step]) -> list[Step]:
    """The steps of both layers in turns, each exchange joined by its own layer's next part."""
    merged: list[Step] = []
    ahead = _cut_at_exchanges(backward, Joining.GRADIENTS_OF_TOKENS)
    behind = _cut_at_exchanges(forward, Joining.TOKENS)
    for one, other in zip_longest(ahead, behind, fillvalue=()):
        merged += [*one, *other]
    return merged


def _cut_at_exchanges(steps: Iterable[Step], joining: Joining) -> list[list[Step]]:
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


def turns_ahead(layout: Layout, stage: int) -> int:
    """Forward turns of *stage* before its first backward one, without the one before it: 1F1B."""
    behind, total = layout.pp - stage - 1, layout.micro_batches * layout.interleaving
    # Beside another micro-batch a stage sends only at the end of both: one more is on its way to
    # every stage behind, and one more is in work.
    if layout.interleaving == 1:
        return min(2 * behind + 1 if layout.runs_beside else behind, total)
    if layout.micro_batches == layout.pp:
        return total
    ahead = 2 * behind + (layout.interleaving - 1) * layout.pp + layout.runs_beside
    return min(ahead, total)


def most_kept(layout: Layout, stage: int, sizes: Sequence[int]) -> int:
    """The most that *stage* keeps at a time for backward turns, if a micro-batch keeps *sizes*.

    Those are by run of layers. What gradients of weights need is counted as if it were everything.
    """
    kept = most = 0
    for turn in build_schedule(layout, stage):
        if turn.is_forward:
            kept += sizes[turn.run]
        most = max(most, kept)
        if turn.ends_use:
            kept -= sizes[turn.run]
    return most


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


def _iter_zb_h(layout: Layout, stage: int, *, factor: int) -> Iterator[Turn]:
    """ZB-H1, or with *factor* 2 ZB-H2."""
    count, late = layout.micro_batches, factor * stage
    ahead = min(factor * (layout.pp - stage - 1), count)
    for number in range(ahead):
        yield Turn(Pass.FORWARD, number)
    for number in range(count):
        if ahead + number < count:
            yield Turn(Pass.FORWARD, ahead + number)
        yield Turn(Pass.BACKWARD, number, 0, Gradients.INPUTS)
        if number >= late:
            yield Turn(Pass.BACKWARD, number - late, 0, Gradients.WEIGHTS)
    for number in range(max(count - late, 0), count):
        yield Turn(Pass.BACKWARD, number, 0, Gradients.WEIGHTS)


_Kind = tuple[str, int]
"""What a turn of a V schedule does (F forward, B gradients of inputs, W of weights, A of all), and
the run that it works on."""
F0, F1, B0, B1, W0, W1, A0, A1 = [(word, run) for word in "FBWA" for run in (0, 1)]
W = ("W", -1)
"""The gradients of weights that were put off first, whatever their run."""
_GRADIENTS = {
    "F": Gradients.ALL,
    "A": Gradients.ALL,
    "B": Gradients.INPUTS,
    "W": Gradients.WEIGHTS,
}


def _take_in_order(
    iter_kinds: Callable[[Layout, int], Iterator[_Kind]], layout: Layout, stage: int
) -> Iterator[Turn]:
    """Turns of these kinds, each of the next micro-batch; where there is none, it is left out."""
    taken: Counter[tuple[bool, int]] = Counter()
    put_off: list[tuple[int, int]] = []
    for word, run in iter_kinds(layout, stage):
        if word == "W":
            found = next((one for one in put_off if run in (one[0], -1)), None)
            if found is None:
                continue
            put_off.remove(found)
            of_run, number = found
        else:
            of_run, number = run, taken[word == "F", run]
            if number == layout.micro_batches:
                continue
            taken[word == "F", run] += 1
            put_off += [(run, number)] * (word == "B")
        direction = Pass.FORWARD if word == "F" else Pass.BACKWARD
        yield Turn(direction, number, of_run, _GRADIENTS[word])


def _iter_zb_v(layout: Layout, stage: int) -> Iterator[_Kind]:
    behind, count = layout.pp - stage, layout.micro_batches
    yield from [F0] * (2 * behind - 1)
    yield from [F1, F0] * stage
    yield from [F1, B1, W1] * behind
    yield from [F0, B0, W0, F1, B1, W1] * max(count - layout.pp, 0)
    yield from [B0, B1] * stage
    yield from [B0, W0] * behind
    yield from [W1] * count
    yield from [W0] * count


def _iter_dualpipe_v(layout: Layout, stage: int) -> Iterator[_Kind]:
    behind, count = layout.pp - stage - 1, layout.micro_batches
    yield from [F0] * (2 * behind)
    yield from [F0, F1] * (stage + 1)
    yield from [B1, W1, F1] * behind
    yield from [F0, A1, F1, A0] * max(count - 2 * layout.pp + stage + 1, 0)
    yield from [A1, F1, A0] * behind
    # Of the last backward turns of both runs, the second half leaves weights for later.
    yield from ([A1, A0] * (stage + 1))[: stage + 1]
    yield from ([B1, B0] * (stage + 1))[stage + 1 :]
    yield from [W, B0] * behind
    yield from [W] * (2 * count)


ORDERS: dict[str, Callable[[Layout, int], Iterator[Turn]]] = {
    DEFAULT_SCHEDULE: _iter_1f1b,
    "zb_h1": partial(_iter_zb_h, factor=1),
    "zb_h2": partial(_iter_zb_h, factor=2),
    "zb_v": partial(_take_in_order, _iter_zb_v),
    "dualpipe_v": partial(_take_in_order, _iter_dualpipe_v),
}
"""The turns of a stage, in order, by schedule of `stacks/schedules.yaml`."""
