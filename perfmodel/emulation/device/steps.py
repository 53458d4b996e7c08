"""Steps: which part of a script is a steady iteration.

An iteration lasts from one step of the first optimizer to its next. The first ones
are left out: DDP rebuilds its buckets after the first, optimizers make their state.
A script that updates its parameters by hand clears their gradients once an iteration.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from perfmodel.emulation.device.recorder import Recorder

_BY_HAND = -1
"""Who is watched where no optimizer is."""
_TOLD_BY_HAND = (
    "No optimizer of torch.optim makes a step: an iteration ends where a module's gradients are "
    "cleared after a backward pass."
)


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
        self._has_gradients = False
        self._cleared_count = 0
        self._cpu_s = 0.0

    @property
    def first_steady(self) -> int:
        """The number of the first steady iteration between boundaries."""
        return min(self._warmup, 1)

    def install(self) -> None:
        """Be told of every step."""
        register_optimizer_step_post_hook(self._stepped)
        self._watch_gradients()
        self._cpu_s = time.process_time()
        if self._warmup <= 1:
            self._begin()

    def _stepped(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        if self._watched is None:
            self._watched = id(optimizer)
        if id(optimizer) == self._watched:
            self._count()

    def _watch_gradients(self) -> None:
        """Be told when gradients are made, and when they are cleared."""
        run_backward, clear = torch.autograd.backward, torch.nn.Module.zero_grad

        def backward(*args: Any, **kwargs: Any) -> None:
            run_backward(*args, **kwargs)
            self._has_gradients = True

        def zero_grad(module: torch.nn.Module, set_to_none: bool = True) -> None:
            self._cleared()
            clear(module, set_to_none)

        torch.autograd.backward = backward
        torch.nn.Module.zero_grad = zero_grad

    def _cleared(self) -> None:
        if not self._has_gradients or self._watched not in (None, _BY_HAND):
            return
        self._has_gradients = False
        self._cleared_count += 1
        # Twice without a step: no optimizer of torch is waited for any longer.
        if self._cleared_count >= 2:
            self._watched = _BY_HAND
            self._recorder.notes[_TOLD_BY_HAND] = None
            self._count()

    def _count(self) -> None:
        if self.step_count >= self._last:
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
