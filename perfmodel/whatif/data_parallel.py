"""What-if about one recorded GPU: as many do the same, and add their gradients up.

Gradients are reduced in buckets while the backward pass runs, as frameworks do. The
backward pass of a step are the kernels that another host thread launches than the one that
launches the update, or those that match.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration, format_size
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import Group, JobGraph
from perfmodel.graph.ops import Communication, Fixed, duration_of
from perfmodel.graph.program import PLAIN, LaneKind, Role
from perfmodel.whatif.cuda_graphs import launch_of
from perfmodel.whatif.hooks import made_at
from perfmodel.whatif.job_draft import JobDraft, Ranks
from perfmodel.whatif.ordering import UPDATE
from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.recosting import Effort, price_ns
from perfmodel.whatif.selection import LaneWord, Pattern, Selection

STEP = Pattern(f"range:Optimizer.step|{UPDATE}")
LEAST_STEP_GAP = 0.25
"""Updates closer than so much of the longest way between two belong to one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """*count* ranks like the one of the job train together on *topology*.

    Gradients of *gradients* bytes are all-reduced in buckets of *size* as the backward pass
    makes them; tasks like *update* wait for all buckets of their step. *launch* is what
    a host thread spends on a bucket. The other ranks come *late* to the last bucket of a step: left
    out, by what steps were longer because of others in the recording.
    """

    count: int
    gradients_bytes: int
    topology: str
    size_bytes: int = 25 * 2**20
    first_bytes: int = 2**20
    dtype: DType = DType.FP32
    update: Pattern = STEP
    backward: Pattern | None = None
    launch_ns: int = 50_000
    late_ns: int = -1
    hosts: int | None = None
    stack: str = DEFAULT_STACK

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ScenarioError(f"count: must be two ranks or more, got {self.count}.")
        if min(self.gradients_bytes, self.size_bytes, self.first_bytes) < 1:
            raise ScenarioError("gradients, size and first: must be at least one byte.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"{self.count} ranks on {self.topology} do what the recorded one does, on batches "
                "of the same size; the others come to the last bucket of a step "
                f"{format_duration(self.late_ns) if self.late_ns >= 0 else 'as much'} later"
                f"{'' if self.late_ns >= 0 else ' as they did in the recording, if at all'}."
            ),
            (
                f"Gradients of {format_size(self.gradients_bytes)} come evenly along the time of "
                f"the backward pass and are all-reduced in {self.dtype.value} in buckets of "
                f"{format_size(self.size_bytes)} (the first of {format_size(self.first_bytes)}), "
                f"each launched in {format_duration(self.launch_ns)}; tasks like {self.update} "
                "wait for them. Kernels are not slowed by them."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        if job.rank_count != 1 or job.groups:
            raise ScenarioError(
                f"the job has {job.rank_count} ranks and {len(job.groups)} groups, but must be one "
                "rank alone. Import the trace of one rank, or ask for more ranks with `ranks`; "
                "`remove:match=nccl` takes recorded collectives out."
            )
        updates = Selection(self.update, LaneWord.COMPUTE)
        updates.check_found(job)
        draft, program = JobDraft(job), ProgramDraft(job.programs[0], rank=0)
        lane = program.add_lane("data parallel", LaneKind.COMMUNICATION)
        late_ns = self.late_ns if self.late_ns >= 0 else job.facts.others_late_ns
        buckets = _Buckets(self, draft, program, lane, late_ns)
        for backward, update in self._steps(job, program, updates.tasks(job, program.program)):
            buckets.add(backward, update)
        if not buckets.count:
            raise ScenarioError(
                "no backward pass was found ahead of an update. Say which kernels it has with "
                "`backward`."
            )
        draft.edit(lambda *_: program.build())
        return replace(
            draft.build(self.assumptions),
            groups=(Group("data", tuple(range(self.count))),),
            rank_program=np.zeros(self.count, dtype=np.int32),
            rank_group=np.zeros((self.count, 1), dtype=np.int32),
        )

    def _steps(
        self, job: JobGraph, program: ProgramDraft, updates: list[int]
    ) -> list[tuple[list[int], int]]:
        """For every step the kernels of its backward pass and its first update."""
        lane = program.tasks[updates[0]].lane
        of_lane = program.lane_tasks[lane]
        firsts, before = [], -1
        ends = [of_lane[0] - 1, *updates]
        gaps = [number - other for other, number in zip(ends, updates, strict=False)]
        for number, gap in zip(updates, gaps, strict=True):
            if gap > LEAST_STEP_GAP * max(gaps):
                firsts.append(number)
        steps = []
        for first in firsts:
            kernels = [one for one in of_lane if before < one < first]
            steps.append((self._backward(job, program, kernels, first), first))
            before = max((one for one in updates if one < _next(firsts, first)), default=first)
        return steps

    def _backward(
        self, job: JobGraph, program: ProgramDraft, kernels: list[int], update: int
    ) -> list[int]:
        if self.backward is not None:
            meant = Selection(self.backward, LaneWord.COMPUTE).mask(job, program.program)
            return [number for number in kernels if meant[number]]
        own = launch_of(program, update)
        thread = None if own is None else program.tasks[own].lane
        other = []
        for number in kernels:
            launch = launch_of(program, number)
            if launch is not None and program.tasks[launch].lane != thread:
                other.append(number)
        return other


def _next(firsts: list[int], first: int) -> int:
    later = [one for one in firsts if one > first]
    return later[0] if later else np.iinfo(np.int64).max


@dataclass(slots=True)
class _Buckets:
    """Puts buckets into a program."""

    wish: DataParallel
    draft: JobDraft
    program: ProgramDraft
    lane: int
    late_ns: int
    count: int = 0

    def add(self, backward: list[int], update: int) -> None:
        """Reduce what the kernels *backward* make, for the task *update*."""
        if not backward:
            return
        sizes = self._sizes()
        late_ns = [0] * (len(sizes) - 1) + [self.late_ns]
        lengths_ns = [duration_of(self.draft.op_of(self.program, one)) for one in backward]
        places = made_at(lengths_ns, sizes)
        for size_bytes, place, late in zip(sizes, places, late_ns, strict=True):
            reduced = self._reduce(size_bytes, backward[place], late)
            self.program.tasks[update].dependencies.append(Dependency(reduced))

    def _sizes(self) -> list[int]:
        """Buckets in the order in which they are made; the first is small, to begin early."""
        wish = self.wish
        sizes = [min(wish.first_bytes, wish.gradients_bytes)]
        while sum(sizes) < wish.gradients_bytes:
            sizes.append(min(wish.size_bytes, wish.gradients_bytes - sum(sizes)))
        return sizes

    def _reduce(self, size_bytes: int, kernel: int, late_ns: int) -> int:
        wish, draft, program = self.wish, self.draft, self.program
        work = Communication(Collective(CollectiveKind.ALL_REDUCE, size_bytes, wish.dtype))
        ranks: Ranks = tuple(range(wish.count))
        machine = PricingMachine(wish.topology, wish.hosts, wish.stack)
        length_ns = round(price_ns(Effort(work, ranks), machine))
        op = draft.op(Fixed("all_reduce", length_ns, Provenance.ASSUMED, work))
        after = [Dependency(kernel, lag_ns=late_ns)]
        launch = launch_of(program, kernel)
        if launch is not None:
            after.append(Dependency(self._launch_behind(launch), lag_ns=late_ns))
        task = DraftTask(
            self.lane,
            op,
            draft.label(f"bucket of {format_size(size_bytes)}"),
            slot=0,
            order=(self.count, 0),
            role=int(Role.BOTH),
            after=after,
        )
        self.count += 1
        return program.insert([task])[0]

    def _launch_behind(self, launch: int) -> int:
        """The host task that launches a bucket, right behind the launch of a kernel."""
        program, lane = self.program, self.program.tasks[launch].lane
        op = self.draft.op(Fixed("launch", self.wish.launch_ns, Provenance.ASSUMED))
        task = DraftTask(lane, op, self.draft.label("launch of a bucket"), slot=PLAIN)
        return program.insert([task], before=program.next_on_lane(launch))[0]
