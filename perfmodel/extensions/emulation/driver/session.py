"""A session: one rank of a script on the virtual driver, in an interpreter of the user's.

Only the standard library and torch are there. What the driver's ring says about streams, events
and collectives becomes calls of the record.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import NoReturn

LIBRARIES = Path(os.environ["PERFMODEL_LIBRARIES"])
# Loaded by name before torch asks for them: its own path to NVIDIA's wheels would come first.
LOADED = {path.name: ctypes.CDLL(str(path)) for path in sorted(LIBRARIES.glob("*.so*"))}

from perfmodel.extensions.emulation.driver.forking import fork_ranks  # noqa: E402
from perfmodel.extensions.emulation.driver.script import RankRun  # noqa: E402
from perfmodel.extensions.emulation.workers import (  # noqa: E402
    WorkerOrder,
    end_with,
    read_order,
)

_ENTRIES = 65_536


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
        self.exchange = nccl.virtual_exchange
        self.announce = nccl.virtual_announce
        self.announce.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_char_p]
        self._state = core.virtual_state
        self._state.restype = ctypes.c_void_p

    def thread_state(self) -> Thread:
        """The state of the calling thread."""
        return Thread(self._state())


def main() -> NoReturn:
    """Carry out the order that is named on the command line."""
    end_with(os.getppid())
    order = read_order(Path(sys.argv[1]))
    fork_ranks(order, lambda rank: _run(order, rank))


def _run(order: WorkerOrder, rank: int) -> NoReturn:
    code = RankRun(Driver(), order, rank).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of process groups would wait for ranks that have ended.
    os._exit(code)
