"""Sharing: one rank compiles a region, the others load its code from the folder of the run.

torch's own caches hold the code. They tell GPUs apart by number, in the key and in the code, while
ranks differ in nothing else. So the number of the rank's own GPU is left out of both: generated
code runs on the current device. Of ranks that come to the same region one compiles and the others
wait.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from perfmodel.emulation.workers import Throttle

FOLDER = "compiled"
_NUMBER = re.compile(rb"(cuda:|type='cuda', index=)(\d+)")


def device_here(compiled_for: int) -> Callable[..., torch.device]:
    """The function `device` of code compiled for GPU *compiled_for*, which runs on any."""

    def device(*words: Any, **named: Any) -> torch.device:
        made = torch.device(*words, **named)
        is_own = made == torch.device("cuda", compiled_for)
        return torch.device("cuda", torch.cuda.current_device()) if is_own else made

    return device


@contextmanager
def alone(folder: Path, throttle: Throttle) -> Iterator[None]:
    """Only one rank at a time is in a `with` block; others let the rest work meanwhile."""
    file = os.open(folder / "compiling", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with throttle.released():
                fcntl.lockf(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def share_code() -> None:
    """Leave the rank's own GPU out of the keys of the caches, and out of the code."""
    from torch._inductor.codecache import FxGraphCachePickler
    from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    pickler: Any = FxGraphCachePickler
    initialise, dumps = pickler.__init__, pickler.dumps

    def start(own: Any, *args: Any, **kwargs: Any) -> None:
        initialise(own, *args, **kwargs)
        own.dispatch_table[torch.device] = lambda device: (str, (_without_number(str(device)),))

    pickler.__init__ = start
    pickler.dumps = lambda own, what: _NUMBER.sub(_replace, dumps(own, what))
    words: Any = CUDADeviceOpOverrides
    words.set_device = lambda _, index: f"torch.cuda.set_device({_relative(index)})"
    words.device_guard = lambda _, index: f"torch.cuda._DeviceGuard({_relative(index)})"
    code: Any = PythonWrapperCodegen
    write_header = code.write_header

    def write(own: Any) -> None:
        write_header(own)
        own.header.splice(
            f"from {__name__} import device_here\n"
            f"device = device_here({torch.cuda.current_device()})\n"
        )

    code.write_header = write


def _relative(index: int) -> int:
    """-1 for the current device, which is that of the rank."""
    return -1 if index == torch.cuda.current_device() else index


def _without_number(device: str) -> str:
    return _NUMBER.sub(_replace, device.encode()).decode()


def _replace(found: re.Match[bytes]) -> bytes:
    return found[1] if int(found[2]) == torch.cuda.current_device() else found[0]
