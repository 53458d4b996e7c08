"""What-ifs that remove, insert or move tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.graph.builder import Dependency
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.whatif.drafts import ProgramDraft
from perfmodel.whatif.selection import LaneWord, Numbers, Pattern, Selection
from perfmodel.whatif.transformation import Transformation

ALLOCATIONS = Pattern(
    "cudaMalloc|cudaFree|hipMalloc|hipFree|cuMemAlloc|cuMemFree|cuMemCreate|cuMemRelease"
)
REPEATED = Pattern("recompute|checkpoint")
_INHERIT = "Tasks that waited for a removed one wait for its dependencies instead."


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove(Transformation):
    """Tasks like *match* and the launches that serve only them are removed."""

    match: Pattern
    lane: LaneWord = LaneWord.ANY
    rank: Numbers | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Tasks like {self.match} are neither launched nor run. {_INHERIT} Other host "
                "time around their launches stays."
            ),
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        remove_tasks(program, Selection(self.match, self.lane))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLayers(Transformation):
    """The layers like *match* do not exist: no forward, backward, gradients or updates."""

    match: Pattern

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            f"Tasks labelled like {self.match} are deleted on host and device. {_INHERIT}",
            "Gradient buckets and optimizer kernels that cover several layers keep their size.",
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        remove_tasks(program, Selection(self.match))


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutRecompute(Transformation):
    """The backward pass does not repeat work of the forward pass."""

    match: Pattern = REPEATED

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Tasks like {self.match} repeat the forward pass and are removed; memory "
                f"suffices to keep their results. {_INHERIT}"
            ),
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        remove_tasks(program, Selection(self.match))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStalls(Transformation):
    """Host calls like *match* (allocations, frees) neither take time nor wait."""

    match: Pattern = ALLOCATIONS
    rank: Numbers | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Host calls like {self.match} are served from a cache: they take no time and do "
                "not wait for the device."
            ),
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        remove_tasks(program, Selection(self.match, LaneWord.HOST), keep_waits=False)


def remove_tasks(program: ProgramDraft, selection: Selection, *, keep_waits: bool = True) -> None:
    """Remove the tasks of *selection* and the launches that serve only them."""
    found = program.find(selection)
    for number in found:
        # A task's own delay (launch latency, other ranks) is removed with it.
        task = program.tasks[number]
        task.after = [replace(dep, lag_ns=0) for dep in task.dependencies]
    program.remove(found, with_launches=True, keep_waits=keep_waits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(Transformation):
    """A task of *takes* is inserted *after* (or *before*) every matching task, on its lane."""

    takes_ns: int
    after: Pattern | None = None
    before: Pattern | None = None
    lane: LaneWord = LaneWord.DEVICE
    rank: Numbers | None = None
    name: str = "inserted"

    def __post_init__(self) -> None:
        if (self.after is None) == (self.before is None):
            raise ScenarioError("insert: say either after=PATTERN or before=PATTERN.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        side = "after" if self.before is None else "before"
        return (
            (
                f"A task of {format_duration(self.takes_ns)} runs {side} every task like "
                f"{self.before or self.after} on its lane; on a device it shares that task's "
                "launch, which takes no longer."
            ),
            "Tasks that waited for a task also wait for the one inserted after it.",
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        op = Fixed(self.name, self.takes_ns, Provenance.ASSUMED)
        for number in program.find(Selection(self.before or self.after, self.lane)):
            task = program.tasks[number]
            new = program.new_task(task.lane, op, self.name)
            if self.before is None:
                program.insert_after(number, new)
            else:
                new.after = list(task.dependencies)
                program.insert([new], before=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Transformation):
    """Tasks like *match* run elsewhere: on *stream*, or *before* or *after* others of their lane.

    *before* is the next matching task behind them, *after* the last one ahead of them. On another
    stream only tasks like *until* wait for them.
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
        kept = "Launches stay where they are, and tasks keep their dependencies on other lanes."
        if self.stream is None:
            side = f"before the next task like {self.before}"
            if self.before is None:
                side = f"behind the last task like {self.after} ahead of them"
            return (f"Tasks like {self.match} run {side} on their lane. {kept}",)
        until = "nothing" if self.until is None else f"the next task like {self.until}"
        return (
            (
                f"Tasks like {self.match} run on stream {self.stream}, after the tasks that "
                f"preceded them; of their old lane {until} waits for them."
            ),
            kept,
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        found = program.find(Selection(self.match, self.lane))
        goal = self.before or self.after or self.until
        near = [] if goal is None else program.find(Selection(goal, self.lane))
        for number in found:
            self._move(program, number, set(near).difference(found))

    def _move(self, program: ProgramDraft, number: int, goals: set[int]) -> None:
        lane = program.tasks[number].lane
        of_lane = program.lane_tasks[lane]
        place = of_lane.index(number)
        ahead = [one for one in of_lane[:place] if one in goals]
        behind = [one for one in of_lane[place + 1 :] if one in goals]
        if self.stream is not None:
            if place:
                program.tasks[number].dependencies.append(Dependency(of_lane[place - 1]))
            if behind:
                program.tasks[behind[0]].dependencies.append(Dependency(number))
            program.move(number, _lane_called(program, self.stream, program.lanes[lane].kind))
        elif self.before is not None and behind:
            of_lane.remove(number)
            of_lane.insert(of_lane.index(behind[0]), number)
        elif self.after is not None and ahead:
            program.move(number, lane, after=ahead[-1])


def _lane_called(program: ProgramDraft, name: str, kind: LaneKind) -> int:
    for number, lane in enumerate(program.lanes):
        if lane.name in (name, f"stream {name}"):
            return number
    return program.add_lane(name, kind)
