"""Compiling: kernels of eager code joined as a compiler does.

A compiler joins, between two GEMMs, a pointwise kernel to the one that wrote its input, even if a
few others are between them; a norm, softmax or sum may be one of them. Producers are recognised by
size: as many bytes, or as many elements where a kernel has several inputs. Only the first kernel
reads its input and only the last one writes, except for

* inputs of a later kernel from elsewhere;
* the sum before a norm, or after its backward pass: the residual stream continues past it;
* the row sums of a norm's backward pass, a separate kernel that recomputes its inputs;
* the logarithms of a softmax when only those of the targets are used: the others are never
  written, and the backward pass recomputes them.

Leaves out: GEMMs with epilogues, and fusion across GEMMs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.base.dtypes import BITS_PER_BYTE
from perfmodel.extensions.whatif.drafts import ProgramDraft, add_assumptions, edit_programs
from perfmodel.extensions.whatif.editing import Found
from perfmodel.extensions.whatif.fusion import find_runs, keep_first, stated_parts
from perfmodel.extensions.whatif.recosting import retime, time_ratio
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, MemoryBound, Op, work_of
from perfmodel.graph.program import PLAIN, LaneKind
from perfmodel.prediction.saved_jobs import PricingMachine

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
"""Kernels that a compiler fuses with the pointwise ones around them, one per kernel."""
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

    def edit(program: ProgramDraft) -> None:
        compile_kernels(program, dict.fromkeys(program.tasks, 0))

    return add_assumptions(edit_programs(job, edit), [ASSUMPTION])


def compile_kernels(
    program: ProgramDraft, found: Found, *, machine: PricingMachine | None = None
) -> None:
    """Pointwise kernels between two GEMMs that pass on their output are one, as a compiler does.

    One with a stated duration takes the ratio of the work that is left.
    """
    works = {
        number: work
        for number in found
        if program.kind_of(number) is LaneKind.COMPUTE
        and program.tasks[number].slot == PLAIN
        and isinstance(work := work_of(program.op(number)), MemoryBound)
        and work.operator in _JOINED
    }
    chains = []
    for run in find_runs(program, works):
        for chain in join_works([works[number] for number in run]):
            numbers = [run[place] for place in chain.places]
            program.set_op(numbers[0], _compiled(program, numbers, chain, machine))
            chains.append(numbers)
    keep_first(program, chains)


def _compiled(
    program: ProgramDraft, numbers: Sequence[int], chain: Chain, machine: PricingMachine | None
) -> Op:
    """The one kernel of *chain*; stated durations of its parts scale with their work."""
    first = program.op(numbers[0])
    if not isinstance(first, Fixed) or len(numbers) == 1:
        return first if len(numbers) == 1 else chain.work
    reference = chain.works[0]
    before = sum(time_ratio(reference, work, machine=machine) for work in chain.works)
    after = time_ratio(reference, chain.work, machine=machine)
    total_ns = sum(part.duration_ns for part in stated_parts(program, numbers))
    named = replace(first, name=f"compiled {first.name}")
    return retime(named, total_ns * after / before, work=chain.work)


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
