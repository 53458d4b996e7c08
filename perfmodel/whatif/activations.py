"""What-ifs about activations between forward and backward: recomputed, offloaded or encoded.

For recomputation a layer is named by the part of a label before the first `/`. Otherwise kernels
are paired by position: of the matching kernels of a step, the first forward one belongs to the
last backward one, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S, format_bandwidth
from perfmodel.graph.builder import Dependency
from perfmodel.graph.ops import Convolution, Copy, CopyRoute, Fixed, Gemm, MemoryBound, Op
from perfmodel.graph.program import Anchor, LaneKind
from perfmodel.whatif.drafts import DraftTask, ProgramDraft
from perfmodel.whatif.selection import LaneWord, Mask, Pattern, Selection
from perfmodel.whatif.transformation import Transformation

FORWARD = Pattern("layer * forward")
BACKWARD = Pattern("layer * backward")
Runs = dict[str, list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute(Transformation):
    """Kernels like *forward* run again before those like *backward* of the same layer."""

    forward: Pattern = FORWARD
    backward: Pattern = BACKWARD

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Kernels like {self.forward} run again, with their launches, right before the "
                f"first kernel like {self.backward} of their layer; collectives are not repeated."
            ),
            "Repeated kernels take as long as the first time. Saved memory changes nothing else.",
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        ahead = program.find_plain(Selection(self.forward, LaneWord.COMPUTE))
        back = program.find(Selection(self.backward, LaneWord.COMPUTE))
        forward, backward = _layer_runs(program, ahead, set(back).difference(ahead))
        for layer, runs in forward.items():
            users = backward.get(layer, [])
            if len(runs) != len(users):
                raise ScenarioError(
                    f"{layer!r}: must run backward as often as forward, but runs forward "
                    f"{len(runs)} times and backward {len(users)} times. Name the kernels of both "
                    "with `forward` and `backward`."
                )
            for run, used in zip(runs, users, strict=True):
                _repeat(program, run, before=used[0])


def _layer_runs(program: ProgramDraft, ahead: list[int], back: set[int]) -> tuple[Runs, Runs]:
    """Runs of tasks of one layer and direction, by layer: forward and backward."""
    runs: tuple[Runs, Runs] = ({}, {})
    last: tuple[str, bool] | None = None
    for number in sorted({*ahead, *back}):
        layer = program.draft.labels[program.tasks[number].label].split("/")[0]
        of_layer = runs[number in back].setdefault(layer, [])
        if last == (layer, number in back):
            of_layer[-1].append(number)
        else:
            of_layer.append([number])
        last = (layer, number in back)
    return runs


def _repeat(program: ProgramDraft, run: list[int], *, before: int) -> None:
    """Insert a copy of the tasks of *run*, with their launches, ahead of a task and its launch."""
    launch_before = program.launch_of(before)
    launch_of_copy: dict[int, int] = {}
    if launch_before is not None:
        lane = program.tasks[launch_before].lane
        launches = dict.fromkeys(program.launch_of(number) for number in run)
        known = [launch for launch in launches if launch is not None]
        copies = [_copy(program, launch, lane) for launch in known]
        numbers = program.insert(copies, before=launch_before)
        launch_of_copy = dict(zip(known, numbers, strict=True))
    copies = []
    for number in run:
        copy = _copy(program, number, program.tasks[before].lane)
        copy.after = [
            replace(dep, task=launch_of_copy[dep.task])
            for dep in program.tasks[number].dependencies
            if dep.task in launch_of_copy and not dep.distance
        ]
        copies.append(copy)
    program.insert(copies, before=before)


def _copy(program: ProgramDraft, number: int, lane: int) -> DraftTask:
    task, draft = program.tasks[number], program.draft
    label = draft.label(f"recompute {draft.labels[task.label]}")
    return DraftTask(lane, task.op, label, task.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept(Transformation):
    """Parameters of what-ifs that keep the results of forward kernels, at *rate*."""

    rate_bytes_per_s: float
    forward: Pattern = FORWARD
    backward: Pattern = BACKWARD

    def _pairs(self, program: ProgramDraft) -> list[tuple[int, int]]:
        """Pairs of a forward kernel and the backward one that needs its result."""
        chosen = [Selection(one, LaneWord.COMPUTE) for one in (self.forward, self.backward)]
        for selection in chosen:
            program.draft.check_found(selection)
        ahead, back = (program.mask(selection) for selection in chosen)
        return find_partners(ahead & ~back, back)


def find_partners(forward: Mask, backward: Mask) -> list[tuple[int, int]]:
    """Pairs of a forward kernel and the backward one that needs its result, step by step."""
    steps: list[tuple[list[int], list[int]]] = [([], [])]
    for number in np.flatnonzero(forward | backward).tolist():
        if forward[number] and steps[-1][1]:
            steps.append(([], []))
        steps[-1][0 if forward[number] else 1].append(number)
    return [
        (number, back[(len(ahead) - 1 - place) * len(back) // len(ahead)])
        for ahead, back in steps
        for place, number in enumerate(ahead)
        if back
    ]


def made_bytes(op: Op) -> int:
    """Bytes that a kernel writes; a kernel that does not say is refused."""
    work = op.work if isinstance(op, Fixed) else op
    if isinstance(work, MemoryBound | Convolution):
        return work.write_bytes
    if isinstance(work, Gemm):
        return work.batch * work.m * work.n * work.dtype.size_bits // 8
    raise ScenarioError(
        "a matching kernel does not say how many bytes it writes, so the amount to keep is "
        "unknown. Narrow `forward` to kernels with known work."
    )


_PAIRED = (
    "The first forward kernel of a step belongs to its last backward one, and so on; kernels keep "
    "their times, and saved memory changes nothing else."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload(_Kept):
    """Results of kernels like *forward* wait in host memory until those like *backward* use them.

    They are copied at *rate* each way, on streams of their own, and fetched while the previous
    backward kernel runs.
    """

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"The output of kernels like {self.forward} is copied to the host at "
                f"{format_bandwidth(self.rate_bytes_per_s)} once it is written, and back while the "
                f"kernel like {self.backward} before the one that uses it runs; no kernel waits "
                "for memory to be freed."
            ),
            _PAIRED,
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        pairs = self._pairs(program)
        away = program.add_lane("offload", LaneKind.COPY)
        home = program.add_lane("prefetch", LaneKind.COPY)
        users = sorted({user for _, user in pairs})
        sent = {}
        for maker, _ in pairs:
            op = self._copy(CopyRoute.DEVICE_TO_HOST, program.op(maker))
            task = program.new_task(away, op, "offload", [Dependency(maker)])
            [sent[maker]] = program.insert([task])
        for maker, user in sorted(pairs, key=lambda pair: (pair[1], -pair[0])):
            place = users.index(user)
            # Fetched while the previous one runs; the first as soon as possible.
            ahead = [Dependency(users[place - 1], Anchor.START)] if place else []
            op = self._copy(CopyRoute.HOST_TO_DEVICE, program.op(maker))
            task = program.new_task(home, op, "prefetch", [Dependency(sent[maker]), *ahead])
            [fetched] = program.insert([task])
            program.tasks[user].dependencies.append(Dependency(fetched))

    def _copy(self, route: CopyRoute, maker: Op) -> Fixed:
        size_bytes = made_bytes(maker)
        length_ns = round(size_bytes * NS_PER_S / self.rate_bytes_per_s)
        return Fixed("copy", length_ns, Provenance.ASSUMED, Copy(route, size_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeActivations(_Kept):
    """Results of kernels like *forward* are packed at *rate*, and unpacked for *backward*."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"A kernel behind every one like {self.forward} packs its output, at "
                f"{format_bandwidth(self.rate_bytes_per_s)}, and one ahead of its partner like "
                f"{self.backward} unpacks it; neither costs the host a launch of its own."
            ),
            _PAIRED,
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        for maker, user in self._pairs(program):
            length_ns = round(made_bytes(program.op(maker)) * NS_PER_S / self.rate_bytes_per_s)
            op = Fixed("codec", length_ns, Provenance.ASSUMED)
            program.insert_after(maker, program.new_task(program.tasks[maker].lane, op, "pack"))
            using = program.tasks[user]
            unpack = program.new_task(using.lane, op, "unpack", using.dependencies)
            program.insert([unpack], before=user)
