"""What-ifs about what collectives carry, and all-reduces that are carried out in other ways."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S, format_bandwidth
from perfmodel.graph.job import NO_GROUP, Group, JobGraph
from perfmodel.graph.ops import Communication, Fixed, Op, duration_of
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.drafts import ProgramDraft, Ranks
from perfmodel.whatif.recosting import OnMachine, retime
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.transformation import OpChange, Transformation, edit_programs

ALL_REDUCE = Pattern("all_reduce|AllReduce")
_UNKNOWN_BYTES = "Collectives whose bytes are not known take time in proportion to their bytes."
_INDEX_AND_VALUE = 2
"""A number that is sent alone needs its index too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compress(OnMachine, OpChange):
    """Collectives like *match* carry *ratio* of their bytes."""

    ratio: float
    match: Pattern = ALL_REDUCE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} carry {self.ratio:g} of their bytes; "
                "packing and unpacking are free, and training still converges."
            ),
            _UNKNOWN_BYTES,
            self.cost_sentence,
        )

    def change(self, op: Op, ranks: Ranks) -> Op:
        """The collective with fewer bytes."""
        if isinstance(op, Fixed) and not isinstance(op.work, Communication):
            return retime(op, op.duration_ns * self.ratio)
        old = collective_of(op)
        new = carry(old, ratio=self.ratio)
        return self.rework(op, Communication(old), Communication(new), ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantise(OnMachine, OpChange):
    """Collectives like *match* carry numbers in the format *to*.

    *was* is the format of collectives whose format is not known.
    """

    to: DType
    match: Pattern = ALL_REDUCE
    was: DType = DType.FP32

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} carry {self.to.value}; casting is free, and "
                "training still converges."
            ),
            _UNKNOWN_BYTES,
            self.cost_sentence,
        )

    def change(self, op: Op, ranks: Ranks) -> Op:
        """The collective in the other format."""
        if isinstance(op, Fixed) and not isinstance(op.work, Communication):
            return retime(op, op.duration_ns * (self.to.size_bytes / self.was.size_bytes))
        old = collective_of(op)
        new = carry(old, ratio=self.to.size_bytes / old.dtype.size_bytes)
        quantised = Communication(replace(new, dtype=self.to))
        return self.rework(op, Communication(old), quantised, ranks)


def carry(collective: Collective, *, ratio: float) -> Collective:
    """*collective* with *ratio* of its bytes."""
    matrix = collective.byte_matrix
    if matrix is not None:
        matrix = tuple(tuple(round(sent * ratio) for sent in row) for row in matrix)
    return replace(collective, size_bytes=round(collective.size_bytes * ratio), byte_matrix=matrix)


