"""JobDraft: a job being edited; ranks that shared a program part only where they must.

Two kinds of edits cover everything: new ops for tasks (`change_ops`), and new
structure for programs (`edit_programs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, Op, Work, duration_of
from perfmodel.graph.program import PLAIN, Program
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.selection import RankSet, Selection

Ranks = tuple[int, ...]
ChangeOp = Callable[[Op, Ranks], Op]
"""From an op and the ranks that carry it out together (none for a plain task) to a new op."""
EditProgram = Callable[["JobDraft", ProgramDraft], None]


class JobDraft:
    """Ops, labels and programs of a job, which may grow."""

    def __init__(self, job: JobGraph) -> None:
        self.job = job
        self._ops = list(job.ops)
        self._op_index = {op: index for index, op in enumerate(job.ops)}
        self._labels = list(job.labels)
        self._label_index = {label: index for index, label in enumerate(job.labels)}
        self._programs: list[Program] = list(job.programs)
        self._rank_program = job.rank_program.copy()

    def op(self, op: Op) -> int:
        """The index of *op*, added if it is new."""
        if op not in self._op_index:
            self._op_index[op] = len(self._ops)
            self._ops.append(op)
        return self._op_index[op]

    def op_at(self, index: int) -> Op:
        """The op with that *index*."""
        return self._ops[index]

    def op_of(self, program: ProgramDraft, number: int) -> Op:
        """The op of a task of *program*."""
        return self._ops[program.tasks[number].op]

    def label(self, label: str) -> int:
        """The index of *label*, added if it is new."""
        if label not in self._label_index:
            self._label_index[label] = len(self._labels)
            self._labels.append(label)
        return self._label_index[label]

    def label_at(self, index: int) -> str:
        """The label with that *index*."""
        return self._labels[index]

    def edit(self, edit: Callable[[Program, int], Program], ranks: RankSet | None = None) -> None:
        """Put programs through *edit*, with one of their ranks; others keep the old ones."""
        chosen = np.arange(self.job.rank_count) if ranks is None else np.array(ranks.ranks)
        for index in np.unique(self._rank_program[chosen]).tolist():
            of_program = chosen[self._rank_program[chosen] == index]
            edited = edit(self._programs[index], int(of_program[0]))
            if edited is self._programs[index]:
                continue
            if len(of_program) == np.count_nonzero(self._rank_program == index):
                self._programs[index] = edited
            else:
                self._programs.append(edited)
                self._rank_program[of_program] = len(self._programs) - 1

    def build(self, assumptions: Iterable[str] = ()) -> JobGraph:
        """The job as it is now, with more *assumptions* on it."""
        facts = self.job.facts
        stated = tuple(dict.fromkeys((*facts.assumptions, *assumptions)))
        return replace(
            self.job,
            ops=tuple(self._ops),
            labels=tuple(self._labels),
            programs=tuple(self._programs),
            rank_program=self._rank_program,
            facts=replace(facts, assumptions=stated),
        )


def edit_programs(
    job: JobGraph,
    edit: EditProgram,
    *,
    assumptions: Sequence[str],
    ranks: RankSet | None = None,
) -> JobGraph:
    """*job* with the structure of its programs changed by *edit*."""
    draft = JobDraft(job)

    def edit_one(program: Program, rank: int) -> Program:
        of_program = ProgramDraft(program, rank)
        edit(draft, of_program)
        return of_program.build()

    draft.edit(edit_one, ranks)
    return draft.build(assumptions)


def change_ops(
    job: JobGraph,
    selection: Selection,
    change: ChangeOp,
    *,
    assumptions: Sequence[str],
    ranks: RankSet | None = None,
) -> JobGraph:
    """*job* with other ops for the tasks of *selection*, which must not be empty."""
    selection.check_found(job, ranks)
    draft = JobDraft(job)

    def change_one(program: Program, rank: int) -> Program:
        tasks = np.flatnonzero(selection.mask(job, program))
        column = program.op.copy()
        for op, slot in {(int(program.op[task]), int(program.slot[task])) for task in tasks}:
            group = () if slot == PLAIN else job.groups[int(job.rank_group[rank, slot])].ranks
            same = tasks[(program.op[tasks] == op) & (program.slot[tasks] == slot)]
            column[same] = draft.op(change(job.ops[op], group))
        return program if np.array_equal(column, program.op) else replace(program, op=column)

    draft.edit(change_one, ranks)
    return draft.build(assumptions)


def retime(op: Op, duration_ns: float, *, work: Work | None = None) -> Fixed:
    """A task that states its duration with another one, and with other *work* if given.

    What keeps its duration and work keeps how it is known; the rest is assumed.
    """
    stated_ns, rounded = duration_of(op), round(duration_ns)
    assert isinstance(op, Fixed)
    if rounded == stated_ns and work in (None, op.work):
        return op
    return replace(
        op,
        duration_ns=rounded,
        provenance=Provenance.ASSUMED,
        work=op.work if work is None else work,
    )
