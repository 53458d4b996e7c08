"""What-ifs that put tasks in, or move them to another place."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.selection import LaneWord, Pattern, RankSet, Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A task of *takes* is put in *after* (or *before*) every task like that, on its lane."""

    takes_ns: int
    after: Pattern | None = None
    before: Pattern | None = None
    lane: LaneWord = LaneWord.DEVICE
    rank: RankSet | None = None
    name: str = "inserted"

    def __post_init__(self) -> None:
        if (self.after is None) == (self.before is None):
            raise ScenarioError("insert: say either after=PATTERN or before=PATTERN.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        side = "after" if self.before is None else "before"
        beside = self.after if self.before is None else self.before
        return (
            (
                f"A task of {format_duration(self.takes_ns)} runs {side} every task like {beside} "
                "on its lane; on a device it comes with that task's launch, which takes no longer."
            ),
            "Whoever waited for a task waits for the one put in after it, too.",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        selection = Selection(self.after if self.before is None else self.before, self.lane)
        selection.check_found(job, self.rank)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            op = draft.op(Fixed(self.name, self.takes_ns, Provenance.ASSUMED))
            for number in selection.tasks(job, program.program):
                new = DraftTask(program.tasks[number].lane, op, draft.label(self.name))
                if self.before is None:
                    insert_after(program, number, new)
                else:
                    new.after = list(program.tasks[number].dependencies)
                    program.insert([new], before=number)

        return edit_programs(job, edit, assumptions=self.assumptions, ranks=self.rank)


def insert_after(program: ProgramDraft, number: int, new: DraftTask) -> int:
    """Put *new* right behind a task of its lane; whoever waited for that waits for *new*."""
    [added] = program.insert([new], before=program.next_on_lane(number))
    program.redirect({number: added})
    return added


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Tasks like *match* run elsewhere: on *stream*, or *before* or *after* others of their lane.

    *before* is the next task like that behind them, *after* the last one ahead of them. On
    another stream only tasks like *until* wait for them.
    """

    match: Pattern
    stream: str | None = None
    before: Pattern | None = None
    after: Pattern | None = None
    until: Pattern | None = None
    lane: LaneWord = LaneWord.DEVICE

    def __post_init__(self) -> None:
        given = [one for one in (self.stream, self.before, self.after) if one is not None]
        if len(given) != 1:
            raise ScenarioError("move: say one of stream=NAME, before=PATTERN or after=PATTERN.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        kept = "Launches stay where they are, and what a task waits for elsewhere it waits for."
        if self.stream is None:
            side = f"before the next task like {self.before}"
            if self.before is None:
                side = f"behind the last task like {self.after} ahead of them"
            return (f"Tasks like {self.match} run {side} on their lane. {kept}",)
        until = "nothing" if self.until is None else f"the next task like {self.until}"
        return (
            (
                f"Tasks like {self.match} run on stream {self.stream}, behind what stood ahead of "
                f"them; of their old lane {until} waits for them."
            ),
            kept,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        selection = Selection(self.match, self.lane)
        selection.check_found(job)
        goal = self.before or self.after or self.until
        goals = None if goal is None else Selection(goal, self.lane)
        if goals is not None:
            goals.check_found(job)

        def edit(_: JobDraft, program: ProgramDraft) -> None:
            found = selection.tasks(job, program.program)
            near = [] if goals is None else goals.tasks(job, program.program)
            for number in found:
                self._move(program, number, set(near).difference(found))

        return edit_programs(job, edit, assumptions=self.assumptions)

    def _move(self, program: ProgramDraft, number: int, goals: set[int]) -> None:
        lane = program.tasks[number].lane
        of_lane = program.lane_tasks[lane]
        place = of_lane.index(number)
        behind = [one for one in of_lane[place + 1 :] if one in goals]
        if self.stream is not None:
            if place:
                program.tasks[number].dependencies.append(Dependency(of_lane[place - 1]))
            if behind:
                program.tasks[behind[0]].dependencies.append(Dependency(number))
            program.move(number, _lane_called(program, self.stream, program.lanes[lane].kind))
            return
        ahead = [one for one in of_lane[:place] if one in goals]
        if self.before is not None and behind:
            of_lane.remove(number)
            of_lane.insert(of_lane.index(behind[0]), number)
        elif self.after is not None and ahead:
            of_lane.remove(number)
            of_lane.insert(of_lane.index(ahead[-1]) + 1, number)


def _lane_called(program: ProgramDraft, name: str, kind: LaneKind) -> int:
    for number, lane in enumerate(program.lanes):
        if lane.name in (name, f"stream {name}"):
            return number
    return program.add_lane(name, kind)
