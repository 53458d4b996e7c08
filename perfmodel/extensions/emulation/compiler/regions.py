"""Regions: the parts of a script that `torch.compile` compiles, one by one.

A region that cannot be compiled runs as eager code, and the job says which and why. The backward
code of a region is generated with its forward code, so that a fault in either is known before the
region runs. Only what runs as generated code is marked in the record: a script that merely calls
`torch.compile` stays eager.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from torch._dynamo import convert_frame
from torch._dynamo.exc import RestartAnalysis, SkipFrame
from torch._guards import TracingContext

from perfmodel.extensions.emulation.compiler.check import prove_compiler
from perfmodel.extensions.emulation.compiler.inductor import guide_dynamo, take_kernels
from perfmodel.extensions.emulation.compiler.masks import FunctionShares, RegionMasks
from perfmodel.extensions.emulation.compiler.sharing import FOLDER, alone, share_code
from perfmodel.extensions.emulation.driver.descriptions import hide_code, script_line, show_line
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.rank_record import COMPILED

_TOLD_S = 2.0
"""Regions that take less processor time are not reported."""


class Compiler:
    """The compiler of one rank; ranks, also of later workers, share the code in *folder*."""

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self._gpu = gpu
        self._folder = folder
        self._is_installed = False
        self._fault: RuntimeError | None = None
        self._names: dict[int, str] = {}
        self._masks: RegionMasks | None = None
        self._shares = FunctionShares()
        self.cpu_s = 0.0
        self.compiled_count = 0
        self.fallbacks: dict[str, str] = {}

    def install(self) -> None:
        """Take over what `torch.compile` gives to Inductor."""
        guide_dynamo()
        kind: Any = torch._TorchCompileInductorWrapper
        compile_region = kind.__call__

        def compile_(backend: Any, model: Any, inputs: Any, **more: Any) -> Callable[..., Any]:
            self._masks = RegionMasks(self._gpu, model, self._shares)
            made = self._compile(
                lambda: compile_region(backend, model, inputs, **more), model.forward
            )
            return self._masks.watch(made)

        kind.__call__ = compile_
        self._tell_skipped()

    def _tell_skipped(self) -> None:
        """Name every function that Dynamo leaves as eager code, mostly for a break in its graph."""
        frames: Any = convert_frame
        describe = frames.format_error_msg

        def skipped(fault: Exception, code: CodeType, *more: Any) -> str:
            why = " ".join(str(fault).partition("\n  Hint:")[0].split()).rstrip(".")
            place = show_line(code, code.co_firstlineno)
            self._gpu.recorder.notes[
                f"The function {code.co_name} ({place}) runs as eager code, because torch.compile "
                f"gives it up: {why:.200}."
            ] = None
            return str(describe(fault, code, *more))

        # Dynamo asks for this text where it gives a function up, and only there.
        frames.format_error_msg = skipped

    def _compile(
        self, compile_region: Callable[[], Callable[..., Any]], eager: Callable[..., Any]
    ) -> Callable[..., Any]:
        start_s, place = time.process_time(), script_line()
        with self._gpu.recorder.paused(), alone(self._folder):
            try:
                self._prepare()
                made = compile_region()
            except (RestartAnalysis, SkipFrame):
                # Dynamo's own: it traces again, or leaves the frame as it is.
                raise
            # Whatever a region ends with, the others and the script go on; the job names it.
            except Exception as fault:
                why = f"{type(fault).__name__}: {fault!s:.160}"
                self.fallbacks.setdefault(place, why)
                _say(f"the region at {place} stays eager, because it could not be compiled: {why}")
                made = eager
                context: Any = TracingContext.try_get()
                if context is not None and context.fw_metadata is None:
                    # DDP splits a region at its buckets and wants it of every part.
                    context.fw_metadata = SimpleNamespace()
            else:
                self.compiled_count += 1
        took_s = time.process_time() - start_s
        self.cpu_s += took_s
        if took_s > _TOLD_S:
            _say(f"compiled a region at {place} in {took_s:.1f} s of processor time.")
        return made

    def _prepare(self) -> None:
        """Install Inductor before the first region; if its self-test fails, refuse every one."""
        if not self._is_installed:
            self._is_installed = True
            self._install_inductor()
            try:
                prove_compiler(self._gpu)
            except RuntimeError as fault:
                self._fault = fault
            self._names.clear()
        if self._fault is not None:
            raise self._fault

    def _install_inductor(self) -> None:
        cache = self._folder / FOLDER
        hide_code(cache)
        take_kernels(self._gpu, cache, lambda: self._masks)
        share_code()
        from torch._inductor.output_code import CompiledFxGraph

        graph: Any = CompiledFxGraph
        run = graph.__call__

        def call(own: Any, inputs: Any) -> Any:
            with self._gpu.recorder.in_region(self._name(own)):
                return run(own, inputs)

        graph.__call__ = call

    def _name(self, graph: Any) -> str:
        """Graphs are numbered in the order in which they first run."""
        name = self._names.get(id(graph))
        if name is None:
            way = "backward" if graph.fx_kwargs.get("is_backward") else "forward"
            name = self._names[id(graph)] = f"{COMPILED}{way} {len(self._names)}"
        return name


def _say(sentence: str) -> None:
    print(f"perfmodel: {sentence}", file=sys.stderr, flush=True)
