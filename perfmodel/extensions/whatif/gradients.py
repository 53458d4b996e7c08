"""Primitives about gradients that are reduced as soon as the backward pass has made them.

Collectives of a recorded job start in hooks of the backward pass, or one recorded GPU becomes
many, which reduce their gradients in buckets. The kernels of a backward pass are those that
another host thread launches than the one of the forward pass and the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_size
from perfmodel.extensions.whatif.drafts import DraftTask, ProgramDraft, edit_programs
from perfmodel.extensions.whatif.editing import Found
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.recosting import bytes_of, price_ns
from perfmodel.extensions.whatif.scaling_out import facts_of_more
from perfmodel.extensions.whatif.selection import LaneWord, Selection
from perfmodel.graph.job import Group, JobGraph
from perfmodel.graph.ops import Communication, Fixed, MemoryBound
from perfmodel.graph.program import Dependency, LaneKind, Role
from perfmodel.prediction.saved_jobs import PricingMachine

_COPIED = Selection(LabelPattern("AccumulateGrad"), LaneWord.COMPUTE)
"""Kernels that write gradients into buckets; without buckets gradients stay where they are made."""
LEAST_STEP_GAP = 0.25
"""Updates closer than this share of the longest gap between two belong to one step."""


def hook(program: ProgramDraft, found: Found) -> None:
    """Collectives begin in hooks of the backward pass, when their gradients are made.

    Their launches move to the thread that launches the backward kernels: the last stretch on the
    compute stream that another host thread launched.
    """
    stretches: dict[tuple[int, ...], list[int]] = {}
    kernel: int | None = None
    for number in found:
        waits = (dep.task for dep in program.tasks[number].after)
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
        lengths_ns = [program.duration_ns(one) for one in backward]
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
    """Let a collective wait for *kernel* alone, launched right after it."""
    launch, beside = program.launch_of(number), program.launch_of(kernel)
    assert launch is not None
    assert beside is not None
    program.move(launch, program.tasks[beside].lane, after=beside)
    own = program.tasks[launch]
    own.after = [dep for dep in own.after if program.kind_of(dep.task).is_device]
    program.tasks[number].after = [Dependency(launch), Dependency(kernel)]


def reduce_gradients(
    job: JobGraph,
    selection: Selection,
    *,
    count: int,
    gradients_bytes: int,
    size_bytes: int,
    first_bytes: int,
    dtype: DType,
    launch_ns: int,
    machine: PricingMachine,
    backward: LabelPattern | None = None,
    late_ns: int = -1,
) -> JobGraph:
    """*count* ranks like the one of *job* reduce *gradients* in buckets of *size*.

    The updates of *selection* wait for all buckets of their step, the first of which has *first*.
    A host thread spends *launch* per bucket. The other ranks are *late* at the last bucket of a
    step: by default as late as in the recording.
    """
    if job.rank_count != 1 or job.groups:
        raise ScenarioError(
            f"the job has {job.rank_count} ranks and {len(job.groups)} groups, but must be one "
            "rank alone. Import the trace of one rank, or get more ranks with `ranks`; "
            "`remove:match=nccl` removes recorded collectives."
        )
    sizes = [min(first_bytes, gradients_bytes)]
    while sum(sizes) < gradients_bytes:
        sizes.append(min(size_bytes, gradients_bytes - sum(sizes)))
    last_ns = late_ns if late_ns >= 0 else job.facts.others_late_ns
    launch = Fixed("launch", launch_ns, Provenance.ASSUMED)

    def all_reduce(reduced_bytes: int) -> Fixed:
        work = Communication(Collective(CollectiveKind.ALL_REDUCE, reduced_bytes, dtype))
        length_ns = round(price_ns(work, tuple(range(count)), machine))
        return Fixed("all_reduce", length_ns, Provenance.ASSUMED, work)

    def copy(copied_bytes: int) -> Fixed:
        work = MemoryBound("accumulate", copied_bytes, copied_bytes, dtype)
        return Fixed("copy", round(price_ns(work, (0,), machine)), Provenance.ASSUMED, work)

    def edit(program: ProgramDraft) -> None:
        steps = _steps(program, program.find(selection), backward)
        is_copied = bool(program.mask(_COPIED).any())
        program.add_lane("data parallel", LaneKind.COMMUNICATION)
        if not any(kernels for kernels, _ in steps):
            raise ScenarioError(
                "no backward pass was found before an update. Select its kernels with `backward`."
            )
        sequence = 0
        for kernels, update in steps:
            lengths_ns = [program.duration_ns(one) for one in kernels]
            places = made_at(lengths_ns, sizes) if kernels else []
            for bucket, place in enumerate(places):
                late, kernel = last_ns if bucket == len(sizes) - 1 else 0, kernels[place]
                if not is_copied:
                    kernel = _copy_behind(program, kernel, copy(sizes[bucket]))
                after = _launch_behind(program, kernel, launch, late)
                task = _bucket(program, all_reduce(sizes[bucket]), sizes[bucket], sequence, after)
                program.wait_for(update, program.insert([task]))
                sequence += 1

    return replace(
        edit_programs(job, edit),
        facts=facts_of_more(job.facts, count),
        groups=(Group("data", tuple(range(count))),),
        rank_program=np.zeros(count, dtype=np.int32),
        rank_group=np.zeros((count, 1), dtype=np.int32),
    )


def _bucket(
    program: ProgramDraft, op: Fixed, size_bytes: int, sequence: int, after: list[Dependency]
) -> DraftTask:
    """The reduction of a bucket on the last lane, with all other ranks."""
    return DraftTask(
        len(program.lanes) - 1,
        program.draft.op(op),
        program.draft.label(f"bucket of {format_size(size_bytes)}"),
        slot=0,
        order=(sequence, 0),
        role=int(Role.BOTH),
        after=after,
    )


def _copy_behind(program: ProgramDraft, kernel: int, copy: Fixed) -> int:
    """Add a kernel that fills a bucket, with the launch of the *kernel* that made its gradients."""
    launch = program.launch_of(kernel)
    after = [] if launch is None else [Dependency(launch)]
    new = program.new_task(program.tasks[kernel].lane, copy, "copy to a bucket", after)
    return program.insert_after(kernel, new)


def _launch_behind(
    program: ProgramDraft, kernel: int, launch: Fixed, late_ns: int
) -> list[Dependency]:
    """What a bucket waits for: *kernel*, and a *launch* of its own after that of the kernel."""
    after = [Dependency(kernel, lag_ns=late_ns)]
    beside = program.launch_of(kernel)
    if beside is not None:
        new = program.new_task(program.tasks[beside].lane, launch, "launch of a bucket")
        after.append(Dependency(program.insert_after(beside, new), lag_ns=late_ns))
    return after


def first_updates(program: ProgramDraft, updates: Sequence[int]) -> list[int]:
    """The first of the *updates* of every step."""
    ends = [program.lane_tasks[program.tasks[updates[0]].lane][0] - 1, *updates]
    gaps = [number - other for other, number in zip(ends, updates, strict=False)]
    return [
        number
        for number, gap in zip(updates, gaps, strict=True)
        if gap > LEAST_STEP_GAP * max(gaps)
    ]


def _steps(
    program: ProgramDraft, updates: list[int], backward: LabelPattern | None
) -> list[tuple[list[int], int]]:
    """For every step the kernels of its backward pass and its first update."""
    of_lane = program.lane_tasks[program.tasks[updates[0]].lane]
    firsts = first_updates(program, updates)
    meant = None if backward is None else program.mask(Selection(backward, LaneWord.COMPUTE))
    steps, before = [], -1
    for first, following in zip(firsts, [*firsts[1:], None], strict=True):
        kernels = [one for one in of_lane if before < one < first]
        if meant is not None:
            made = [one for one in kernels if meant[one]]
        else:
            own_or_none = (program.launch_lane(first), None)
            made = [one for one in kernels if program.launch_lane(one) not in own_or_none]
        steps.append((made, first))
        before = max(one for one in updates if following is None or one < following)
    return steps
