"""What-if about buckets: gradients reduced in more or fewer pieces.

Buckets that follow each other in one group are joined until a bucket is full, and cut where they
are larger. All members of a group decide by the sizes alone, so that they keep making the same
calls. A bucket that only follows another on its lane may be joined to it; one whose dependencies
lead to the other's result may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import ceil

from collectives import Collective
from perfmodel.base.errors import GraphError, ScenarioError
from perfmodel.base.units import format_size
from perfmodel.graph.builder import Dependency
from perfmodel.graph.ops import Communication, duration_of
from perfmodel.graph.program import LaneKind, Program
from perfmodel.whatif.drafts import ProgramDraft
from perfmodel.whatif.recosting import OnMachine, retime
from perfmodel.whatif.selection import Pattern, Selection
from perfmodel.whatif.traffic import ALL_REDUCE, carry, collective_of
from perfmodel.whatif.transformation import Transformation

NOTHING = -1


def awaited_sequences(program: Program, collectives: Sequence[int]) -> dict[int, int]:
    """For each of *collectives* the last one of its slot that its dependencies lead to."""
    bounds, sources = program.dep_start.tolist(), program.dep_task.tolist()
    distances = program.dep_distance.tolist()
    waits = [
        [sources[row] for row in range(first, stop) if not distances[row]]
        for first, stop in pairwise(bounds)
    ]
    firsts = set(program.lane_start.tolist())
    before = {task: own if task in firsts else [*own, task - 1] for task, own in enumerate(waits)}
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        raise GraphError(
            "tasks of a rank wait for each other in a circle. Make the job again."
        ) from None
    awaited = {}
    for slot in sorted({int(program.slot[task]) for task in collectives}):
        # The last collective of the slot that has ended when a task has ended.
        reached = [NOTHING] * program.task_count
        for task in order:
            own = int(program.sequence[task]) if program.slot[task] == slot else NOTHING
            reached[task] = max([own, *(reached[source] for source in before[task])])
        for task in collectives:
            if program.slot[task] == slot:
                awaited[task] = max((reached[source] for source in waits[task]), default=NOTHING)
    return awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBuckets(OnMachine, Transformation):
    """Collectives like *match* carry about *size* each: small ones are joined, large ones cut."""

    size_bytes: int
    match: Pattern = ALL_REDUCE

    def __post_init__(self) -> None:
        OnMachine.__post_init__(self)
        if self.size_bytes < 1:
            raise ScenarioError(f"size: must be at least one byte, got {self.size_bytes}.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} that follow each other in a group are joined until "
                f"they carry {format_size(self.size_bytes)}; a joined one starts when the last of "
                "its parts could, and tasks that waited for a part wait for the whole."
            ),
            (
                "Larger ones are cut into equal pieces, whose gradients are made evenly by the "
                "kernels between the previous bucket and this one."
            ),
            self.cost_sentence,
        )

    def edit(self, program: ProgramDraft) -> None:
        """Join and cut the buckets of one program."""
        tasks = program.tasks
        found = sorted(
            program.find_collectives(Selection(self.match)),
            key=lambda number: (tasks[number].slot, tasks[number].order),
        )
        # For every collective the last kernel that the one before in its slot waited for.
        kernel_before: dict[int, int | None] = {}
        last: dict[int, int | None] = {}
        for number in found:
            slot = tasks[number].slot
            kernel_before[number] = last.get(slot)
            last[slot] = _last_kernel(program, number)
        for chunk in self._chunks(program, found):
            if len(chunk) > 1:
                self._join(program, chunk)
            elif _collective(program, chunk[0]).size_bytes > self.size_bytes:
                self._cut(program, chunk[0], kernel_before[chunk[0]])

    def _chunks(self, program: ProgramDraft, found: Sequence[int]) -> list[list[int]]:
        """Collectives to join: neighbours in their slot, alike, none waiting for another."""
        awaited = awaited_sequences(program.program, found)
        chunks: list[list[int]] = []
        filled_bytes = 0
        for number in found:
            size_bytes = _collective(program, number).size_bytes
            is_full = filled_bytes >= self.size_bytes
            if (
                chunks
                and not is_full
                and _are_alike(program, chunks[-1][-1], number)
                and awaited[number] < program.tasks[chunks[-1][0]].order[0]
            ):
                chunks[-1].append(number)
                filled_bytes += size_bytes
            else:
                chunks.append([number])
                filled_bytes = size_bytes
        return chunks

    def _join(self, program: ProgramDraft, chunk: Sequence[int]) -> None:
        last = chunk[-1]
        parts = [_collective(program, number) for number in chunk]
        whole = replace(parts[0], size_bytes=sum(part.size_bytes for part in parts))
        stated_ns = sum(duration_of(program.op(number)) for number in chunk)
        ratio = self._ratio(program, parts, [whole], last)
        new = retime(program.op(last), stated_ns * ratio, work=Communication(whole))
        program.set_op(last, new)
        program.merge(dict.fromkeys(chunk[:-1], last))

    def _cut(self, program: ProgramDraft, number: int, kernel_before: int | None) -> None:
        whole, task, op = _collective(program, number), program.tasks[number], program.op(number)
        count = -(-whole.size_bytes // self.size_bytes)
        piece = carry(whole, ratio=1 / count)
        ratio = self._ratio(program, [whole], [piece] * count, number) / count
        program.set_op(number, retime(op, duration_of(op) * ratio, work=Communication(piece)))
        pieces = [
            replace(
                task,
                order=(task.order[0], part - count),
                after=_waits_of_piece(program, number, kernel_before, share=(part + 1) / count),
            )
            for part in range(count - 1)
        ]
        program.insert(pieces, before=number)

    def _ratio(
        self,
        program: ProgramDraft,
        old: Sequence[Collective],
        new: Sequence[Collective],
        number: int,
    ) -> float:
        """How many times as long the *new* collectives take together as the *old*."""
        ranks, reference = program.members(program.tasks[number].slot), Communication(old[0])

        def together(collectives: Sequence[Collective]) -> float:
            works = [Communication(one) for one in collectives]
            return sum(self.time_ratio(reference, work, ranks) for work in works)

        return together(new) / together(old)


def _collective(program: ProgramDraft, number: int) -> Collective:
    return collective_of(program.op(number))


def _are_alike(program: ProgramDraft, first: int, second: int) -> bool:
    """Whether the collective *second* directly follows *first* and differs in size only."""
    one, other = program.tasks[first], program.tasks[second]
    ahead, behind = _collective(program, first), _collective(program, second)
    return (
        (one.slot, one.lane) == (other.slot, other.lane)
        and other.order[0] == one.order[0] + 1
        and (ahead.kind, ahead.dtype) == (behind.kind, behind.dtype)
        and ahead.byte_matrix is None
    )


def _waits_of_piece(
    program: ProgramDraft, number: int, kernel_before: int | None, *, share: float
) -> list[Dependency]:
    """What a piece waits for that needs the first *share* of the gradients of a bucket."""
    own, tasks = program.tasks[number].dependencies, program.tasks
    kernel = _last_kernel(program, number)
    if kernel is None or kernel_before is None or not kernel_before < kernel:
        return list(own)
    if tasks[kernel].lane != tasks[kernel_before].lane:
        return list(own)
    early = kernel_before + ceil((kernel - kernel_before) * share)
    launch = program.launch_of(early)
    lag_ns = max(dep.lag_ns for dep in own)
    launches = [] if launch is None else [Dependency(launch, lag_ns=lag_ns)]
    return [*launches, Dependency(early)]


def _last_kernel(program: ProgramDraft, number: int) -> int | None:
    """The last task on a compute lane that a collective waits for in this iteration."""
    kernels = [
        dep.task
        for dep in program.tasks[number].dependencies
        if not dep.distance and program.kind_of(dep.task) is LaneKind.COMPUTE
    ]
    return max(kernels, default=None)
