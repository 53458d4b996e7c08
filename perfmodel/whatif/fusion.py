"""What-ifs that make one kernel out of several.

Kernels are joined where they follow each other on a stream and none of them
but the first waits for another stream; the first one's launch is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, MemoryBound, duration_of
from perfmodel.graph.program import PLAIN, Program
from perfmodel.whatif.cuda_graphs import launch_of, lone_launches
from perfmodel.whatif.durations import check_factor
from perfmodel.whatif.job_draft import JobDraft, edit_programs, retime
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.selection import LaneWord, Pattern, Selection

OPTIMIZER = Pattern("range:Optimizer.step|optimizer/step|adam|sgd|adagrad|multi_tensor")
Join = Callable[[Sequence[Fixed]], Fixed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse:
    """Runs of kernels like *match* are one kernel each.

    It takes *traffic* times the sum of their times. Left out, that is worked
    out from bytes where they are known (only the first reads and the last
    writes), and 1 elsewhere.
    """

    match: Pattern
    traffic: float | None = None

    def __post_init__(self) -> None:
        if self.traffic is not None:
            check_factor("traffic", self.traffic)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        if self.traffic is None:
            how = (
                "reads what the first read and writes what the last wrote where that is known, "
                "and takes the sum of their times elsewhere"
            )
        else:
            how = f"takes {self.traffic:g} times the sum of their times"
        return (
            f"Kernels like {self.match} that follow each other on a stream are one, which {how}.",
            "The launches of all but the first fall away; other host time stays.",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return fuse_runs(job, self.match, self._join, assumptions=self.assumptions)

    def _join(self, parts: Sequence[Fixed]) -> Fixed:
        total_ns = sum(part.duration_ns for part in parts)
        works = [part.work for part in parts if isinstance(part.work, MemoryBound)]
        if self.traffic is not None:
            return retime(_name(parts, "fused"), total_ns * self.traffic)
        if len(works) < len(parts):
            return retime(_name(parts, "fused"), total_ns)
        before = sum(work.read_bytes + work.write_bytes for work in works)
        after = works[0].read_bytes + works[-1].write_bytes
        work = replace(works[0], write_bytes=works[-1].write_bytes)
        return retime(_name(parts, "fused"), total_ns * after / max(before, 1), work=work)


class OptimizerWord(Enum):
    """How an optimizer runs over its parameters."""

    FOREACH = "foreach"
    FUSED = "fused"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptimizer:
    """The optimizer runs as one kernel (`fused`), or one for each of its steps (`foreach`).

    *traffic* is what is left of the bytes: 1 where each parameter tensor had one
    kernel already, about 0.35 for an Adam of separate kernels (7 of 20 words).
    """

    kind: OptimizerWord = OptimizerWord.FUSED
    match: Pattern = OPTIMIZER
    traffic: float = 1.0

    def __post_init__(self) -> None:
        check_factor("traffic", self.traffic)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        what = "one kernel" if self.kind is OptimizerWord.FUSED else "one kernel a kind of kernel"
        return (
            (
                f"Optimizer kernels like {self.match} that follow each other are {what}, which "
                f"takes {self.traffic:g} times the sum of their times; only its launch remains, "
                "and host work between the launches that fall away goes with them."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return fuse_runs(
            job,
            self.match,
            self._join,
            assumptions=self.assumptions,
            by_name=self.kind is OptimizerWord.FOREACH,
            with_host=True,
        )

    def _join(self, parts: Sequence[Fixed]) -> Fixed:
        total_ns = sum(part.duration_ns for part in parts) * self.traffic
        works = [part.work for part in parts if isinstance(part.work, MemoryBound)]
        if len(works) < len(parts):
            return retime(_name(parts, self.kind.value), total_ns)
        work = replace(
            works[0],
            read_bytes=round(sum(work.read_bytes for work in works) * self.traffic),
            write_bytes=round(sum(work.write_bytes for work in works) * self.traffic),
        )
        return retime(_name(parts, self.kind.value), total_ns, work=work)


def fuse_runs(
    job: JobGraph,
    match: Pattern,
    join: Join,
    *,
    assumptions: tuple[str, ...],
    by_name: bool = False,
    with_host: bool = False,
) -> JobGraph:
    """*job* with every run of two or more kernels like *match* joined.

    With *by_name* only kernels of one name are joined, whatever stands between
    them in the run. *with_host* takes out what a host thread does between their
    launches, too.
    """
    selection = Selection(match, LaneWord.COMPUTE)
    selection.check_found(job)

    def edit(draft: JobDraft, program: ProgramDraft) -> None:
        found = selection.mask(job, program.program) & (program.program.slot == PLAIN)
        runs = find_runs(program, np.flatnonzero(found).tolist(), program.program)
        if by_name:
            runs = [part for run in runs for part in _by_name(draft, program, run)]
        joined = [run for run in runs if len(run) > 1]
        between = [one for run in joined for one in _host_between(program, run)]
        _join_runs(draft, program, joined, join)
        if with_host:
            program.remove(dict.fromkeys(between))

    return edit_programs(job, edit, assumptions=assumptions)


def _host_between(program: ProgramDraft, run: Sequence[int]) -> list[int]:
    """Host work from the launch of the first kernel of *run* to that of the last.

    What waits for the device, or is waited for, is not only there for them.
    """
    launches = [launch for number in run if (launch := launch_of(program, number)) is not None]
    if not launches:
        return []
    lane = program.lane_tasks[program.tasks[launches[0]].lane]
    waiters = program.waiters()
    first, last = lane.index(launches[0]), max(lane.index(one) for one in launches if one in lane)
    return [
        number
        for number in lane[first + 1 : last]
        if not waiters[number]
        and program.tasks[number].slot == PLAIN
        and not program.tasks[number].dependencies
    ]


def _join_runs(
    draft: JobDraft, program: ProgramDraft, runs: Sequence[Sequence[int]], join: Join
) -> None:
    for run in runs:
        parts = [draft.op_of(program, number) for number in run]
        for part in parts:
            duration_of(part)
        fixed = [part for part in parts if isinstance(part, Fixed)]
        program.tasks[run[0]].op = draft.op(join(fixed))
    keep_first(program, runs)


def keep_first(program: ProgramDraft, runs: Sequence[Sequence[int]]) -> None:
    """Take all kernels of *runs* out but the first of each, and their launches with them."""
    gone = {number: run[0] for run in runs for number in run[1:]}
    launches = lone_launches(program, gone)
    for number in gone:
        program.tasks[number].after = []
    program.redirect(gone)
    program.remove([*gone, *sorted(launches)])


def find_runs(draft: ProgramDraft, found: Sequence[int], program: Program) -> list[list[int]]:
    """Neighbours on a lane; one that waits for another stream starts a new run."""
    lanes = program.task_lanes()
    runs: list[list[int]] = []
    for number in found:
        is_next = bool(runs) and runs[-1][-1] == number - 1 and lanes[number] == lanes[number - 1]
        if is_next and not _waits_for_stream(draft, number):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _waits_for_stream(draft: ProgramDraft, number: int) -> bool:
    """Whether a task waits for anything but its launch and its own lane."""
    launch, lane = launch_of(draft, number), draft.tasks[number].lane
    return any(
        dep.task != launch and (draft.tasks[dep.task].lane != lane or dep.distance > 0)
        for dep in draft.tasks[number].dependencies
    )


def _by_name(draft: JobDraft, program: ProgramDraft, run: Sequence[int]) -> list[list[int]]:
    named: dict[str, list[int]] = {}
    for number in run:
        op = draft.op_of(program, number)
        duration_of(op)
        assert isinstance(op, Fixed)
        named.setdefault(op.name, []).append(number)
    return list(named.values())


def _name(parts: Sequence[Fixed], word: str) -> Fixed:
    return replace(parts[0], name=f"{word} {parts[0].name}")
