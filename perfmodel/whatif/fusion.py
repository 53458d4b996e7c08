"""Fusion: one kernel out of several, as asked or as a compiler does.

Kernels are joined where they follow each other on a stream and none but the first waits for
another stream; the launch of the first one is kept.

A compiler joins, between two GEMMs, a pointwise kernel to the one that wrote its input, even if a
few others are between them; a norm, softmax or sum may be one of them. Producers are recognised by
size: as many bytes, or as many elements where a kernel has several inputs. Only the first kernel
reads its input and only the last one writes, except for

* inputs of a later kernel from elsewhere;
* the sum before a norm, or after its backward pass: the residual stream continues beside it;
* the row sums of a norm's backward pass, a separate kernel that recomputes its inputs;
* the logarithms of a softmax when only those of the targets are used: the others are never
  written, and the backward pass recomputes them.

Leaves out: GEMMs with epilogues, and fusion across GEMMs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from perfmodel.base.dtypes import BITS_PER_BYTE
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, MemoryBound, duration_of
from perfmodel.graph.program import PLAIN, LaneKind
from perfmodel.whatif.drafts import ProgramDraft, add_assumptions, edit_programs
from perfmodel.whatif.editing import Found
from perfmodel.whatif.recosting import retime


class BytesWord(Enum):
    """Which bytes a merged kernel moves: of the first, read first and written last, or all."""

    FIRST = "first"
    OUTER = "outer"
    SUM = "sum"


def merge(
    program: ProgramDraft,
    found: Found,
    *,
    name: str,
    traffic: float = 1.0,
    moves: BytesWord = BytesWord.FIRST,
    alike: bool = False,
    between: bool = False,
) -> None:
    """Runs of the kernels are one each, which takes *traffic* times the sum of their times.

    Their names begin with *name*. With *alike* only kernels of one name are merged; with
    *between* host work between their launches is removed. A kernel that moves `outer` bytes
    takes time in proportion to them.
    """
    runs = find_runs(program, found)
    if alike:
        runs = [part for run in runs for part in _by_name(program, run)]
    runs = [run for run in runs if len(run) > 1]
    gone = dict.fromkeys(one for run in runs if between for one in _host_between(program, run))
    for run in runs:
        program.set_op(run[0], _join(_parts(program, run), name, traffic, moves))
    keep_first(program, runs)
    program.remove(gone)


def _join(parts: Sequence[Fixed], name: str, traffic: float, moves: BytesWord) -> Fixed:
    total_ns = sum(part.duration_ns for part in parts)
    works = [part.work for part in parts if isinstance(part.work, MemoryBound)]
    named = replace(parts[0], name=f"{name} {parts[0].name}")
    if moves is BytesWord.FIRST or len(works) < len(parts):
        return retime(named, total_ns * traffic)
    read, written = (sum(getattr(work, key) for work in works) for key in _SIZES)
    if moves is BytesWord.SUM:
        sizes = {"read_bytes": round(read * traffic), "write_bytes": round(written * traffic)}
        return retime(named, total_ns * traffic, work=replace(works[0], **sizes))
    work = replace(works[0], write_bytes=works[-1].write_bytes)
    left = work.read_bytes + work.write_bytes
    return retime(named, total_ns * left / max(read + written, 1), work=work)


_SIZES = ("read_bytes", "write_bytes")


def find_runs(program: ProgramDraft, found: Iterable[int]) -> list[list[int]]:
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
        for dep in program.tasks[number].after
    )


def _host_between(program: ProgramDraft, run: Sequence[int]) -> list[int]:
    """Host work from the launch of the first kernel of *run* to that of the last.

    Tasks that wait for the device, or that others wait for, serve more than these kernels.
    """
    launches = [one for number in run if (one := program.launch_of(number)) is not None]
    if not launches:
        return []
    lane, waiters = program.lane_tasks[program.tasks[launches[0]].lane], program.waiters()
    first, last = lane.index(launches[0]), max(lane.index(one) for one in launches if one in lane)
    return [
        number
        for number in lane[first + 1 : last]
        if not waiters[number]
        and program.tasks[number].slot == PLAIN
        and not program.tasks[number].after
    ]


def _parts(program: ProgramDraft, run: Sequence[int]) -> list[Fixed]:
    """The ops of *run*, which must state their durations."""
    ops = [program.op(number) for number in run]
    return [op for op in ops if duration_of(op) >= 0 and isinstance(op, Fixed)]


def _by_name(program: ProgramDraft, run: Sequence[int]) -> list[list[int]]:
    named: dict[str, list[int]] = {}
    for number, op in zip(run, _parts(program, run), strict=True):
        named.setdefault(op.name, []).append(number)
    return list(named.values())


_COMBINING = frozenset(
    {
        "add", "sub", "mul", "div", "relu_backward", "gelu_backward", "silu_backward",
        "dropout_backward", "residual_add", "bias_add", "mask", "swiglu",
    }
)  # fmt: skip
"""Pointwise kernels that read more than one tensor."""
_UNARY = frozenset(
    {"scale", "pow", "relu", "gelu", "silu", "tanh", "sigmoid", "dropout", "cast", "copy", "zero"}
)
_NORMS = frozenset({"layer_norm", "rms_norm", "batch_norm"})
_NORMS_BACKWARD = frozenset(f"{norm}_backward" for norm in _NORMS)
_SOFTMAXES_BACKWARD = frozenset({"softmax_backward", "log_softmax_backward"})
_REDUCING = _NORMS | _NORMS_BACKWARD | _SOFTMAXES_BACKWARD | {"softmax", "log_softmax", "reduction"}
"""Kernels that a compiler joins with the pointwise ones around them, one per kernel."""
_SEVERAL_INPUTS = _COMBINING | _NORMS_BACKWARD | _SOFTMAXES_BACKWARD
_LOGARITHMS = frozenset({"log_softmax"})
_SUMS = frozenset({"add", "residual_add"})
_PICKING = frozenset({"gather"})
_OUTSIDE = frozenset({"accumulate"})
"""Kernels that run after the compiled code, wherever eager code ran them."""
_LOOK_BACK = 4
"""Kernels that may run between one that writes and one that reads."""
_ON_CHIP_ROW = 1024
"""Longer rows are read twice by a softmax: for the maximum and for the sum."""
_PICKED_RATIO = 1 / 16
"""A kernel that touches less of a tensor only picks some elements."""
_SIZE_TOLERANCE = 0.02
"""Statistics and weights of a norm are small compared with its input."""


_JOINED = _COMBINING | _UNARY | _REDUCING | _PICKING | _OUTSIDE


ASSUMPTION = (
    "Eager kernels are joined as a compiler does: pointwise kernels between two GEMMs "
    "that pass on their output, with at most one norm, softmax or sum, are one kernel, "
    "which reads external inputs and writes external outputs; producers are recognised "
    "by size."
)


def compile_job(job: JobGraph) -> JobGraph:
    """*job* with chains of pointwise kernels of eager code as one kernel each."""
    return add_assumptions(edit_programs(job, _compile), [ASSUMPTION])


def _compile(program: ProgramDraft) -> None:
    works = {
        number: op
        for number, task in program.tasks.items()
        if program.kind_of(number) is LaneKind.COMPUTE
        and task.slot == PLAIN
        and isinstance(op := program.op(number), MemoryBound)
        and op.operator in _JOINED
    }
    chains = []
    for run in find_runs(program, works):
        for chain in join_works([works[number] for number in run]):
            chains.append([run[place] for place in chain.places])
            program.set_op(chains[-1][0], chain.work)
    keep_first(program, chains)


@dataclass(slots=True)
class Chain:
    """Kernels that become one: their *places* in a run, and the bytes read and kept besides."""

    places: list[int]
    works: list[MemoryBound]
    read_bytes: int
    kept_bytes: int = 0

    @property
    def work(self) -> MemoryBound:
        """The one kernel."""
        named = next((work for work in self.works if work.operator in _REDUCING), self.works[0])
        return replace(
            named,
            read_bytes=self.read_bytes,
            write_bytes=self.works[-1].write_bytes + self.kept_bytes,
            flops=sum(work.flops for work in self.works),
        )

    def hands_to(self, work: MemoryBound) -> bool:
        """Whether *work* reads what this chain writes, judged by size."""
        last = self.works[-1]
        if _OUTSIDE & {work.operator, last.operator}:
            return False
        if work.operator in _PICKING:
            touched_bytes = work.read_bytes + work.write_bytes
            is_picked = touched_bytes < last.write_bytes * _PICKED_RATIO
            return is_picked and self._has(_LOGARITHMS)
        if work.operator in _REDUCING and self._has(_REDUCING):
            return False
        if _is_about(_handed_bytes(last), work.read_bytes):
            return True
        return (
            work.operator in _SEVERAL_INPUTS
            and _handed_bytes(last) < work.read_bytes
            and _is_about(_elements(last), _elements(work))
        )

    def add(self, place: int, work: MemoryBound) -> None:
        """Append *work*."""
        last = self.works[-1]
        if work.operator in _PICKING:
            row_length = max(before.row_length for before in self.works)
            self.read_bytes *= 2 if row_length > _ON_CHIP_ROW else 1
        else:
            self.read_bytes += max(work.read_bytes - _handed_bytes(last), 0)
        if last.operator in _SUMS and (work.operator in _NORMS or self._has(_NORMS_BACKWARD)):
            self.kept_bytes += last.write_bytes
        self.places.append(place)
        self.works.append(work)

    def _has(self, words: frozenset[str]) -> bool:
        return any(work.operator in words for work in self.works)


def join_works(works: Sequence[MemoryBound]) -> list[Chain]:
    """The kernels that remain of *works*, which follow each other on a stream."""
    chains: list[Chain] = []
    for place, work in enumerate(works):
        near = [chain for chain in reversed(chains) if place - chain.places[-1] <= _LOOK_BACK]
        norm = next((chain for chain in near if _sums_rows(work, chain)), None)
        if norm is not None:
            chains.append(Chain([place], [work], norm.read_bytes))
            continue
        before = next((chain for chain in near if chain.hands_to(work)), None)
        if before is None:
            chains.append(Chain([place], [work], work.read_bytes))
        else:
            before.add(place, work)
    return chains


def _sums_rows(work: MemoryBound, chain: Chain) -> bool:
    """Whether *work* is the second kernel of a norm's backward pass, which reads the same."""
    last, is_sum = chain.works[-1], work.operator == "reduction"
    return is_sum and last.operator in _NORMS_BACKWARD and work.read_bytes == last.read_bytes


def _elements(work: MemoryBound) -> float:
    return _handed_bytes(work) * BITS_PER_BYTE / work.dtype.size_bits


def _handed_bytes(work: MemoryBound) -> int:
    """What *work* writes for others; a dropout also writes a mask."""
    return work.read_bytes if work.operator == "dropout" else work.write_bytes


def _is_about(one: float, other: float) -> bool:
    return one > 0 and abs(one - other) <= _SIZE_TOLERANCE * other
