"""What-ifs that carry an all-reduce out in another way: by levels, or with few of its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S, format_bandwidth
from perfmodel.graph.job import NO_GROUP, Group, JobGraph
from perfmodel.graph.ops import Communication, Fixed, duration_of
from perfmodel.whatif.durations import check_factor
from perfmodel.whatif.inserting import insert_after
from perfmodel.whatif.job_draft import JobDraft, Ranks, edit_programs, retime
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.recosting import Effort, OnMachine
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.traffic import ALL_REDUCE, collective_of

_INDEX_AND_VALUE = 2
"""A number that is sent alone needs its place beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsifyGradients(OnMachine):
    """Deep gradient compression: of an all-reduce only *ratio* of the numbers are gathered.

    A codec that works through the whole gradient at *rate* stands before and after.
    """

    ratio: float
    rate_bytes_per_s: float
    match: Pattern = ALL_REDUCE

    def __post_init__(self) -> None:
        OnMachine.__post_init__(self)
        check_factor("ratio", self.ratio)
        if not self.rate_bytes_per_s > 0:
            raise ScenarioError(f"rate: must be above zero, got {self.rate_bytes_per_s:g} B/s.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Of all-reduces like {self.match} each rank sends the largest {self.ratio:g} of "
                "the numbers with their places, as an all-gather; training still converges."
            ),
            (
                f"Choosing and adding up go through the whole gradient at "
                f"{format_bandwidth(self.rate_bytes_per_s)} each, on the collective's stream, with "
                "no launch of their own."
            ),
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        chosen = _all_reduces(job, self.match)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            for number in chosen.collectives(job, program.program):
                self._sparsify(draft, program, number)

        return edit_programs(job, edit, assumptions=self.assumptions)

    def _sparsify(self, draft: JobDraft, program: ProgramDraft, number: int) -> None:
        task, op = program.tasks[number], draft.op_of(program, number)
        ranks, whole = _members(draft.job, program.rank, task.slot), collective_of(op)
        sent = whole.size_bytes * self.ratio * _INDEX_AND_VALUE * len(ranks)
        sparse = Collective(CollectiveKind.ALL_GATHER, round(sent), whole.dtype)
        old, new = Effort(Communication(whole), ranks), Effort(Communication(sparse), ranks)
        duration_ns = duration_of(op) * self.time_ratio(old, new)
        task.op = draft.op(retime(op, duration_ns, work=new.work))
        length_ns = round(whole.size_bytes * NS_PER_S / self.rate_bytes_per_s)
        codec = draft.op(Fixed("codec", length_ns, Provenance.ASSUMED))
        pack = DraftTask(task.lane, codec, draft.label("choose"), after=list(task.dependencies))
        program.insert([pack], before=number)
        insert_after(program, number, DraftTask(task.lane, codec, draft.label("add up")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLevels(OnMachine):
    """BlueConnect: an all-reduce is a reduce-scatter and an all-gather among *inner* ranks.

    Between them the ranks of equal place reduce their pieces across. *inner* ranks
    stand side by side: those of a host.
    """

    inner: int
    match: Pattern = ALL_REDUCE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"All-reduces like {self.match} are a reduce-scatter among {self.inner} ranks side "
                "by side, an all-reduce of each piece across, and an all-gather, one after the "
                "other on the same stream with the launch of the first."
            ),
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        chosen = _all_reduces(job, self.match)
        slots = sorted(
            {
                int(slot)
                for program in job.programs
                for slot in program.slot[chosen.collectives(job, program)]
            }
        )
        split, levels = self._split_groups(job, slots)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            for number in chosen.collectives(job, program.program):
                self._split(draft, program, number, levels)

        return edit_programs(split, edit, assumptions=self.assumptions)

    def _split_groups(
        self, job: JobGraph, slots: Iterable[int]
    ) -> tuple[JobGraph, dict[int, tuple[int, int]]]:
        """*job* with groups side by side and across behind new slots, and those by old slot."""
        groups, columns, levels = list(job.groups), [job.rank_group], {}
        next_slot = job.rank_group.shape[1]
        for slot in slots:
            added = np.full((job.rank_count, 2), NO_GROUP, dtype=np.int32)
            for number in np.unique(job.rank_group[:, slot]):
                if number == NO_GROUP:
                    continue
                group = job.groups[int(number)]
                self._check(group)
                for level, parts in enumerate(self._parts(group)):
                    for part in parts:
                        added[list(part), level] = len(groups)
                        word = ("beside", "across")[level]
                        groups.append(Group(f"{group.name} {word} {part[0]}", part))
            columns.append(added)
            levels[slot] = (next_slot, next_slot + 1)
            next_slot += 2
        rank_group = np.concatenate(columns, axis=1)
        return replace(job, groups=tuple(groups), rank_group=rank_group), levels

    def _check(self, group: Group) -> None:
        size = len(group.ranks)
        if not 1 < self.inner < size or size % self.inner:
            raise ScenarioError(
                f"inner: must divide the {size} ranks of group {group.name!r} and leave several "
                f"across, got {self.inner}."
            )

    def _parts(self, group: Group) -> tuple[list[Ranks], list[Ranks]]:
        ranks, inner = group.ranks, self.inner
        beside = [ranks[first : first + inner] for first in range(0, len(ranks), inner)]
        across = [ranks[place::inner] for place in range(inner)]
        return beside, across

    def _split(
        self,
        draft: JobDraft,
        program: ProgramDraft,
        number: int,
        levels: dict[int, tuple[int, int]],
    ) -> None:
        job, task, op = draft.job, program.tasks[number], draft.op_of(program, number)
        whole = collective_of(op)
        old = Effort(Communication(whole), _members(job, program.rank, task.slot))
        beside, across = levels[task.slot]
        piece_bytes = -(-whole.size_bytes // self.inner)
        # Order within a slot: the reduce-scatter of a call, then its all-gather.
        parts = (
            (CollectiveKind.REDUCE_SCATTER, whole.size_bytes, beside, 0),
            (CollectiveKind.ALL_REDUCE, piece_bytes, across, 0),
            (CollectiveKind.ALL_GATHER, whole.size_bytes, beside, 1),
        )
        last = number
        label = draft.label_at(task.label)
        for place, (kind, size_bytes, level, order) in enumerate(parts):
            work = Communication(Collective(kind, size_bytes, whole.dtype))
            new = Effort(work, _members(job, program.rank, level))
            duration_ns = duration_of(op) * self.time_ratio(old, new)
            part = replace(
                task,
                op=draft.op(retime(op, duration_ns, work=work)),
                label=draft.label(f"{label}: {kind.value}"),
                slot=level,
                order=(task.order[0], order),
                after=list(task.dependencies) if place == 0 else [],
            )
            last = insert_after(program, last, part)
        program.remove([number])


def _all_reduces(job: JobGraph, match: Pattern) -> Selection:
    chosen = Selection(match, LaneWord.DEVICE)
    chosen.check_found(job)
    return chosen


def _members(job: JobGraph, rank: int, slot: int) -> Ranks:
    return job.groups[int(job.rank_group[rank, slot])].ranks
