"""What-if about the order of collectives: what the next iteration needs first goes first (P3).

Gradients are made from the last layer to the first, and used from the first to the last.
So the collective that comes last is needed first, and a stream that becomes free takes the
last one that is ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, duration_of
from perfmodel.whatif.cuda_graphs import is_device, lone_launches
from perfmodel.whatif.data_parallel import STEP
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.touching import bytes_of
from perfmodel.whatif.traffic import ALL_REDUCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Prioritise:
    """P3: collectives like *match* run by when they are needed, and forward waits for its own.

    Tasks like *update* are done piece by piece behind the collectives. Cut them first
    with `bucket`, so that a large one does not hold up a late one.
    """

    match: Pattern = ALL_REDUCE
    update: Pattern = STEP

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Of collectives like {self.match} that are ready, a stream takes the one made "
                "last, whose parameters the next iteration uses first; one that runs is not "
                "interrupted, and all ranks agree."
            ),
            (
                f"Tasks like {self.update} run in pieces, in proportion to bytes, behind each "
                "collective on its stream, with no launch of their own; the forward pass of the "
                "next iteration, up to the first kernel that a collective waits for, uses "
                "parameters evenly along its time and waits for no others."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        chosen, updates = Selection(self.match, LaneWord.DEVICE), Selection(self.update)
        chosen.check_found(job)
        updates.check_found(job)
        ready_ns = _ready_ns(job, chosen)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            mine = {
                task: ready_ns[_rendezvous(job, program.rank, task)]
                for task in chosen.collectives(job, program.program)
            }
            if mine:
                steps = updates.tasks(job, program.program)
                _Scheduling(draft, program, mine, steps).schedule()

        return edit_programs(job, edit, assumptions=self.assumptions)


def _rendezvous(job: JobGraph, rank: int, task: int) -> tuple[int, int]:
    """Group and sequence of a collective."""
    program = job.program_of(rank)
    return int(job.rank_group[rank, program.slot[task]]), int(program.sequence[task])


def _ready_ns(job: JobGraph, chosen: Selection) -> dict[tuple[int, int], int]:
    """When the last member of each collective could begin, by group and sequence, in one pass."""
    played = replay(job, stated_durations(job)).last
    offsets = np.concatenate([[0], np.cumsum(job.task_counts())])
    ready: dict[tuple[int, int], int] = {}
    for rank in range(job.rank_count):
        program, first = job.program_of(rank), int(offsets[rank])
        for task in chosen.collectives(job, program):
            rows = slice(program.dep_start[task], program.dep_start[task + 1])
            is_now = program.dep_distance[rows] == 0
            sources = program.dep_task[rows][is_now]
            ends = played.end_ns[first + sources] + program.dep_lag_ns[rows][is_now]
            key = _rendezvous(job, rank, task)
            ready[key] = max(ready.get(key, 0), int(ends.max(initial=0)))
    return ready


@dataclass(slots=True)
class _Scheduling:
    """One program being put in another order."""

    draft: JobDraft
    program: ProgramDraft
    ready_ns: dict[int, int]
    updates: Sequence[int]

    def schedule(self) -> None:
        """Reorder the collectives, take updates apart, and let forward wait for its own."""
        updates = [one for one in self.updates if is_device(self.program, one)]
        if not updates:
            raise ScenarioError("no update runs on the device, so nothing can wait for less.")
        forward = self._forward(updates)
        made = self._update_behind(self._order(), updates)
        self._wait_for_own(forward, made)

    def _length_ns(self, number: int) -> int:
        return duration_of(self.draft.op_of(self.program, number))

    def _forward(self, updates: Sequence[int]) -> list[int]:
        """Kernels ahead of the first one whose gradient a collective carries."""
        sources = [
            dep.task
            for number in self.ready_ns
            for dep in self.program.tasks[number].dependencies
            if is_device(self.program, dep.task) and dep.task not in self.ready_ns
        ]
        if not sources:
            raise ScenarioError("no collective waits for a kernel, so no forward pass is known.")
        if min(updates) < max(sources):
            raise ScenarioError(
                "the job holds several steps, but must be one iteration that repeats: an update "
                "comes ahead of kernels that a collective waits for. Ask it of a job that was "
                "built or emulated, or record one step."
            )
        first = min(sources)
        of_lane = self.program.lane_tasks[self.program.tasks[first].lane]
        return of_lane[: of_lane.index(first)]

    def _order(self) -> list[int]:
        """The collectives as a stream takes them: the last made of those that are ready."""
        left = sorted(self.ready_ns, key=lambda one: self.program.tasks[one].order)
        place = {number: index for index, number in enumerate(left)}
        order, now_ns = [], 0
        while left:
            ready = [one for one in left if self.ready_ns[one] <= now_ns]
            if not ready:
                now_ns = min(self.ready_ns[one] for one in left)
                continue
            taken = max(ready, key=place.__getitem__)
            now_ns += self._length_ns(taken)
            order.append(taken)
            left.remove(taken)
        return order

    def _update_behind(self, order: Sequence[int], updates: Sequence[int]) -> dict[int, int]:
        """Put collectives in *order*, each with its piece of the update behind; those pieces."""
        program, draft = self.program, self.draft
        total_ns = sum(self._length_ns(number) for number in updates)
        sizes = {one: bytes_of(draft.op_of(program, one)) for one in order}
        if not all(sizes.values()):
            raise ScenarioError("a collective does not say what it carries. Narrow the pattern.")
        # What the updates waited for no longer holds up the forward pass behind them.
        program.remove([*updates, *sorted(lone_launches(program, updates))], keep_waits=False)
        lane = program.tasks[order[0]].lane
        if any(program.tasks[one].lane != lane for one in order):
            raise ScenarioError("collectives of several streams have no order. Narrow the pattern.")
        program.lane_tasks[lane] = [one for one in program.lane_tasks[lane] if one not in sizes]
        made = {}
        for place, number in enumerate(order):
            task = program.tasks[number]
            task.order = (place, 0)
            program.lane_tasks[lane].append(number)
            share_ns = round(total_ns * sizes[number] / sum(sizes.values()))
            op = draft.op(Fixed("update", share_ns, Provenance.ASSUMED))
            [made[number]] = program.insert([DraftTask(lane, op, draft.label("update piece"))])
        return made

    def _wait_for_own(self, forward: Sequence[int], made: dict[int, int]) -> None:
        """Let stretches of *forward* wait for the pieces they use, the last made first."""
        sizes = {one: bytes_of(self.draft.op_of(self.program, one)) for one in made}
        used = sorted(made, reverse=True)
        needed = list(accumulate(sizes[one] for one in used))
        lengths = [self._length_ns(number) for number in forward]
        starts = [end - own for end, own in zip(accumulate(lengths), lengths, strict=True)]
        for number, start_ns in zip(forward, starts, strict=True):
            share = start_ns / max(sum(lengths), 1) * needed[-1]
            place = min(int(np.searchsorted(needed, share, side="right")), len(used) - 1)
            own = Dependency(made[used[place]], distance=1)
            self.program.tasks[number].dependencies.append(own)
