"""Gpu: what stand-ins of packages and compiled code know of a device, virtual or on the driver."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from perfmodel.extensions.emulation.driver.descriptions import describe_kernel
from perfmodel.extensions.emulation.driver.recorder import Recorder
from perfmodel.extensions.emulation.rank_record import CallType
from perfmodel.extensions.emulation.request import DeviceFacts, parse_release

_KEPT: list[object] = []


def keep_for_ever(*things: object) -> None:
    """Let *things* outlive the interpreter."""
    for thing in things:
        _KEPT.append(thing)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Gpu:
    """Record and known values of one process, for *count* GPUs of one *model*.

    *release* is the torch release whose choices are emulated.
    """

    def __init__(
        self, recorder: Recorder, values: Any, model: DeviceFacts, count: int, release: str
    ) -> None:
        self.recorder, self.values = recorder, values
        self.model, self.count = model, count
        self.release = parse_release(release)

    def launch(
        self,
        operator: str,
        *,
        inputs: list[Tensor],
        outputs: list[Tensor],
        is_awaited: bool = False,
        **more: Any,
    ) -> None:
        """Record one kernel of an operator that describes itself, and whether the host waits."""
        if not self.recorder.is_on:
            return
        self.recorder.enter_stream()
        words = describe_kernel(operator, inputs=inputs, outputs=outputs, **more)
        found = (tensor.get_device() for tensor in (*outputs, *inputs) if tensor.is_cuda)
        # The callers are the handler, its kernel, and then the script.
        self.recorder.launch(self.recorder.intern_kind(words), next(found, 0), 3)
        if is_awaited:
            self.recorder.synchronize(CallType.SYNC_STREAM)
