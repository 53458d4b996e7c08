"""Primitives about the order of kernels and collectives: overlapped, or by priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.replay import replay
from perfmodel.extensions.whatif.drafts import ProgramDraft, edit_programs
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.recosting import bytes_of
from perfmodel.extensions.whatif.selection import LaneWord, Selection
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, duration_of
from perfmodel.graph.program import Dependency, read_dependencies

RECORDED = "recorded traces"


def prioritise(job: JobGraph, selection: Selection, *, update: LabelPattern) -> JobGraph:
    """Collectives run by when they are needed, and the forward pass waits for its own.

    The collective that comes last is needed first. Tasks like *update* are done piece by piece
    after the collectives. In a recording of several steps the forward pass is that of the next
    step; in a job that repeats, of the next iteration.
    """
    updates = _update_selection(job, update)
    selection.check_found(job)
    updates.check_found(job)
    ready = _ready(job, selection)

    def edit(program: ProgramDraft) -> None:
        own = {
            task: ready[_rendezvous(job, program.rank, task)] for task in program.find(selection)
        }
        if own:
            _prioritise(program, own, program.find(updates), is_repeated=not is_recorded)

    is_recorded = job.facts.source == RECORDED
    return edit_programs(job, edit)


def _update_selection(job: JobGraph, update: LabelPattern) -> Selection:
    """Tasks in a range of the optimizer where the recording has one, else all like *update*."""
    # An embedding whose gradient is applied in its backward kernel is called after its optimizer.
    ranged = Selection(LabelPattern("range:Optimizer.step"), LaneWord.DEVICE)
    if any(mask.any() for _, mask, _ in ranged.by_program(job)):
        return ranged
    return Selection(update)


def _rendezvous(job: JobGraph, rank: int, task: int) -> tuple[int, int]:
    """Group and sequence of a collective."""
    program = job.program_of(rank)
    return int(job.rank_group[rank, program.slot[task]]), int(program.sequence[task])


@dataclass(frozen=True, slots=True)
class _Ready:
    """When the last member of a collective could begin, and how long the longest takes."""

    at_ns: int
    length_ns: int


def _ready(job: JobGraph, selection: Selection) -> dict[tuple[int, int], _Ready]:
    """By group and sequence, in one pass; all ranks must choose the same order."""
    end_ns = replay(job, stated_durations(job)).last.end_ns[:, 0].tolist()
    ready: dict[tuple[int, int], _Ready] = {}
    for rank, first in enumerate(job.rank_rows()[: job.rank_count].tolist()):
        program = job.program_of(rank)
        after = read_dependencies(program)
        for task in selection.tasks(job, program):
            key = _rendezvous(job, rank, task)
            ends = (
                end_ns[first + dep.task] + dep.lag_ns for dep in after[task] if not dep.distance
            )
            known = ready.get(key, _Ready(0, 0))
            length_ns = duration_of(job.ops[int(program.op[task])])
            ready[key] = _Ready(max(known.at_ns, *ends, 0), max(known.length_ns, length_ns))
    return ready


@dataclass(frozen=True, slots=True)
class _TrainingStep:
    """The collectives and updates of a step, and the kernels of the next forward pass."""

    collectives: list[int]
    updates: list[int]
    forward: list[int]


def _prioritise(
    program: ProgramDraft, ready: dict[int, _Ready], updates: Sequence[int], *, is_repeated: bool
) -> None:
    """Reorder the collectives, split the update, and let forward wait for its own parameters."""
    updates = [one for one in updates if program.kind_of(one).is_device]
    if not updates:
        raise ScenarioError("no update runs on the device, so no task can wait for less.")
    steps = _split_steps(program, list(ready), updates)
    if len(steps) > 1 and is_repeated:
        raise ScenarioError(
            "an update runs before kernels that a collective waits for, so the iteration has no "
            "single forward pass. Narrow `update` to the last update."
        )
    if len(steps) < 2 and not is_repeated:
        raise ScenarioError(
            "the recording has one step, and what this gains shows in the forward pass of the "
            "next one. Record two steps or more."
        )
    sizes = {one: bytes_of(program.op(one)) for one in ready}
    if not all(sizes.values()):
        raise ScenarioError("a collective does not say its bytes. Narrow the pattern.")
    lengths_ns = {one: program.duration_ns(one) for one in updates}
    # What the updates waited for no longer delays the forward pass after them.
    program.remove(updates, with_launches=True, keep_waits=False)
    for step in steps:
        total_ns = sum(lengths_ns[one] for one in step.updates)
        pieces = _reorder(program, _priority_order(program, step, ready), sizes, total_ns)
        _await_pieces(program, step.forward, pieces, sizes, distance=int(is_repeated))


def _reorder(
    program: ProgramDraft, order: Sequence[int], sizes: dict[int, float], total_ns: int
) -> dict[int, int]:
    """Put collectives in *order*, each followed by its piece of the update."""
    if not order:
        return {}
    lane = program.tasks[order[0]].lane
    if any(program.tasks[one].lane != lane for one in order):
        raise ScenarioError("collectives of several streams have no order. Narrow the pattern.")
    of_lane, taken = program.lane_tasks[lane], set(order)
    behind = of_lane[max(of_lane.index(one) for one in order) + 1 :]
    ahead = [one for one in of_lane[: len(of_lane) - len(behind)] if one not in taken]
    places = sorted(program.tasks[one].order for one in order)
    program.lane_tasks[lane] = list(ahead)
    pieces = {}
    for place, number in zip(places, order, strict=True):
        program.tasks[number].order = place
        program.lane_tasks[lane].append(number)
        share_ns = round(total_ns * sizes[number] / sum(sizes[one] for one in order))
        op = Fixed("update", share_ns, Provenance.ASSUMED)
        [pieces[number]] = program.insert([program.new_task(lane, op, "update piece")])
    program.lane_tasks[lane] += behind
    return pieces


def _await_pieces(
    program: ProgramDraft,
    forward: Sequence[int],
    pieces: dict[int, int],
    sizes: dict[int, float],
    *,
    distance: int,
) -> None:
    """Stretches of the *forward* pass wait for the pieces they use, the last made first."""
    if not pieces or not forward:
        return
    used = sorted(pieces, reverse=True)
    needed = list(accumulate(sizes[one] for one in used))
    lengths = [program.duration_ns(number) for number in forward]
    starts = [end - own for end, own in zip(accumulate(lengths), lengths, strict=True)]
    for number, start_ns in zip(forward, starts, strict=True):
        share = start_ns / max(sum(lengths), 1) * needed[-1]
        place = min(int(np.searchsorted(needed, share, side="right")), len(used) - 1)
        own = Dependency(pieces[used[place]], distance=distance)
        program.tasks[number].after.append(own)


def _split_steps(
    program: ProgramDraft, collectives: Sequence[int], updates: Sequence[int]
) -> list[_TrainingStep]:
    """Steps along the lane of the updates: kernels that collectives wait for, then updates.

    The forward pass of the next step is between its updates and its first such kernel. Of a
    single step it is everything before that kernel.
    """
    lane = program.tasks[updates[0]].lane
    of_lane, is_update = program.lane_tasks[lane], set(updates)
    place_of = {number: place for place, number in enumerate(of_lane)}
    carried = {number: _last_source(program, number, place_of) for number in collectives}
    sources = sorted({place for place in carried.values() if place is not None})
    if not sources:
        raise ScenarioError("no collective waits for a kernel, so no forward pass is known.")
    updated = sorted(place_of[one] for one in updates if one in place_of)
    bounds = [0]
    for before, after in pairwise(sources):
        if between := [place for place in updated if before < place < after]:
            bounds.append(between[-1] + 1)
    bounds.append(len(of_lane))
    if len(bounds) == 2:
        forward = [one for one in of_lane[: sources[0]] if one not in is_update]
        return [_TrainingStep(list(collectives), list(updates), forward)]
    steps = []
    for low, high in pairwise(bounds):
        following = next((place for place in sources if place >= high), None)
        own = [one for one, place in carried.items() if place is not None and low <= place < high]
        changed = [of_lane[place] for place in updated if low <= place < high]
        forward = [] if following is None else of_lane[high:following]
        steps.append(_TrainingStep(own, changed, list(forward)))
    return steps


def _last_source(program: ProgramDraft, number: int, place_of: dict[int, int]) -> int | None:
    """The place of the last kernel that a collective waits for."""
    places = [place_of[dep.task] for dep in program.tasks[number].after if dep.task in place_of]
    return max(places, default=None)


def _priority_order(
    program: ProgramDraft, step: _TrainingStep, ready: dict[int, _Ready]
) -> list[int]:
    """The collectives as a stream takes them: the last made of those that are ready."""
    left = sorted(step.collectives, key=lambda one: program.tasks[one].order)
    place = {number: index for index, number in enumerate(left)}
    order, now_ns = [], 0
    while left:
        free = [one for one in left if ready[one].at_ns <= now_ns]
        if not free:
            now_ns = min(ready[one].at_ns for one in left)
            continue
        taken = max(free, key=place.__getitem__)
        now_ns += ready[taken].length_ns
        order.append(taken)
        left.remove(taken)
    return order
