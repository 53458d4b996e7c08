"""What-ifs that take tasks out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.graph.job import JobGraph
from perfmodel.whatif.cuda_graphs import lone_launches
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.selection import LaneWord, Pattern, RankSet, Selection

ALLOCATIONS = Pattern(
    "cudaMalloc|cudaFree|hipMalloc|hipFree|cuMemAlloc|cuMemFree|cuMemCreate|cuMemRelease"
)
REPEATED = Pattern("recompute|checkpoint")
_INHERIT = "Whoever waited for a removed task waits for what it waited for."


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Tasks like *match* and the launches that serve only them are taken out."""

    match: Pattern
    lane: LaneWord = LaneWord.ANY
    rank: RankSet | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Tasks like {self.match} are not done, nor launched. {_INHERIT} Other host time "
                "around their launches stays."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return remove_tasks(
            job,
            Selection(self.match, self.lane),
            assumptions=self.assumptions,
            ranks=self.rank,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLayers:
    """The layers like *match* are not there: forward, backward, gradients and updates."""

    match: Pattern

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            f"Tasks labelled like {self.match} are deleted on host and device. {_INHERIT}",
            "Buckets of gradients and optimizer kernels that cover several layers keep their size.",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return remove_tasks(job, Selection(self.match), assumptions=self.assumptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutRecompute:
    """Work that the backward pass repeats from the forward pass is not repeated."""

    match: Pattern = REPEATED

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Tasks like {self.match} repeat the forward pass and are not done; memory "
                f"suffices to keep what they made. {_INHERIT}"
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return remove_tasks(job, Selection(self.match), assumptions=self.assumptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStalls:
    """Host calls like *match* (allocations, frees) neither take time nor wait."""

    match: Pattern = ALLOCATIONS
    rank: RankSet | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Host calls like {self.match} are served from a cache: they take no time and do "
                "not wait for the device."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        return remove_tasks(
            job,
            Selection(self.match, LaneWord.HOST),
            assumptions=self.assumptions,
            ranks=self.rank,
            keep_waits=False,
        )


def remove_tasks(
    job: JobGraph,
    selection: Selection,
    *,
    assumptions: tuple[str, ...],
    ranks: RankSet | None = None,
    keep_waits: bool = True,
) -> JobGraph:
    """*job* without the tasks of *selection* and the launches that serve only them."""
    selection.check_found(job, ranks)

    def edit(_: JobDraft, program: ProgramDraft) -> None:
        found = selection.tasks(job, program.program)
        for number in found:
            # How long a task itself hesitates (launch latency, other ranks) goes with it.
            task = program.tasks[number]
            task.after = [replace(dep, lag_ns=0) for dep in task.dependencies]
        program.remove([*found, *sorted(lone_launches(program, found))], keep_waits=keep_waits)

    return edit_programs(job, edit, assumptions=assumptions, ranks=ranks)
