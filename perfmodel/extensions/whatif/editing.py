"""Primitives that insert, remove and move tasks.

Kernels of the forward and the backward pass are paired by position: of those of a step, the first
forward one belongs to the last backward one, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.extensions.whatif.drafts import DraftTask, ProgramDraft
from perfmodel.extensions.whatif.selection import Selection
from perfmodel.graph.ops import (
    Communication,
    Convolution,
    Copy,
    CopyRoute,
    Fixed,
    Gemm,
    MemoryBound,
    Op,
    work_of,
)
from perfmodel.graph.program import Anchor, Dependency, LaneKind

Found = dict[int, int]
"""The selected tasks of a program, in order, each with its partner: itself if it has none."""


class Side(Enum):
    """Whether a task is inserted before another or after it."""

    BEFORE = "before"
    AFTER = "after"


def find(program: ProgramDraft, selection: Selection) -> Found:
    """The tasks of *selection*; if it wants partners, those that have one."""
    tasks = program.find(selection)
    if selection.partner is None:
        return {task: task for task in tasks}
    back = set(program.find(Selection(selection.partner, selection.lane)))
    return {
        number: users[(len(makers) - 1 - place) * len(users) // len(makers)]
        for makers, users in split_steps(tasks, back)
        for place, number in enumerate(makers)
    }


def split_steps(forward: Iterable[int], backward: set[int]) -> list[tuple[list[int], list[int]]]:
    """The tasks of both passes by step, of the steps that have both."""
    steps: list[tuple[list[int], list[int]]] = [([], [])]
    for number in sorted({*forward, *backward}):
        is_back = number in backward
        if not is_back and steps[-1][1]:
            steps.append(([], []))
        steps[-1][is_back].append(number)
    return [step for step in steps if all(step)]


def remove(
    program: ProgramDraft, found: Found, *, keep_waits: bool = True, keep_lags: bool = False
) -> None:
    """The tasks and the launches that serve only them are removed.

    Their own delay (launch latency, other ranks) is removed with them unless *keep_lags* is set.
    Without *keep_waits* nothing waits for what they waited for.
    """
    for number in () if keep_lags else found:
        task = program.tasks[number]
        task.after = [dep._replace(lag_ns=0) for dep in task.after]
    program.remove(found, with_launches=True, keep_waits=keep_waits)


def insert(
    program: ProgramDraft,
    found: Found,
    *,
    name: str,
    op: str | None = None,
    takes_ns: int = 0,
    rate_bytes_per_s: float | None = None,
    side: Side = Side.AFTER,
    stream: str | None = None,
    copies: CopyRoute | None = None,
) -> None:
    """A task called *name* runs after every task, or before its partner, on its lane.

    It takes *takes*, or processes what the task writes at *rate*. On a stream of its own it starts
    when the task has ended; one before a partner waits for what was inserted after the task, and
    starts with the partner before.
    """

    def new_op(maker: Op) -> Fixed:
        length_ns, work = takes_ns, None
        if rate_bytes_per_s is not None:
            length_ns = round(made_bytes(maker) * NS_PER_S / rate_bytes_per_s)
        if copies is not None:
            work = Copy(copies, made_bytes(maker))
        return Fixed(op or name, length_ns, Provenance.ASSUMED, work)

    ops = {number: new_op(program.op(number)) for number in found}
    if stream is not None:
        lane = program.add_lane(stream, LaneKind.COPY)
        if side is Side.BEFORE:
            _insert_ahead(
                program, found, {one: program.new_task(lane, ops[one], name) for one in found}
            )
        else:
            program.insert(
                [program.new_task(lane, ops[one], name, [Dependency(one)]) for one in found]
            )
        return
    behind = {}
    for number, partner in found.items():
        at = number if side is Side.AFTER else partner
        task = program.tasks[at]
        new = program.new_task(task.lane, ops[number], name)
        if side is Side.AFTER:
            behind[at] = program.insert_after(at, new)
        else:
            new.after = list(task.after)
            program.insert([new], before=at)
    program.redirect(behind)


def _insert_ahead(program: ProgramDraft, found: Found, new: dict[int, DraftTask]) -> None:
    """Partners wait for the *new* task of theirs, which starts with the partner before."""
    users = sorted(set(found.values()))
    # What was inserted for a task waits for it.
    sent = {
        task.after[0].task: number
        for number, task in program.tasks.items()
        if number >= program.program.task_count and task.after
    }
    for maker, user in sorted(found.items(), key=lambda pair: (pair[1], -pair[0])):
        place = users.index(user)
        new[maker].after.append(Dependency(sent.get(maker, maker)))
        if place:
            new[maker].after.append(Dependency(users[place - 1], Anchor.START))
        [number] = program.insert([new[maker]])
        program.wait_for(user, [number])


def made_bytes(op: Op) -> int:
    """Bytes that a kernel writes or a collective carries; a task that does not say is refused."""
    work = work_of(op)
    if isinstance(work, MemoryBound | Convolution):
        return work.write_bytes
    if isinstance(work, Gemm):
        return work.batch * work.m * work.n * work.dtype.size_bits // 8
    if isinstance(work, Communication):
        return work.collective.size_bytes
    raise ScenarioError(
        "a matching task does not say how many bytes it makes, so the amount to process is "
        "unknown. Narrow the pattern to tasks with known work."
    )
