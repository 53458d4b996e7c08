"""What-ifs about gradients that are reduced as soon as the backward pass has made them.

Collectives of a recorded job start in hooks of the backward pass, or one recorded GPU becomes
many, which reduce their gradients in buckets. The kernels of a backward pass are those that
another host thread launches than the one of the forward pass and the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration, format_size
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import Group, JobGraph
from perfmodel.graph.ops import Communication, Fixed, duration_of
from perfmodel.graph.program import LaneKind, Role
from perfmodel.whatif.drafts import DraftTask, JobDraft, ProgramDraft
from perfmodel.whatif.ordering import STEP
from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine
from perfmodel.whatif.recosting import bytes_of, price_ns
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.transformation import Transformation

GRADIENTS = Pattern("ReduceScatter|reduce_scatter|AllReduce|all_reduce")
LEAST_STEP_GAP = 0.25
"""Updates closer than this share of the longest gap between two belong to one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCollectives(Transformation):
    """Collectives like *match* begin in hooks of the backward pass, when their gradients are made.

    Their launches move to the thread that launches the backward kernels. The kernels that make
    the gradients are the last stretch on the compute stream that another host thread launched.
    """

    match: Pattern = GRADIENTS

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} begin as the backward pass before them makes what "
                "they carry, evenly along its time, in their present order; tasks that waited for "
                "them still do."
            ),
            (
                "Their launches take as long on the backward thread, ranks that were not recorded "
                "arrive as early, and kernels are not slowed by them."
            ),
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        stretches: dict[tuple[int, ...], list[int]] = {}
        kernel: int | None = None
        for number in program.find(Selection(self.match, LaneWord.DEVICE)):
            waits = (dep.task for dep in program.tasks[number].dependencies)
            kernels = [one for one in waits if program.kind_of(one) is LaneKind.COMPUTE]
            kernel = max(kernels, default=None) or kernel
            thread = program.launch_lane(number)
            # What was launched before a recording began depends on its only beginning.
            if kernel is None or thread is None or len(program.lane_tasks[thread]) <= 1:
                continue
            stretches.setdefault(_backward_before(program, kernel, thread), []).append(number)
        for backward, collectives in stretches.items():
            if not backward:
                continue
            sizes = [bytes_of(program.op(one)) for one in collectives]
            if not all(sizes):
                raise ScenarioError(
                    "a matching collective does not say how many bytes it carries, so the time "
                    "when they are made is unknown. Narrow the pattern."
                )
            lengths_ns = [duration_of(program.op(one)) for one in backward]
            for number, place in zip(collectives, made_at(lengths_ns, sizes), strict=True):
                _begin_with(program, number, backward[place])


def _backward_before(program: ProgramDraft, kernel: int, thread: int) -> tuple[int, ...]:
    """The last stretch of kernels up to *kernel* that another thread than *thread* launched."""
    first = program.lane_tasks[program.tasks[kernel].lane][0]
    stretch: list[int] = []
    for number in range(kernel, first - 1, -1):
        launcher = program.launch_lane(number)
        if launcher is not None and launcher != thread:
            stretch.append(number)
        elif stretch and launcher is not None:
            break
    return tuple(stretch[::-1])


def made_at(lengths_ns: Sequence[int], sizes: Sequence[float]) -> list[int]:
    """The places of kernels of *lengths_ns* that finish *sizes*, made evenly along their time."""
    done_ns = list(accumulate(lengths_ns))
    shares = [made / sum(sizes) * done_ns[-1] for made in accumulate(sizes)]
    return [min(int(np.searchsorted(done_ns, share)), len(done_ns) - 1) for share in shares]


