"""Launches: the host tasks that send work to the device."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.graph.program import PLAIN
from perfmodel.whatif.program_draft import ProgramDraft


def is_device(draft: ProgramDraft, number: int) -> bool:
    """Whether a task runs on a stream of the GPU."""
    return draft.lanes[draft.tasks[number].lane].kind.is_device


def launch_of(draft: ProgramDraft, number: int) -> int | None:
    """The host task that launched a device task: its last dependency on a host lane."""
    if not is_device(draft, number):
        return None
    launches = [
        dep.task
        for dep in draft.tasks[number].dependencies
        if dep.distance == 0 and not is_device(draft, dep.task)
    ]
    return launches[-1] if launches else None


def lone_launches(draft: ProgramDraft, numbers: Iterable[int]) -> set[int]:
    """Host tasks that do nothing but launch device tasks among *numbers*."""
    gone = set(numbers)
    waiters = draft.waiters()
    launches = (launch_of(draft, number) for number in gone)
    return {
        launch
        for launch in launches
        if launch is not None
        and launch not in gone
        and draft.tasks[launch].slot == PLAIN
        and gone.issuperset(waiters[launch])
    }
