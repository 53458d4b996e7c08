"""Steps: where the iterations of a script begin and end, and when they are recorded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from perfmodel.extensions.emulation.driver.recorder import Recorder
from perfmodel.extensions.emulation.rank_record import IterationRecord
from perfmodel.extensions.emulation.request import DEFAULT_WARMUP, Emulation

_BY_HAND = -1
"""What is watched where there is no optimizer."""
_UPDATED_BY_HAND = (
    "No optimizer of torch.optim makes a step: an iteration ends where a module's gradients are "
    "cleared, or where a backward pass finds gradients that were changed since the last one."
)
_ENDS_EARLY = (
    "The script ended during its warm-up: its last optimizer step counts, with what was prepared "
    "since the step before or since the optimizer was made."
)
_MOST_ASIDE = 16
"""Steps on a side stream that count as warm-up of a capture; DDP needs eleven."""


def _find_leaves(args: Sequence[Any]) -> list[Tensor]:
    """The tensors that a backward pass from the first of *args* makes gradients of."""
    first = args[0] if args and isinstance(args[0], Tensor) else None
    waiting, seen = [first.grad_fn if first is not None else None], set()
    leaves = []
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [inner for inner, _ in node.next_functions]
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                leaves.append(leaf)
    return leaves


def _versions_of(leaves: Sequence[Tensor]) -> list[tuple[int, int | None]]:
    """How often each of *leaves* and its gradient, if it has one, were changed in place."""
    return [(leaf._version, None if leaf.grad is None else leaf.grad._version) for leaf in leaves]


class StepWatch:
    """Turns the recorder on before the last warm-up iteration and off after the last steady one.

    The last warm-up iteration is recorded too, because the first steady one waits for its events,
    and with a short warm-up all since the last optimizer was made: a script that ends during its
    warm-up is judged by its last step.
    """

    def __init__(self, recorder: Recorder, request: Emulation) -> None:
        self.step_count = 0
        self.boundaries: list[int] = []
        self.step_cpu_s: list[float] = []
        self._recorder = recorder
        self._warmup = request.warmup
        self._last = request.warmup + request.iterations
        self._steps_each = request.steps_per_iteration
        self._partial = 0
        self.most_aside = 0
        self._aside_before = 0
        self._runs_on = request.runs_on
        self._watched: int | None = None
        self._has_gradients = False
        self._has_optimizer = False
        self._leaves: list[Tensor] = []
        self._versions: list[tuple[int, int | None]] = []
        self.iterations: list[IterationRecord] = []
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._steps: Counter[int] = Counter()
        self._backwards = self._evaluations = 0
        self._evaluated: dict[int, int] = {}
        self._cleared_count = 0
        self._aside = 0
        self._cpu_s = 0.0

    @property
    def first_steady(self) -> int:
        """The number of the first steady iteration between boundaries, or of the last of all."""
        return len(self.boundaries) - 1 - max(self.step_count - self._warmup, 1)

    def install(self) -> None:
        """Observe every step."""
        register_optimizer_step_pre_hook(self._stepping)
        register_optimizer_step_post_hook(self._stepped)
        self._recorder.on_capture, self._recorder.on_replay = self._restart, self._count
        self._watch_gradients()
        self._watch_evaluations()
        self._cpu_s = time.process_time()
        if self._warmup <= 1:
            self._begin()
        make = Optimizer.__init__

        @wraps(make)
        def made(optimizer: Optimizer, *args: Any, **words: Any) -> None:
            make(optimizer, *args, **words)
            self._optimizers.add(optimizer)
            self._prepare()

        Optimizer.__init__ = made

    def _prepare(self) -> None:
        """All before the last optimizer is made is preparation."""
        self._has_optimizer, self._leaves, self._versions = True, [], []
        self._aside_before = self._recorder.kernels_aside
        if self._warmup == DEFAULT_WARMUP and not self.step_count:
            self._forget()
            self._begin()

    def _forget(self) -> None:
        self._recorder.flush()
        self._recorder.calls.clear()
        self.boundaries.clear()
        self.iterations.clear()

    def _stepping(self, *_: Any) -> None:
        self._recorder.is_stepping = True

    def _stepped(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        self._recorder.is_stepping = False
        if self._watched is None:
            self._watched = id(optimizer)
        recorder, is_watched = self._recorder, id(optimizer) == self._watched
        if recorder.is_capturing:
            # The step happens when the graph is replayed.
            self._optimizers.discard(optimizer)
            recorder.captured_steps += is_watched
            return
        self._steps[id(optimizer)] += 1
        if is_watched and recorder.state().stream.value and self._aside < _MOST_ASIDE:
            # Before a capture, scripts warm up on a side stream.
            self._aside += 1
        elif is_watched:
            self._count()

    def _restart(self) -> None:
        """Forget all steps so far: they warmed up for the graph that is captured now."""
        if self.step_count >= self._last or not (self._aside or self.step_count):
            return
        self._recorder.is_on = False
        self._forget()
        self.step_count = self._aside = 0
        if self._warmup <= 1:
            self._begin()

    def _watch_gradients(self) -> None:
        """Observe when gradients are made, and when they are cleared."""
        run_backward, clear = torch.autograd.backward, torch.nn.Module.zero_grad

        def backward(*args: Any, **kwargs: Any) -> None:
            before, now = self._versions, _versions_of(self._leaves)
            if before != now:
                self._steps[_BY_HAND] += 1
            if before and before[0][1] not in (None, now[0][1]):
                self._cleared()
            self._leaves = [] if self._has_optimizer else _find_leaves(args)
            run_backward(*args, **kwargs)
            self._versions = _versions_of(self._leaves)
            self._has_gradients = True
            self._backwards += 1

        def zero_grad(module: torch.nn.Module, set_to_none: bool = True) -> None:
            self._cleared()
            clear(module, set_to_none)

        torch.autograd.backward = backward
        torch.nn.Module.zero_grad = zero_grad

    def _watch_evaluations(self) -> None:
        """Observe when a module that trains is used for evaluation in between."""
        evaluate, train = torch.nn.Module.eval, torch.nn.Module.train
        calls = self._recorder.calls

        def begin(module: torch.nn.Module) -> torch.nn.Module:
            if module.training:
                self._evaluated[id(module)] = len(calls)
            return evaluate(module)

        def end(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
            start = self._evaluated.pop(id(module), None) if mode else None
            self._evaluations += start is not None and len(calls) > start
            return train(module, mode)

        torch.nn.Module.eval, torch.nn.Module.train = begin, end

    def _cleared(self) -> None:
        if not self._has_gradients or self._watched not in (None, _BY_HAND):
            return
        self._has_gradients = False
        self._cleared_count += 1
        # Twice without a step: the script has no optimizer of torch.
        if self._cleared_count >= 2:
            self._watched = _BY_HAND
            self._recorder.notes[_UPDATED_BY_HAND] = None
            self._count()

    def _count(self) -> None:
        self._partial += 1
        if self._partial % self._steps_each:
            return
        aside = self._recorder.kernels_aside - self._aside_before
        self._aside_before = self._recorder.kernels_aside
        self.most_aside = max(self.most_aside, aside)
        if self.step_count >= self._last:
            return
        self.step_count += 1
        now = time.process_time()
        self.step_cpu_s.append(now - self._cpu_s)
        self._cpu_s = now
        if self._recorder.is_on or self.step_count == self._warmup - 1:
            self._begin(aside)
        if self.step_count == self._last:
            self._recorder.is_on = False
            self._recorder.is_over = not self._runs_on

    def finish(self) -> None:
        """Note that the script ended before a steady iteration, if it did."""
        if 0 < self.step_count <= self._warmup:
            self._recorder.notes[_ENDS_EARLY] = None

    def _begin(self, kernels_aside: int = 0) -> None:
        """Begin an iteration; what was recorded before it is one, too, with *kernels_aside*."""
        self._recorder.flush()
        self._recorder.is_on = True
        if self.boundaries:
            self.iterations.append(
                IterationRecord(
                    backward_passes=self._backwards,
                    steps=max(self._steps.values(), default=1),
                    idle_optimizers=sum(id(one) not in self._steps for one in self._optimizers),
                    evaluations=self._evaluations,
                    kernels_aside=kernels_aside,
                )
            )
        self._steps.clear()
        self._backwards = self._evaluations = 0
        self.boundaries.append(len(self._recorder.calls))
