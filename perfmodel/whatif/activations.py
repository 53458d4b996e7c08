"""What-ifs that keep activations elsewhere or smaller between forward and backward.

A forward kernel's partner is found by place: of the kernels of a step that match, the
first forward one belongs to the last backward one, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S, format_bandwidth
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    Convolution,
    Copy,
    CopyRoute,
    Fixed,
    Gemm,
    MemoryBound,
    Op,
)
from perfmodel.graph.program import Anchor, LaneKind
from perfmodel.whatif.inserting import insert_after
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.recompute import BACKWARD, FORWARD
from perfmodel.whatif.selection import LaneWord, Mask, Pattern, Selection


def made_bytes(op: Op) -> int:
    """Bytes that a kernel writes; a kernel that does not say is refused."""
    work = op.work if isinstance(op, Fixed) else op
    if isinstance(work, MemoryBound | Convolution):
        return work.write_bytes
    if isinstance(work, Gemm):
        return work.batch * work.m * work.n * work.dtype.size_bits // 8
    raise ScenarioError(
        "a kernel that matches does not say what it writes, so nobody knows how much to keep. "
        "Narrow `forward` to kernels with known work."
    )


def find_partners(forward: Mask, backward: Mask) -> list[tuple[int, int]]:
    """Pairs of a forward kernel and the backward one that needs what it made, step by step."""
    steps: list[tuple[list[int], list[int]]] = [([], [])]
    for number in np.flatnonzero(forward | backward).tolist():
        if forward[number]:
            if steps[-1][1]:
                steps.append(([], []))
            steps[-1][0].append(number)
        else:
            steps[-1][1].append(number)
    pairs = []
    for ahead, back in steps:
        for place, number in enumerate(ahead):
            if back:
                pairs.append((number, back[(len(ahead) - 1 - place) * len(back) // len(ahead)]))
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Parameters of what-ifs that keep what forward kernels make, at *rate*."""

    rate_bytes_per_s: float
    forward: Pattern = FORWARD
    backward: Pattern = BACKWARD

    def __post_init__(self) -> None:
        if not self.rate_bytes_per_s > 0:
            raise ScenarioError(f"rate: must be above zero, got {self.rate_bytes_per_s:g} B/s.")

    def _pairs(self, job: JobGraph, program: ProgramDraft) -> list[tuple[int, int]]:
        ahead = Selection(self.forward, LaneWord.COMPUTE).mask(job, program.program)
        back = Selection(self.backward, LaneWord.COMPUTE).mask(job, program.program)
        return find_partners(ahead & ~back, back)

    def _check(self, job: JobGraph) -> None:
        Selection(self.forward, LaneWord.COMPUTE).check_found(job)
        Selection(self.backward, LaneWord.COMPUTE).check_found(job)

    def _length_ns(self, size_bytes: int) -> int:
        return round(size_bytes * NS_PER_S / self.rate_bytes_per_s)


_PAIRED = (
    "The first forward kernel of a step belongs to its last backward one, and so on; kernels keep "
    "their times, and the memory that is saved changes nothing else."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload(_Kept):
    """What kernels like *forward* make waits in host memory until those like *backward* use it.

    It is copied at *rate* each way, on streams of their own, and fetched while the
    backward kernel before runs.
    """

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"What kernels like {self.forward} write is copied to the host at "
                f"{format_bandwidth(self.rate_bytes_per_s)} once it is made, and back while the "
                f"kernel like {self.backward} before the one that uses it runs; no kernel waits "
                "for memory to be freed."
            ),
            _PAIRED,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        self._check(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            pairs = self._pairs(job, program)
            away = program.add_lane("offload", LaneKind.COPY)
            home = program.add_lane("prefetch", LaneKind.COPY)
            users = sorted({user for _, user in pairs})
            sent = {}
            for maker, _ in pairs:
                size_bytes = made_bytes(draft.op_of(program, maker))
                op = draft.op(self._copy(CopyRoute.DEVICE_TO_HOST, size_bytes))
                task = DraftTask(away, op, draft.label("offload"), after=[Dependency(maker)])
                [sent[maker]] = program.insert([task])
            for maker, user in sorted(pairs, key=lambda pair: (pair[1], -pair[0])):
                place = users.index(user)
                # Fetched while the one before runs; the first as soon as it may.
                ahead = [Dependency(users[place - 1], Anchor.START)] if place else []
                size_bytes = made_bytes(draft.op_of(program, maker))
                op = draft.op(self._copy(CopyRoute.HOST_TO_DEVICE, size_bytes))
                waits = [Dependency(sent[maker]), *ahead]
                task = DraftTask(home, op, draft.label("prefetch"), after=waits)
                [fetched] = program.insert([task])
                program.tasks[user].dependencies.append(Dependency(fetched))

        return edit_programs(job, edit, assumptions=self.assumptions)

    def _copy(self, route: CopyRoute, size_bytes: int) -> Fixed:
        length_ns = self._length_ns(size_bytes)
        return Fixed("copy", length_ns, Provenance.ASSUMED, Copy(route, size_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeActivations(_Kept):
    """What kernels like *forward* make is packed at *rate*, and unpacked for *backward*."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"A kernel behind every one like {self.forward} packs what it wrote, at "
                f"{format_bandwidth(self.rate_bytes_per_s)}, and one ahead of its partner like "
                f"{self.backward} unpacks it; neither costs the host a launch of its own."
            ),
            _PAIRED,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        self._check(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            for maker, user in self._pairs(job, program):
                size_bytes = made_bytes(draft.op_of(program, maker))
                op = draft.op(Fixed("codec", self._length_ns(size_bytes), Provenance.ASSUMED))
                lane = program.tasks[maker].lane
                insert_after(program, maker, DraftTask(lane, op, draft.label("pack")))
                unpack = DraftTask(program.tasks[user].lane, op, draft.label("unpack"))
                unpack.after = list(program.tasks[user].dependencies)
                program.insert([unpack], before=user)

        return edit_programs(job, edit, assumptions=self.assumptions)
