"""Phases: the progress of the work, and how long each phase took.

Seconds are read from the wall clock and go only into the `run` part of an
answer; nothing that is predicted depends on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.execution.executor import Executor, Item, Result, Shared

OnPhase = Callable[[str, float], None]
"""Called with the name of the phase that begins and the share (0..1) of the work that is done."""


COMPILING = "compiling (first run only)"


def ignore_phase(phase: str, done: float) -> None:
    """Progress is not shown."""


@dataclass(slots=True)
class PhaseClock:
    """Announces phases and keeps how long each took."""

    on_phase: OnPhase = ignore_phase
    phase_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str, *, done: float) -> Iterator[None]:
        """Announce *name*, with *done* of all work finished, and time what follows.

        The first prediction of an installation compiles for half a minute, and says so.
        """
        from perfmodel.base.compiling import watch_compiling  # numba takes long to load

        def tell(is_compiling: bool) -> None:
            self.on_phase(COMPILING if is_compiling else name, done)

        self.on_phase(name, done)
        start = time.perf_counter()
        try:
            with watch_compiling(tell):
                yield
        finally:
            elapsed_s = time.perf_counter() - start
            self.phase_s[name] = self.phase_s.get(name, 0.0) + elapsed_s


STEPS = 50
"""Into how many pieces a long list of questions is split, to report progress."""


def map_in_steps(
    executor: Executor,
    function: Callable[[Shared, Item], Result],
    shared: Shared,
    items: Sequence[Item],
    *,
    on_phase: OnPhase,
    phase: str,
) -> list[Result]:
    """What `executor.map` gives, with *phase* reported after every few of *items*."""
    found: list[Result] = []
    step = max(1, -(-len(items) // STEPS))
    for first in range(0, len(items), step):
        on_phase(f"{phase} {first + 1} of {len(items)}", first / len(items))
        found += executor.map(function, shared, items[first : first + step])
    return found
