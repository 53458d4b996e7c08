"""Buckets: gradients reduced in more or fewer pieces.

Buckets that follow each other in one group are joined until a bucket is full, and cut where they
are larger. All members of a group decide by the sizes alone, so that they keep making the same
calls. A bucket that only follows another on its lane may be joined to it; one whose dependencies
lead to the other's result may not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from math import ceil, inf

from collectives import Collective
from perfmodel.base.errors import GraphError
from perfmodel.extensions.whatif.drafts import ProgramDraft, Ranks
from perfmodel.extensions.whatif.durations import collective_of
from perfmodel.extensions.whatif.editing import Found
from perfmodel.extensions.whatif.recosting import carry, retime, time_ratio
from perfmodel.graph.ops import Communication, MemoryBound, work_of
from perfmodel.graph.program import Dependency, LaneKind, Program, read_dependencies, sources_of
from perfmodel.prediction.saved_jobs import PricingMachine

NOTHING = -1


def awaited_sequences(program: Program, collectives: Sequence[int]) -> dict[int, int]:
    """For each of *collectives* the last one of its slot that its dependencies lead to."""
    waits = [
        [dep.task for dep in after if not dep.distance] for after in read_dependencies(program)
    ]
    before = sources_of(program)
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        raise GraphError(
            "tasks of a rank wait for each other in a cycle. Write the job again."
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


def resize(
    program: ProgramDraft,
    found: Found,
    *,
    size_bytes: int,
    machine: PricingMachine | None = None,
) -> None:
    """Collectives carry about *size* each: small ones are joined, large ones cut.

    Where the kernels that fill them show the sizes of the gradients, buckets are filled anew with
    whole gradients. Elsewhere a joined one starts when the last of its parts could, and gradients
    of a cut one are made evenly by the kernels between the previous bucket and this one.
    """
    tasks = program.tasks
    ordered = sorted(found, key=lambda number: (tasks[number].slot, tasks[number].order))
    # For every collective the last kernel that the one before in its slot waited for.
    kernel_before: dict[int, int | None] = {}
    last: dict[int, int | None] = {}
    for number in ordered:
        slot = tasks[number].slot
        kernel_before[number] = last.get(slot)
        last[slot] = _last_kernel(program, number)
    awaited = awaited_sequences(program.program, ordered)
    for chain in _chunks(program, ordered, awaited):
        tensors = [_tensors(program, kernel_before[one], one) for one in chain]
        if all(tensors):
            _refill(program, chain, [one for own in tensors for one in own], size_bytes, machine)
            continue
        for chunk in _chunks(program, chain, awaited, size_bytes):
            _resize_evenly(program, chunk, size_bytes, kernel_before[chunk[-1]], machine)


Tensor = tuple[int, int]
"""The kernel that writes a gradient into its bucket, and its bytes."""
_SAME_BYTES = 0.02


def _tensors(program: ProgramDraft, kernel_before: int | None, number: int) -> list[Tensor]:
    """The gradients that the collective *number* carries, in order; none if they are not known."""
    last = _last_kernel(program, number)
    if last is None:
        return []
    of_lane = program.program.lane_start[program.tasks[last].lane]
    first = int(of_lane) if kernel_before is None else kernel_before + 1
    found = []
    for task in range(first, last + 1):
        work = work_of(program.op(task)) if task in program.tasks else None
        if isinstance(work, MemoryBound) and work.operator == "accumulate":
            found.append((task, work.write_bytes))
    size_bytes = _collective(program, number).size_bytes
    made_bytes = sum(own_bytes for _, own_bytes in found)
    return found if abs(made_bytes - size_bytes) <= _SAME_BYTES * size_bytes else []


def _refill(
    program: ProgramDraft,
    chain: Sequence[int],
    tensors: Sequence[Tensor],
    size_bytes: int,
    machine: PricingMachine | None,
) -> None:
    """Put the *tensors* of the buckets of *chain* into others, each full once it has *size*."""
    filled: list[Tensor] = []
    held_bytes = 0
    for kernel, own_bytes in tensors:
        held_bytes += own_bytes
        if held_bytes >= size_bytes or kernel == tensors[-1][0]:
            filled.append((kernel, held_bytes))
            held_bytes = 0
    old = [_collective(program, one) for one in chain]
    if [one.size_bytes for one in old] == [own_bytes for _, own_bytes in filled]:
        return
    number, stated_ns = chain[-1], sum(program.duration_ns(one) for one in chain)
    new = [replace(old[0], size_bytes=own_bytes) for _, own_bytes in filled]
    ranks = program.members(number)
    ops = [
        retime(
            program.op(number),
            stated_ns * _ratio(old, [one], ranks, machine),
            work=Communication(one),
        )
        for one in new
    ]
    waits = [_waits_for_kernel(program, number, kernel) for kernel, _ in filled]
    program.merge(dict.fromkeys(chain[:-1], number))
    program.set_op(number, ops[-1])
    pieces = [
        replace(
            program.tasks[number],
            op=program.draft.op(op),
            order=(program.tasks[number].order[0], place - len(ops)),
            after=after,
        )
        for place, (op, after) in enumerate(zip(ops[:-1], waits[:-1], strict=True))
    ]
    program.insert(pieces, before=number)


def _resize_evenly(
    program: ProgramDraft,
    chunk: Sequence[int],
    size_bytes: int,
    kernel_before: int | None,
    machine: PricingMachine | None,
) -> None:
    """Join the collectives of *chunk*, or cut its only one into equal pieces."""
    tasks, number = program.tasks, chunk[-1]
    parts = [_collective(program, one) for one in chunk]
    total_bytes = sum(part.size_bytes for part in parts)
    count = -(-total_bytes // size_bytes)
    if len(chunk) > 1:
        new = [replace(parts[0], size_bytes=total_bytes)]
    elif count > 1:
        new = [carry(parts[0], ratio=1 / count)] * count
    else:
        return
    stated_ns = sum(program.duration_ns(one) for one in chunk)
    ratio = _ratio(parts, new, program.members(number), machine) / len(new)
    work = Communication(new[0])
    program.set_op(number, retime(program.op(number), stated_ns * ratio, work=work))
    if len(chunk) > 1:
        program.merge(dict.fromkeys(chunk[:-1], number))
        return
    pieces = [
        replace(
            tasks[number],
            order=(tasks[number].order[0], part - count),
            after=_waits_of_piece(program, number, kernel_before, share=(part + 1) / count),
        )
        for part in range(count - 1)
    ]
    program.insert(pieces, before=number)


def _chunks(
    program: ProgramDraft,
    found: Sequence[int],
    awaited: Mapping[int, int],
    size_bytes: float = inf,
) -> list[list[int]]:
    """Collectives to join up to *size*: equal neighbours in their slot, none awaiting another."""
    chunks: list[list[int]] = []
    filled_bytes = 0
    for number in found:
        own_bytes = _collective(program, number).size_bytes
        if (
            chunks
            and filled_bytes < size_bytes
            and _are_alike(program, chunks[-1][-1], number)
            and awaited[number] < program.tasks[chunks[-1][0]].order[0]
        ):
            chunks[-1].append(number)
            filled_bytes += own_bytes
        else:
            chunks.append([number])
            filled_bytes = own_bytes
    return chunks


def _ratio(
    old: Sequence[Collective],
    new: Sequence[Collective],
    ranks: Ranks,
    machine: PricingMachine | None,
) -> float:
    """How many times as long *ranks* take for the *new* collectives together as for the *old*."""
    reference = Communication(old[0])
    after, before = (
        sum(time_ratio(reference, Communication(one), ranks, machine=machine) for one in several)
        for several in (new, old)
    )
    return after / before


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
    own, tasks = program.tasks[number].after, program.tasks
    kernel = _last_kernel(program, number)
    if kernel is None or kernel_before is None or not kernel_before < kernel:
        return list(own)
    if tasks[kernel].lane != tasks[kernel_before].lane:
        return list(own)
    return _waits_for_kernel(
        program, number, kernel_before + ceil((kernel - kernel_before) * share)
    )


def _waits_for_kernel(program: ProgramDraft, number: int, kernel: int) -> list[Dependency]:
    """What the collective *number* would wait for if *kernel* were the last to fill it."""
    launch = program.launch_of(kernel)
    lag_ns = max((dep.lag_ns for dep in program.tasks[number].after), default=0)
    launches = [] if launch is None else [Dependency(launch, lag_ns=lag_ns)]
    return [*launches, Dependency(kernel)]


def _last_kernel(program: ProgramDraft, number: int) -> int | None:
    """The last task on a compute lane that a collective waits for in this iteration."""
    kernels = [
        dep.task
        for dep in program.tasks[number].after
        if not dep.distance and program.kind_of(dep.task) is LaneKind.COMPUTE
    ]
    return max(kernels, default=None)