def _begin_with(program: ProgramDraft, number: int, kernel: int) -> None:
    """Let a collective wait for *kernel* alone, launched right behind it."""
    launch, beside = program.launch_of(number), program.launch_of(kernel)
    assert launch is not None
    assert beside is not None
    program.move(launch, program.tasks[beside].lane, after=beside)
    own = program.tasks[launch]
    own.after = [dep for dep in own.dependencies if program.kind_of(dep.task).is_device]
    program.tasks[number].after = [Dependency(launch), Dependency(kernel)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Transformation):
    """*count* ranks like the one of the job train together on *topology*.

    Gradients of *gradients* bytes are all-reduced in buckets of *size* as the backward pass
    makes them; tasks like *update* wait for all buckets of their step. A host thread spends
    *launch* per bucket. The other ranks are *late* at the last bucket of a step: by default as
    late as in the recording.
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
        late = "as late as in the recording"
        if self.late_ns >= 0:
            late = f"{format_duration(self.late_ns)} later"
        return (
            (
                f"{self.count} ranks on {self.topology} do what the recorded one does, on batches "
                f"of the same size; the others reach the last bucket of a step {late}."
            ),
            (
                f"Gradients of {format_size(self.gradients_bytes)} are made evenly along the "
                f"backward pass and are all-reduced in {self.dtype.value} in buckets of "
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
                "rank alone. Import the trace of one rank, or get more ranks with `ranks`; "
                "`remove:match=nccl` removes recorded collectives."
            )
        updates = Selection(self.update, LaneWord.COMPUTE)
        draft = JobDraft(job)
        program = ProgramDraft(draft, job.programs[0], rank=0)
        steps = self._steps(program, program.find(updates))
        program.add_lane("data parallel", LaneKind.COMMUNICATION)
        late_ns = self.late_ns if self.late_ns >= 0 else job.facts.others_late_ns
        if not any(backward for backward, _ in steps):
            raise ScenarioError(
                "no backward pass was found ahead of an update. Select its kernels with `backward`."
            )
        sequence = 0
        for backward, update in steps:
            lengths_ns = [duration_of(program.op(one)) for one in backward]
            sizes = self._bucket_sizes() if backward else []
            for bucket, place in enumerate(made_at(lengths_ns, sizes)):
                late = late_ns if bucket == len(sizes) - 1 else 0
                reduced = self._reduce(program, sizes[bucket], backward[place], late, sequence)
                program.tasks[update].dependencies.append(Dependency(reduced))
                sequence += 1
        draft.edit(lambda *_: program.build())
        return replace(
            draft.build(self.assumptions),
            groups=(Group("data", tuple(range(self.count))),),
            rank_program=np.zeros(self.count, dtype=np.int32),
            rank_group=np.zeros((self.count, 1), dtype=np.int32),
        )

    def _steps(self, program: ProgramDraft, updates: list[int]) -> list[tuple[list[int], int]]:
        """For every step the kernels of its backward pass and its first update."""
        of_lane = program.lane_tasks[program.tasks[updates[0]].lane]
        ends = [of_lane[0] - 1, *updates]
        gaps = [number - other for other, number in zip(ends, updates, strict=False)]
        firsts = [
            number
            for number, gap in zip(updates, gaps, strict=True)
            if gap > LEAST_STEP_GAP * max(gaps)
        ]
        steps, before = [], -1
        for first, following in zip(firsts, [*firsts[1:], None], strict=True):
            kernels = [one for one in of_lane if before < one < first]
            steps.append((self._backward(program, kernels, first), first))
            before = max(one for one in updates if following is None or one < following)
        return steps

    def _backward(self, program: ProgramDraft, kernels: list[int], update: int) -> list[int]:
        if self.backward is not None:
            meant = program.mask(Selection(self.backward, LaneWord.COMPUTE))
            return [number for number in kernels if meant[number]]
        own_or_none = (program.launch_lane(update), None)
        return [one for one in kernels if program.launch_lane(one) not in own_or_none]

    def _bucket_sizes(self) -> list[int]:
        """Buckets in the order in which they are made; the first is small, to begin early."""
        sizes = [min(self.first_bytes, self.gradients_bytes)]
        while sum(sizes) < self.gradients_bytes:
            sizes.append(min(self.size_bytes, self.gradients_bytes - sum(sizes)))
        return sizes

    def _reduce(
        self, program: ProgramDraft, size_bytes: int, kernel: int, late_ns: int, sequence: int
    ) -> int:
        """Insert an all-reduce behind *kernel*, and its launch behind that of the kernel."""
        work = Communication(Collective(CollectiveKind.ALL_REDUCE, size_bytes, self.dtype))
        machine = PricingMachine(self.topology, self.hosts, self.stack)
        length_ns = round(price_ns(work, tuple(range(self.count)), machine))
        op = program.draft.op(Fixed("all_reduce", length_ns, Provenance.ASSUMED, work))
        after = [Dependency(kernel, lag_ns=late_ns)]
        launch = program.launch_of(kernel)
        if launch is not None:
            own = Fixed("launch", self.launch_ns, Provenance.ASSUMED)
            new = program.new_task(program.tasks[launch].lane, own, "launch of a bucket")
            behind = program.insert_after(launch, new, redirect=False)
            after.append(Dependency(behind, lag_ns=late_ns))
        task = DraftTask(
            len(program.lanes) - 1,
            op,
            program.draft.label(f"bucket of {format_size(size_bytes)}"),
            slot=0,
            order=(sequence, 0),
            role=int(Role.BOTH),
            after=after,
        )
        return program.insert([task])[0]
