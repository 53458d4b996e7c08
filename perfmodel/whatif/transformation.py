"""Transformation: a what-if, which takes one job to another.

A transformation is a frozen dataclass; its fields are its parameters. It either edits programs
task by task (`edit`), or gives tasks other ops (`OpChange`). It adds its assumptions to the job,
so that every later answer carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.errors import GraphError, PerfModelError, ScenarioError
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import JobGraph, with_own_origins
from perfmodel.graph.ops import Op
from perfmodel.graph.program import PLAIN, Program
from perfmodel.whatif.drafts import JobDraft, ProgramDraft, Ranks
from perfmodel.whatif.recosting import Recosted, check_numbers
from perfmodel.whatif.selection import LaneWord, Numbers, Pattern, Selection
from perfmodel.whatif.touching import Touched, count_matched, find_touched

ChangeOp = Callable[[Op, Ranks], Op]
"""From an op and the ranks that carry it out together (none for a plain task) to a new op."""


class Transformation:
    """A change of a job. Some have a field *rank*, and change only those ranks.

    Fields of type float are factors, or the rate at which data is processed.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted, in sentences."""
        raise NotImplementedError

    @property
    def selection(self) -> Selection | None:
        """The tasks that count as touched even where they stay as they are."""
        return None

    @property
    def edited_ranks(self) -> Numbers | None:
        """The ranks that change, None for all."""
        return getattr(self, "rank", None)

    def recosted(self, job: JobGraph) -> Recosted | None:  # noqa: ARG002  some look at it
        """How much of *job* is priced again; None where nothing is."""
        return None

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        raise NotImplementedError

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job; *job* itself stays as it is."""
        return edit_programs(job, self.edit, assumptions=self.assumptions, ranks=self.edited_ranks)


class OpChange(Transformation):
    """A transformation that gives the tasks of its selection other ops.

    These are tasks like *match* on the lanes *lane*, which need not be parameters.
    """

    __slots__ = ()
    match: Pattern | None
    lane = LaneWord.DEVICE

    @property
    def selection(self) -> Selection:
        """The tasks that change."""
        return Selection(self.match, self.lane)

    def change(self, op: Op, ranks: Ranks) -> Op:
        """The op of a task instead of *op*, which *ranks* carry out together."""
        raise NotImplementedError

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job; *job* itself stays as it is."""
        return change_ops(
            job,
            self.selection,
            self.change,
            assumptions=self.assumptions,
            ranks=self.edited_ranks,
        )


def edit_programs(
    job: JobGraph,
    edit: Callable[[ProgramDraft], None],
    *,
    assumptions: Sequence[str] = (),
    ranks: Numbers | None = None,
) -> JobGraph:
    """*job* with the structure of its programs changed by *edit*."""
    if ranks is not None:
        ranks.check_ranks(job)
    draft = JobDraft(job, ranks)

    def edit_one(program: Program, rank: int) -> Program:
        of_program = ProgramDraft(draft, program, rank)
        edit(of_program)
        return of_program.build()

    draft.edit(edit_one)
    return draft.build(assumptions)


def change_ops(
    job: JobGraph,
    selection: Selection,
    change: ChangeOp,
    *,
    assumptions: Sequence[str] = (),
    ranks: Numbers | None = None,
) -> JobGraph:
    """*job* with other ops for the tasks of *selection*, which must not be empty."""
    selection.check_found(job, ranks)
    draft = JobDraft(job, ranks)

    def change_one(program: Program, rank: int) -> Program:
        tasks = np.flatnonzero(selection.mask(job, program))
        column = program.op.copy()
        for op, slot in {(int(program.op[task]), int(program.slot[task])) for task in tasks}:
            group = () if slot == PLAIN else job.groups[int(job.rank_group[rank, slot])].ranks
            same = tasks[(program.op[tasks] == op) & (program.slot[tasks] == slot)]
            column[same] = draft.op(change(job.ops[op], group))
        return program if np.array_equal(column, program.op) else replace(program, op=column)

    draft.edit(change_one)
    return draft.build(assumptions)


LEAST_RECOSTED = 0.5
"""A change that can price less of the time than this is refused, unless forced."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A changed job and what the change touched; *recosted* is None where nothing is re-costed."""

    job: JobGraph
    touched: Touched
    recosted: Recosted | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """How much of the time was priced again, where that applies."""
        return () if self.recosted is None else (f"{self.recosted.words}.",)


def apply_one(
    job: JobGraph,
    transformation: Transformation,
    *,
    name: str,
    force: bool = False,
    may_touch_nothing: bool = False,
) -> Applied:
    """*job* after *transformation*, audited; errors show *name*.

    Tasks must have origins of their own. A change that can price less than half of its time
    is refused unless *force* is set.
    """
    try:
        recosted = transformation.recosted(job)
        if recosted is not None and recosted.ratio < LEAST_RECOSTED and not force:
            raise ScenarioError(
                f"only {recosted.words}, less than half. Import the recording with shapes "
                "(execution traces beside it), or ask with --force."
            )
        changed = transformation.apply(job)
        check_job(changed)
        matched = count_matched(job, transformation.selection, transformation.edited_ranks)
        touched = find_touched(job, changed, matched)
        if not touched.tasks and not may_touch_nothing:
            raise ScenarioError(
                "touches no task: the pattern matches, but nothing changes (kernels that do not "
                "follow each other, or collectives of a rank that was recorded alone, cannot be "
                "joined or cut). Look at the tasks with `perfmodel predict --job JOB "
                "--trace-out FILE`, and name others."
            )
    except GraphError as fault:
        raise GraphError(f"what-if {name!r} leaves a job that cannot run: {fault}") from None
    except PerfModelError as fault:
        raise type(fault)(f"what-if {name!r}: {fault}") from None
    return Applied(changed, touched, recosted)


def apply_all(job: JobGraph, transformations: Iterable[Transformation]) -> JobGraph:
    """*job* after all *transformations*, one after the other, each result audited.

    Each must touch something, and be able to price what it changes.
    """
    changes = list(transformations)
    if changes:
        job = with_own_origins(job)
    for change in changes:
        job = apply_one(job, change, name=type(change).__name__).job
    return job
