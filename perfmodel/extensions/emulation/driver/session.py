"""A session: one rank of a script on the virtual driver, in an interpreter of the user's.

Only the standard library and torch are there. What the driver's ring says about streams, events
and collectives becomes calls of the same record that the virtual device writes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any, NoReturn, cast

LIBRARIES = Path(os.environ["PERFMODEL_LIBRARIES"])
# Loaded by name before torch asks for them: its own path to NVIDIA's wheels would come first.
LOADED = {path.name: ctypes.CDLL(str(path)) for path in sorted(LIBRARIES.glob("*.so*"))}

import torch  # noqa: E402  see above

from perfmodel.extensions.emulation.device.recorder import Recorder  # noqa: E402
from perfmodel.extensions.emulation.device.script import RankRun  # noqa: E402
from perfmodel.extensions.emulation.driver.groups import Groups  # noqa: E402
from perfmodel.extensions.emulation.driver.operators import Operators  # noqa: E402
from perfmodel.extensions.emulation.rank_record import CallType  # noqa: E402
from perfmodel.extensions.emulation.request import parse_release  # noqa: E402
from perfmodel.extensions.emulation.workers import WorkerOrder, end_with, read_order  # noqa: E402

_COLLECTIVE = 6
_ENTRIES = 65_536
_QUIET = {"TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""Threads of torch that watch a GPU which cannot hang."""


class Thread:
    """What a thread launched last, shared with the driver, and where it is in an operator."""

    __slots__ = ("_device", "_kernel", "_launches", "is_inside", "seen", "stream")

    def __init__(self, address: int) -> None:
        self._launches, self._device, self.stream = (
            ctypes.c_int64.from_address(address + offset) for offset in (0, 8, 16)
        )
        self._kernel = ctypes.c_char_p.from_address(address + 24)
        self.is_inside = False
        self.seen = self.launches

    @property
    def launches(self) -> int:
        """How many kernels this thread has launched."""
        return self._launches.value

    @property
    def device(self) -> int:
        """The number of the current device."""
        return self._device.value >> 8

    @property
    def kernel(self) -> str:
        """The name of the last kernel."""
        return (self._kernel.value or b"?").decode(errors="replace")


class Driver:
    """The variables of the libraries in this process."""

    def __init__(self) -> None:
        core = LOADED["libperfmodelcore.so"]
        nccl = next(one for name, one in LOADED.items() if name.startswith("libnccl.so"))
        self.log_count = ctypes.c_int64.in_dll(core, "virtual_log_count")
        self.log = (ctypes.c_int64 * 4 * _ENTRIES).in_dll(core, "virtual_log")
        self.collectives = (ctypes.c_int64 * 5 * _ENTRIES).in_dll(nccl, "virtual_collectives")
        self.missing = (ctypes.c_char * 8192).in_dll(core, "virtual_missing")
        self.announce = nccl.virtual_announce
        self.announce.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_char_p]
        self._state = core.virtual_state
        self._state.restype = ctypes.c_void_p

    def thread_state(self) -> Thread:
        """The state of the calling thread."""
        return Thread(self._state())


class DriverRecorder(Recorder):
    """Records what the driver notes; an operator was launched before what it made the driver do."""

    groups: Groups

    def add_logged(self, kind: int, what: int, thread: int, stream: int) -> None:
        """A call of the ring."""
        if kind == _COLLECTIVE:
            self.groups.add(what, thread, stream)
        else:
            super().add_logged(kind, what, thread, stream)

    def _add(self, *call: int) -> None:
        if call[0] == CallType.KERNEL:
            self.calls.append(call)
        super()._add(*call) if call[0] != CallType.KERNEL else self.flush()


class DriverRun(RankRun):
    """A rank on the virtual driver."""

    def __init__(self, order: WorkerOrder, rank: int) -> None:
        self._driver = cast("Any", Driver())
        self._recorder = DriverRecorder(self._driver)
        super().__init__(self._recorder, order, rank)
        self._groups = self._recorder.groups = Groups(self._driver, self._recorder, order, rank)
        capability, release = order.device.capability, parse_release(torch.__version__)
        self._operators = Operators(self._recorder, self._groups, release, capability)

    def install(self) -> None:
        """Watch operators, groups and graphs."""
        os.environ.update(_QUIET)
        self._operators.install()
        self._groups.install()

    @property
    def has_guessed(self) -> bool:
        """Whether this rank may have failed for want of others."""
        return len(self._order.ranks) < self._request.ranks > 1

    def observed(self) -> dict[str, Any]:
        """What torch's own allocator and the driver counted."""
        missing = self._driver.missing.value.decode().split()
        if missing:
            self._recorder.notes[
                "Functions of CUDA without a body were called and did nothing: "
                f"{', '.join(sorted(missing)):.400}."
            ] = None
        devices = range(torch.cuda.device_count())
        return {
            "groups": tuple(self._groups.records.values()),
            "peak_memory_bytes": max(map(torch.cuda.max_memory_allocated, devices)),
            "reserved_memory_bytes": max(map(torch.cuda.max_memory_reserved, devices)),
            "peak_place": self._operators.peak_place,
            "compiled_regions": 0,
            "fallbacks": {},
            "compile_cpu_s": 0.0,
        }


def main() -> NoReturn:
    """Run the rank that the command line names."""
    end_with(int(sys.argv.pop(1)))
    code = DriverRun(read_order(Path(sys.argv[1])), int(sys.argv[2])).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of process groups would wait for ranks that have ended.
    os._exit(code)
