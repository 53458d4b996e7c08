"""Steps: which part of a script is a steady iteration.

An iteration lasts from one step of the first optimizer to its next. The first ones
are left out: DDP rebuilds its buckets after the first, optimizers make their state.
"""

from __future__ import annotations

import time
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from perfmodel.emulation.device.recorder import Recorder


class StepWatch:
    """Turns the recorder on before the last warm-up iteration and off behind the last steady one.

    The last warm-up iteration is recorded too: what happens in it is what the first
    steady one waits for.
    """

    def __init__(self, recorder: Recorder, *, warmup: int, iterations: int, runs_on: bool) -> None:
        self.step_count = 0
        self.boundaries: list[int] = []
        self.step_cpu_s: list[float] = []
        self._recorder = recorder
        self._warmup = warmup
        self._last = warmup + iterations
        self._runs_on = runs_on
        self._watched: int | None = None
        self._cpu_s = 0.0

    @property
    def first_steady(self) -> int:
        """The number of the first steady iteration between boundaries."""
        return min(self._warmup, 1)

    def install(self) -> None:
        """Be told of every step."""
        register_optimizer_step_post_hook(self._stepped)
        self._cpu_s = time.process_time()
        if self._warmup <= 1:
            self._begin()

    def _stepped(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        if self._watched is None:
            self._watched = id(optimizer)
        if id(optimizer) != self._watched or self.step_count >= self._last:
            return
        self.step_count += 1
        now = time.process_time()
        self.step_cpu_s.append(now - self._cpu_s)
        self._cpu_s = now
        if self.step_count == self._warmup - 1:
            self._begin()
        elif self._recorder.is_on:
            self._recorder.flush()
            self.boundaries.append(len(self._recorder.calls))
        if self.step_count == self._last:
            self._recorder.is_on = False
            self._recorder.is_over = not self._runs_on

    def _begin(self) -> None:
        self._recorder.flush()
        self._recorder.is_on = True
        self.boundaries.append(len(self._recorder.calls))