def collective_of(op: Op) -> Collective:
    """The collective of *op*; a task without a known one is refused."""
    duration_of(op)
    if isinstance(op, Fixed) and isinstance(op.work, Communication):
        return op.work.collective
    name = op.name if isinstance(op, Fixed) else type(op).__name__
    raise ScenarioError(
        f"{name!r}: matches, but is not a collective whose bytes are known. Narrow the pattern, "
        "or change the duration itself with `scale`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsifyGradients(OnMachine, Transformation):
    """Deep gradient compression: of an all-reduce only *ratio* of the numbers are gathered.

    A codec that processes the whole gradient at *rate* runs before and after.
    """

    ratio: float
    rate_bytes_per_s: float
    match: Pattern = ALL_REDUCE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Of all-reduces like {self.match} each rank sends the largest {self.ratio:g} of "
                "the numbers with their indices, as an all-gather; training still converges."
            ),
            (
                f"Choosing and adding up process the whole gradient at "
                f"{format_bandwidth(self.rate_bytes_per_s)} each, on the collective's stream, with "
                "no launch of their own."
            ),
            self.cost_sentence,
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        for number in program.find_collectives(Selection(self.match, LaneWord.DEVICE)):
            task, op = program.tasks[number], program.op(number)
            ranks, whole = program.members(task.slot), collective_of(op)
            sent = whole.size_bytes * self.ratio * _INDEX_AND_VALUE * len(ranks)
            sparse = Collective(CollectiveKind.ALL_GATHER, round(sent), whole.dtype)
            new = self.rework(op, Communication(whole), Communication(sparse), ranks)
            program.set_op(number, new)
            length_ns = round(whole.size_bytes * NS_PER_S / self.rate_bytes_per_s)
            codec = Fixed("codec", length_ns, Provenance.ASSUMED)
            pack = program.new_task(task.lane, codec, "choose", task.dependencies)
            program.insert([pack], before=number)
            program.insert_after(number, program.new_task(task.lane, codec, "add up"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLevels(OnMachine, Transformation):
    """BlueConnect: an all-reduce is a reduce-scatter and an all-gather among *inner* ranks.

    Between them the ranks of equal position reduce their pieces across. The *inner* ranks are
    neighbours: those of a host.
    """

    inner: int
    match: Pattern = ALL_REDUCE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"All-reduces like {self.match} are a reduce-scatter among {self.inner} "
                "neighbouring ranks, an all-reduce of each piece across, and an all-gather, one "
                "after the other on the same stream with the launch of the first."
            ),
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        chosen = Selection(self.match, LaneWord.DEVICE)
        chosen.check_found(job)
        slots = {
            int(slot)
            for program in job.programs
            for slot in program.slot[chosen.mask(job, program)]
            if slot != PLAIN
        }
        split, levels = self._split_groups(job, sorted(slots))

        def edit(program: ProgramDraft) -> None:
            for number in program.find_collectives(chosen):
                self._split(program, number, *levels[program.tasks[number].slot])

        return edit_programs(split, edit, assumptions=self.assumptions)

    def _split_groups(
        self, job: JobGraph, slots: Iterable[int]
    ) -> tuple[JobGraph, dict[int, tuple[int, int]]]:
        """*job* with neighbour and cross groups in new slots, and these two by old slot."""
        groups, columns, levels = list(job.groups), [job.rank_group], {}
        next_slot, inner = job.rank_group.shape[1], self.inner
        for slot in slots:
            added = np.full((job.rank_count, 2), NO_GROUP, dtype=np.int32)
            for number in np.unique(job.rank_group[:, slot]):
                if number == NO_GROUP:
                    continue
                group = job.groups[int(number)]
                ranks, size = group.ranks, len(group.ranks)
                if not 1 < inner < size or size % inner:
                    raise ScenarioError(
                        f"inner: must divide the {size} ranks of group {group.name!r} and leave "
                        f"several across, got {inner}."
                    )
                parts = [
                    *(
                        (0, "beside", ranks[first : first + inner])
                        for first in range(0, size, inner)
                    ),
                    *((1, "across", ranks[place::inner]) for place in range(inner)),
                ]
                for level, word, part in parts:
                    added[list(part), level] = len(groups)
                    groups.append(Group(f"{group.name} {word} {part[0]}", part))
            columns.append(added)
            levels[slot] = (next_slot, next_slot + 1)
            next_slot += 2
        rank_group = np.concatenate(columns, axis=1)
        return replace(job, groups=tuple(groups), rank_group=rank_group), levels

    def _split(self, program: ProgramDraft, number: int, beside: int, across: int) -> None:
        draft, task, op = program.draft, program.tasks[number], program.op(number)
        whole, ranks = collective_of(op), program.members(task.slot)
        piece_bytes = -(-whole.size_bytes // self.inner)
        # Order within a slot: the reduce-scatter of a call, then its all-gather.
        parts = (
            (CollectiveKind.REDUCE_SCATTER, whole.size_bytes, beside, 0),
            (CollectiveKind.ALL_REDUCE, piece_bytes, across, 0),
            (CollectiveKind.ALL_GATHER, whole.size_bytes, beside, 1),
        )
        last = number
        for kind, size_bytes, slot, order in parts:
            work = Communication(Collective(kind, size_bytes, whole.dtype))
            new = self.rework(op, Communication(whole), work, ranks, program.members(slot))
            part = replace(
                task,
                op=draft.op(new),
                label=draft.label(f"{draft.labels[task.label]}: {kind.value}"),
                slot=slot,
                order=(task.order[0], order),
                after=list(task.dependencies) if last == number else [],
            )
            last = program.insert_after(last, part)
        program.remove([number])
