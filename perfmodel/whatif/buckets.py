"""What-ifs about buckets: gradients reduced in more or fewer pieces.

Buckets that follow each other in one group are poured together until a bucket
is full, and cut where they are larger. All members of a group decide by the
sizes alone, so that they keep making the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from collectives import Collective
from perfmodel.base.errors import GraphError, ScenarioError
from perfmodel.base.units import format_size
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication, Op, duration_of
from perfmodel.graph.program import PLAIN, LaneKind, Program
from perfmodel.whatif.cuda_graphs import launch_of, lone_launches
from perfmodel.whatif.job_draft import JobDraft, Ranks, edit_programs, retime
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.recosting import Effort, OnMachine
from perfmodel.whatif.selection import Pattern, Selection
from perfmodel.whatif.traffic import ALL_REDUCE, carry, collective_of

# Behind another on its lane it only comes later; through its dependencies it
# may need what the other brought, and then the two cannot be joined.


NOTHING = -1


def awaited_sequences(program: Program, collectives: Sequence[int]) -> dict[int, int]:
    """For each of *collectives* the last one of its slot that its dependencies lead to."""
    slots = sorted({int(program.slot[task]) for task in collectives})
    of_slot = {slot: _reached(program, slot) for slot in slots}
    waits = {}
    for task in collectives:
        reached = of_slot[int(program.slot[task])]
        waits[task] = max((reached[source] for source in _sources(program, task)), default=NOTHING)
    return waits


def _reached(program: Program, slot: int) -> list[int]:
    """The last collective of *slot* that has ended when a task has ended, by task."""
    reached = [NOTHING] * program.task_count
    is_first = np.isin(np.arange(program.task_count), program.lane_start)
    for task in topological_order(program):
        before = [reached[source] for source in _sources(program, task)]
        if not is_first[task]:
            before.append(reached[task - 1])
        own = int(program.sequence[task]) if program.slot[task] == slot != PLAIN else NOTHING
        reached[task] = max([own, *before])
    return reached


def topological_order(program: Program) -> list[int]:
    """The tasks of one iteration so that each comes after what it waits for."""
    lanes = program.lane_start
    waiting = np.bincount(
        np.repeat(np.arange(program.task_count), np.diff(program.dep_start))[
            program.dep_distance == 0
        ],
        minlength=program.task_count,
    )
    is_first = np.isin(np.arange(program.task_count), lanes)
    waiting[~is_first] += 1
    followers: list[list[int]] = [[] for _ in range(program.task_count)]
    for task in range(program.task_count):
        for source in _sources(program, task):
            followers[source].append(task)
        if not is_first[task]:
            followers[task - 1].append(task)
    counts = waiting.tolist()
    order = [task for task in range(program.task_count) if not counts[task]]
    for task in order:
        for follower in followers[task]:
            counts[follower] -= 1
            if not counts[follower]:
                order.append(follower)
    if len(order) < program.task_count:
        raise GraphError("tasks of a rank wait for each other in a circle. Make the job again.")
    return order


def _sources(program: Program, task: int) -> list[int]:
    rows = slice(program.dep_start[task], program.dep_start[task + 1])
    sources: list[int] = program.dep_task[rows][program.dep_distance[rows] == 0].tolist()
    return sources


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBuckets(OnMachine):
    """Collectives like *match* carry about *size* each: small ones join, large ones part."""

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
                "its parts could, and whoever waited for a part waits for the whole."
            ),
            (
                "Larger ones are cut into equal pieces, whose gradients are made evenly by the "
                "kernels between the bucket before and this one."
            ),
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        selection = Selection(self.match)
        selection.check_found(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            tasks = selection.collectives(job, program.program)
            waits = awaited_sequences(program.program, tasks)
            _Pouring(self, draft, program, waits).pour(tasks)

        return edit_programs(job, edit, assumptions=self.assumptions)


@dataclass(frozen=True, slots=True)
class _Pouring:
    """Buckets of one program being poured."""

    wish: ChangeBuckets
    draft: JobDraft
    program: ProgramDraft
    waits: Mapping[int, int]

    def pour(self, found: Sequence[int]) -> None:
        """Join and cut the collectives *found*."""
        before = self._kernels_before(found)
        for chunk in self._chunks(found):
            if len(chunk) > 1:
                self._join(chunk)
            elif self._collective(chunk[0]).size_bytes > self.wish.size_bytes:
                self._cut(chunk[0], before[chunk[0]])

    def _kernels_before(self, found: Sequence[int]) -> dict[int, int | None]:
        """For every collective the last kernel that the one before in its slot waited for."""
        before: dict[int, int | None] = {}
        last: dict[int, int | None] = {}
        for number in self._in_order(found):
            slot = self.program.tasks[number].slot
            before[number] = last.get(slot)
            last[slot] = self._last_kernel(number)
        return before

    def _in_order(self, found: Sequence[int]) -> list[int]:
        tasks = self.program.tasks
        return sorted(found, key=lambda number: (tasks[number].slot, tasks[number].order))

    def _chunks(self, found: Sequence[int]) -> list[list[int]]:
        """Collectives to join: neighbours in their slot, alike, none waiting for another."""
        chunks: list[list[int]] = []
        filled_bytes = 0
        for number in self._in_order(found):
            size_bytes = self._collective(number).size_bytes
            is_full = filled_bytes >= self.wish.size_bytes
            if chunks and not is_full and self._may_join(chunks[-1], number):
                chunks[-1].append(number)
                filled_bytes += size_bytes
            else:
                chunks.append([number])
                filled_bytes = size_bytes
        return chunks

    def _may_join(self, chunk: Sequence[int], second: int) -> bool:
        first = chunk[-1]
        one, other = self.program.tasks[first], self.program.tasks[second]
        alike = self._collective(first), self._collective(second)
        return (
            (one.slot, one.lane) == (other.slot, other.lane)
            and other.order[0] == one.order[0] + 1
            and (alike[0].kind, alike[0].dtype) == (alike[1].kind, alike[1].dtype)
            and alike[0].byte_matrix is None
            and self.waits[second] < self.program.tasks[chunk[0]].order[0]
        )

    def _join(self, chunk: Sequence[int]) -> None:
        parts = [self._collective(number) for number in chunk]
        whole = replace(parts[0], size_bytes=sum(part.size_bytes for part in parts))
        stated_ns = sum(duration_of(self._op(number)) for number in chunk)
        ratio = self._ratio(parts, [whole], chunk[-1])
        last = self.program.tasks[chunk[-1]]
        op = retime(self._op(chunk[-1]), stated_ns * ratio, work=Communication(whole))
        last.op = self.draft.op(op)
        gone = dict.fromkeys(chunk[:-1], chunk[-1])
        launches = lone_launches(self.program, gone)
        for number in gone:
            self.program.tasks[number].after = []
        self.program.redirect(gone)
        self.program.remove([*gone, *sorted(launches)])

    def _cut(self, number: int, kernel_before: int | None) -> None:
        whole = self._collective(number)
        count = -(-whole.size_bytes // self.wish.size_bytes)
        piece = carry(whole, ratio=1 / count)
        ratio = self._ratio([whole], [piece] * count, number) / count
        task = self.program.tasks[number]
        op = retime(
            self._op(number), duration_of(self._op(number)) * ratio, work=Communication(piece)
        )
        task.op = self.draft.op(op)
        pieces = [
            replace(
                task,
                order=(task.order[0], part - count),
                after=self._after(number, kernel_before, share=(part + 1) / count),
            )
            for part in range(count - 1)
        ]
        self.program.insert(pieces, before=number)

    def _after(self, number: int, kernel_before: int | None, *, share: float) -> list[Dependency]:
        """What a piece waits for that needs the first *share* of the gradients of a bucket."""
        own = self.program.tasks[number].dependencies
        kernel = self._last_kernel(number)
        if kernel is None or kernel_before is None or not kernel_before < kernel:
            return list(own)
        if self.program.tasks[kernel].lane != self.program.tasks[kernel_before].lane:
            return list(own)
        early = kernel_before + ceil((kernel - kernel_before) * share)
        launch = launch_of(self.program, early)
        lag_ns = max(dep.lag_ns for dep in own)
        launches = [] if launch is None else [Dependency(launch, lag_ns=lag_ns)]
        return [*launches, Dependency(early)]

    def _last_kernel(self, number: int) -> int | None:
        """The last task on a compute lane that a collective waits for."""
        lanes = self.program.lanes
        kernels = [
            dep.task
            for dep in self.program.tasks[number].dependencies
            if not dep.distance
            and lanes[self.program.tasks[dep.task].lane].kind is LaneKind.COMPUTE
        ]
        return max(kernels, default=None)

    def _op(self, number: int) -> Op:
        return self.draft.op_of(self.program, number)

    def _collective(self, number: int) -> Collective:
        return collective_of(self._op(number))

    def _ratio(self, old: Sequence[Collective], new: Sequence[Collective], number: int) -> float:
        """How many times as long the *new* collectives take together as the *old*."""
        job, slot = self.draft.job, self.program.tasks[number].slot
        ranks: Ranks = job.groups[int(job.rank_group[self.program.rank, slot])].ranks
        reference = Effort(Communication(old[0]), ranks)

        def together(collectives: Sequence[Collective]) -> float:
            efforts = [Effort(Communication(one), ranks) for one in collectives]
            return sum(self.wish.time_ratio(reference, effort) for effort in efforts)

        return together(new) / together(old)
