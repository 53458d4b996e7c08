"""What-if about a slow rank: it takes as long as the others."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median_low

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Program
from perfmodel.whatif.job_draft import JobDraft, retime
from perfmodel.whatif.selection import (
    LaneWord,
    RankSet,
    duration_of,
    lane_mask,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStraggler:
    """Rank *rank* takes as long over everything as the other ranks do.

    A task's partners are those with the same label before the same next task,
    counted along the lanes of one kind; the lower median of them is taken.
    """

    rank: RankSet
    lane: LaneWord = LaneWord.ANY

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Rank {self.rank} takes as long as the other ranks do (lower median) for every "
                "task that they have too; the rest keeps its duration."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        self.rank.check(job)
        others = [rank for rank in range(job.rank_count) if rank not in self.rank.ranks]
        if not others:
            raise ScenarioError("a rank can only be like others, but none is left.")
        known: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for rank in others:
            program = job.program_of(rank)
            for key, task in _keys(job, program):
                known[key].append(duration_of(job.ops[int(program.op[task])]))
        draft = JobDraft(job)

        def edit(program: Program, rank: int) -> Program:
            del rank
            chosen = lane_mask(program, self.lane)
            column = program.op.copy()
            for key, task in _keys(job, program):
                if chosen[task] and known.get(key):
                    op = job.ops[int(program.op[task])]
                    column[task] = draft.op(retime(op, median_low(known[key])))
            return replace(program, op=column)

        draft.edit(edit, self.rank)
        return draft.build(self.assumptions)


def _keys(job: JobGraph, program: Program) -> list[tuple[tuple[object, ...], int]]:
    """A key for every task under which its partners on other ranks are found."""
    seen: dict[tuple[object, ...], int] = defaultdict(int)
    keys: list[tuple[tuple[object, ...], int]] = []
    for lane, (first, stop) in enumerate(
        zip(program.lane_start[:-1].tolist(), program.lane_start[1:].tolist(), strict=True)
    ):
        labels = [job.labels[label] for label in program.label[first:stop].tolist()]
        for place, label in enumerate(labels):
            following = labels[place + 1] if place + 1 < len(labels) else ""
            key = (program.lanes[lane].kind, label, following)
            keys.append(((*key, seen[key]), first + place))
            seen[key] += 1
    return keys
