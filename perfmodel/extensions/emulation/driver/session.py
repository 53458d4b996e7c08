"""A session: one rank of a script on the virtual driver, in an interpreter of the user's.

Only the standard library and torch are there. What the driver's ring says about streams, events
and collectives becomes calls of the same record that the virtual device writes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary

LIBRARIES = Path(os.environ["PERFMODEL_LIBRARIES"])
# Loaded by name before torch asks for them: its own path to NVIDIA's wheels would come first.
LOADED = {path.name: ctypes.CDLL(str(path)) for path in sorted(LIBRARIES.glob("*.so*"))}

import torch  # noqa: E402  see above

from perfmodel.extensions.emulation.compiler.regions import Compiler  # noqa: E402
from perfmodel.extensions.emulation.device.attention import choose_as  # noqa: E402
from perfmodel.extensions.emulation.device.base import Gpu  # noqa: E402
from perfmodel.extensions.emulation.device.forking import fork_ranks  # noqa: E402
from perfmodel.extensions.emulation.device.nvml import install_nvidia_smi  # noqa: E402
from perfmodel.extensions.emulation.device.packages import PackageFinder  # noqa: E402
from perfmodel.extensions.emulation.device.recorder import Recorder  # noqa: E402
from perfmodel.extensions.emulation.device.script import RankRun  # noqa: E402
from perfmodel.extensions.emulation.device.user_kernels import install_nvrtc  # noqa: E402
from perfmodel.extensions.emulation.driver.groups import Groups  # noqa: E402
from perfmodel.extensions.emulation.driver.operators import Operators  # noqa: E402
from perfmodel.extensions.emulation.driver.values import KnownValues  # noqa: E402
from perfmodel.extensions.emulation.rank_record import CallType  # noqa: E402
from perfmodel.extensions.emulation.workers import (  # noqa: E402
    Throttle,
    WorkerOrder,
    end_with,
    read_order,
)

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
        self.exchange = nccl.virtual_exchange
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

    def enter_stream(self) -> None:
        """The state of a thread is that of its last kernel, which torch may not have launched."""
        state = self.state()
        state.stream.value = torch._C._cuda_getCurrentRawStream(state.device)

    def stream(self) -> int:
        """The stream that torch is on."""
        self.enter_stream()
        return super().stream()

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
        if len(order.ranks) > 1:
            self._driver.exchange(order.folder.encode())
        release = order.request.torch_release or torch.__version__
        facts = order.device, order.request.host_size, release
        self._gpu = Gpu(self._recorder, KnownValues(), *facts)
        self._operators = Operators(self._gpu, self._groups)
        throttle = Throttle(self._folder, is_needed=False)
        self._compiler = Compiler(self._gpu, Path(order.code), throttle)

    def install(self) -> None:
        """Watch operators, groups, graphs and compiled regions."""
        os.environ.update(_QUIET)
        self._operators.install()
        self._groups.install()
        self._compiler.install()
        watch_graphs(self._recorder)
        cuda: Any = torch.cuda
        cuda._lazy_call(partial(choose_as, self._gpu))
        install_nvrtc(self._gpu)
        install_nvidia_smi(self._gpu.model, self._gpu.count, self._folder / f"bin_{self._rank}")
        sys.meta_path.insert(0, PackageFinder(self._gpu))

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
            "compiled_regions": self._compiler.compiled_count,
            "fallbacks": self._compiler.fallbacks,
            "compile_cpu_s": self._compiler.cpu_s,
        }


def watch_graphs(recorder: Recorder) -> None:
    """Record what a graph captures, and record it again whenever the graph is launched."""
    kind: Any = torch.cuda.CUDAGraph
    begin, end, launch = kind.capture_begin, kind.capture_end, kind.replay
    made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def capture_begin(graph: Any, *args: Any, **words: Any) -> None:
        made[graph] = recorder.stream()
        recorder.begin_capture()
        begin(graph, *args, **words)

    def capture_end(graph: Any) -> None:
        end(graph)
        made[graph] = (made[graph], *recorder.end_capture())

    def replay(graph: Any) -> None:
        recorder.check_running()
        launch(graph)
        stream, calls, steps = made[graph]
        recorder.replay(calls, stream, steps=steps)

    kind.capture_begin, kind.capture_end, kind.replay = capture_begin, capture_end, replay


def main() -> NoReturn:
    """Carry out the order that is named on the command line."""
    end_with(os.getppid())
    order = read_order(Path(sys.argv[1]))
    fork_ranks(order, lambda rank: _run(order, rank))


def _run(order: WorkerOrder, rank: int) -> NoReturn:
    code = DriverRun(order, rank).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of process groups would wait for ranks that have ended.
    os._exit(code)
