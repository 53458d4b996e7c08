"""What-ifs that make one kernel out of several.

Kernels are joined where they follow each other on a stream and none but the first waits for
another stream; the launch of the first one is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from perfmodel.graph.ops import Fixed, MemoryBound, duration_of
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.drafts import ProgramDraft
from perfmodel.whatif.recosting import retime
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.transformation import Transformation

OPTIMIZER = Pattern("range:Optimizer.step|optimizer/step|adam|sgd|adagrad|multi_tensor")
BATCH_NORM = Pattern("batch_norm|BatchNorm|batchnorm|bn_fw|bn_bw")
ACTIVATION = Pattern("relu|clamp_min|threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse(Transformation):
    """Runs of kernels like *match* are one kernel each.

    It takes *traffic* times the sum of their times. By default that is the ratio of bytes where
    they are known (only the first kernel reads and the last one writes), and 1 elsewhere.
    """

    match: Pattern
    traffic: float | None = None

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
            "Only the first launch remains; other host time stays.",
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        runs = find_runs(program, program.find_plain(Selection(self.match, LaneWord.COMPUTE)))
        for run in (run for run in runs if len(run) > 1):
            program.set_op(run[0], self._join(_parts(program, run)))
        keep_first(program, runs)

    def _join(self, parts: Sequence[Fixed]) -> Fixed:
        total_ns = sum(part.duration_ns for part in parts)
        works = [part.work for part in parts if isinstance(part.work, MemoryBound)]
        named = replace(parts[0], name=f"fused {parts[0].name}")
        if self.traffic is not None:
            return retime(named, total_ns * self.traffic)
        if len(works) < len(parts):
            return retime(named, total_ns)
        before = sum(work.read_bytes + work.write_bytes for work in works)
        after = works[0].read_bytes + works[-1].write_bytes
        work = replace(works[0], write_bytes=works[-1].write_bytes)
        return retime(named, total_ns * after / max(before, 1), work=work)


class OptimizerWord(Enum):
    """How an optimizer runs over its parameters."""

    FOREACH = "foreach"
    FUSED = "fused"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptimizer(Transformation):
    """The optimizer runs as one kernel (`fused`), or one for each of its steps (`foreach`).

    *traffic* is the share of the bytes that remains: 1 where each parameter tensor had one kernel
    already, about 0.35 for an Adam of separate kernels (7 of 20 words).
    """

    kind: OptimizerWord = OptimizerWord.FUSED
    match: Pattern = OPTIMIZER
    traffic: float = 1.0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        what = "one kernel" if self.kind is OptimizerWord.FUSED else "one kernel per kind of kernel"
        return (
            (
                f"Optimizer kernels like {self.match} that follow each other are {what}, which "
                f"takes {self.traffic:g} times the sum of their times; only its launch remains, "
                "and host work between the removed launches is removed with them."
            ),
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        runs = find_runs(program, program.find_plain(Selection(self.match, LaneWord.COMPUTE)))
        if self.kind is OptimizerWord.FOREACH:
            runs = [part for run in runs for part in _by_name(program, run)]
        runs = [run for run in runs if len(run) > 1]
        between = dict.fromkeys(one for run in runs for one in _host_between(program, run))
        for run in runs:
            program.set_op(run[0], self._join(_parts(program, run)))
        keep_first(program, runs)
        program.remove(between)

    def _join(self, parts: Sequence[Fixed]) -> Fixed:
        total_ns = sum(part.duration_ns for part in parts) * self.traffic
        works = [part.work for part in parts if isinstance(part.work, MemoryBound)]
        named = replace(parts[0], name=f"{self.kind.value} {parts[0].name}")
        if len(works) < len(parts):
            return retime(named, total_ns)
        work = replace(
            works[0],
            read_bytes=round(sum(work.read_bytes for work in works) * self.traffic),
            write_bytes=round(sum(work.write_bytes for work in works) * self.traffic),
        )
        return retime(named, total_ns, work=work)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestructureBatchNorm(Transformation):
    """Batch norms are split and joined to the convolutions next to them.

    Kernels like *match* take *factor* of their time, and those like *activation* next to one on
    its stream become part of the convolutions.
    """

    match: Pattern = BATCH_NORM
    activation: Pattern = ACTIVATION
    factor: float = 0.5

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Batch norms like {self.match} read and write {self.factor:g} of what they did; "
                f"kernels like {self.activation} right beside one cost nothing and are not "
                "launched, and convolutions take no longer for doing their work."
            ),
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        norms = program.find(Selection(self.match, LaneWord.COMPUTE))
        found, lanes = set(norms), program.program.task_lanes()
        beside = program.mask(Selection(self.activation, LaneWord.COMPUTE))
        gone = [
            number
            for number in np.flatnonzero(beside).tolist()
            if number not in found
            and any(
                near in found and lanes[near] == lanes[number] for near in (number - 1, number + 1)
            )
        ]
        for number in norms:
            op = program.op(number)
            work = op.work if isinstance(op, Fixed) else None
            if isinstance(work, MemoryBound):
                read, written = (
                    round(size * self.factor) for size in (work.read_bytes, work.write_bytes)
                )
                work = replace(work, read_bytes=read, write_bytes=written)
            program.set_op(number, retime(op, duration_of(op) * self.factor, work=work))
        program.remove(gone, with_launches=True)


def find_runs(program: ProgramDraft, found: Sequence[int]) -> list[list[int]]:
    """Neighbours on a lane; one that waits for another stream starts a new run."""
    lanes = program.program.task_lanes()
    runs: list[list[int]] = []
    for number in found:
        is_next = bool(runs) and runs[-1][-1] == number - 1 and lanes[number] == lanes[number - 1]
        if is_next and not _waits_for_stream(program, number):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def keep_first(program: ProgramDraft, runs: Sequence[Sequence[int]]) -> None:
    """Remove all kernels of *runs* but the first of each, and their launches with them."""
    program.merge({number: run[0] for run in runs for number in run[1:]})


def _waits_for_stream(program: ProgramDraft, number: int) -> bool:
    """Whether a task waits for anything but its launch and its own lane."""
    launch, lane = program.launch_of(number), program.tasks[number].lane
    return any(
        dep.task != launch and (program.tasks[dep.task].lane != lane or dep.distance > 0)
        for dep in program.tasks[number].dependencies
    )


def _host_between(program: ProgramDraft, run: Sequence[int]) -> list[int]:
    """Host work from the launch of the first kernel of *run* to that of the last.

    Tasks that wait for the device, or that others wait for, serve more than these kernels.
    """
    launches = [one for number in run if (one := program.launch_of(number)) is not None]
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


def _parts(program: ProgramDraft, run: Sequence[int]) -> list[Fixed]:
    """The ops of *run*, which must state their durations."""
    ops = [program.op(number) for number in run]
    for op in ops:
        duration_of(op)
    return [op for op in ops if isinstance(op, Fixed)]


def _by_name(program: ProgramDraft, run: Sequence[int]) -> list[list[int]]:
    named: dict[str, list[int]] = {}
    for number, op in zip(run, _parts(program, run), strict=True):
        named.setdefault(op.name, []).append(number)
    return list(named.values())
