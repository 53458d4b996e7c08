"""Streams, events and captured graphs with the signatures of `torch.cuda`.

`torch.Stream` and `torch.Event` of C++ work through the device guard; these add
what CUDA's have. The time between two events is a stand-in of one millisecond.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch

from perfmodel.emulation.device.gpu import VirtualGpu
from perfmodel.emulation.rank_record import Call, CallType

ELAPSED_MS = 1.0
"""What `elapsed_time` answers: when things happen is known only to the prediction."""
_CUDA_TYPE = 1


def device_index(gpu: VirtualGpu, device: Any) -> int:
    """The number of *device*, given in any of torch's ways; None is the current one."""
    if device is None:
        return gpu.recorder.state().device
    if isinstance(device, int):
        return gpu.recorder.state().device if device < 0 else device
    index = torch.device(device).index
    return gpu.recorder.state().device if index is None else int(index)


class VirtualStream(torch.Stream):
    """A stream of the virtual device."""

    gpu: ClassVar[VirtualGpu]
    event_type: ClassVar[type[Any]]

    def __new__(cls, device: Any = None, priority: int = 0, **words: Any) -> Any:
        """Make a new stream, or name one that there is."""
        stream = words.get("stream_id", words.get("stream_ptr"))
        if stream is None:
            place = torch.device("cuda", device_index(cls.gpu, device))
            return super().__new__(cls, place, priority=priority)
        index = words.get("device_index")
        return super().__new__(
            cls,
            stream_id=stream,
            device_index=device_index(cls.gpu, device) if index is None else index,
            device_type=words.get("device_type", _CUDA_TYPE),
        )

    @property
    def cuda_stream(self) -> int:
        """The handle of CUDA."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """Priorities are not modelled."""
        return 0

    def is_capturing(self) -> bool:
        """Whether a graph is being captured."""
        return False

    def record_event(self, event: Any = None) -> Any:
        """Record an event here."""
        event = self.event_type() if event is None else event
        event.record(self)
        return event

    def wait_stream(self, stream: Any) -> None:
        """Wait for all work of *stream* so far."""
        event = self.event_type()
        event.record(stream)
        self.wait_event(event)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and torch.Stream.__eq__(self, other)


class VirtualEvent(torch.Event):
    """An event of the virtual device."""

    gpu: ClassVar[VirtualGpu]

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        """Make an event of the current device."""
        del external
        place = torch.device("cuda", cls.gpu.recorder.state().device)
        words = {"enable_timing": enable_timing, "blocking": blocking}
        return super().__new__(cls, place, interprocess=interprocess, **words)

    @property
    def cuda_event(self) -> int:
        """The handle of CUDA."""
        return int(self.event_id)

    def elapsed_time(self, end_event: Any) -> float:
        """A stand-in."""
        del end_event
        self.gpu.recorder.stand_in("time between events")
        return ELAPSED_MS


class VirtualGraph:
    """A captured graph: the part of the record made meanwhile, repeated by a replay."""

    gpu: ClassVar[VirtualGpu]

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._calls: list[Call] = []
        self._from = 0

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Start to capture."""
        self.gpu.recorder.flush()
        self._from = len(self.gpu.recorder.calls)

    def capture_end(self) -> None:
        """Take what was captured out of the record."""
        recorder = self.gpu.recorder
        recorder.flush()
        self._calls = recorder.calls[self._from :]
        del recorder.calls[self._from :]

    def replay(self) -> None:
        """Do it again."""
        recorder = self.gpu.recorder
        recorder.check_running()
        recorder.notes["A captured graph is replayed as the launches it was made of."] = None
        if recorder.is_on:
            recorder.flush()
            recorder.calls.extend(self._calls)

    def pool(self) -> tuple[int, int]:
        """Memory pools are not modelled."""
        return (0, 0)

    def reset(self) -> None:
        """Forget what was captured."""
        self._calls = []

    def instantiate(self) -> None:
        """Nothing to prepare."""

    def enable_debug_mode(self) -> None:
        """Nothing to debug."""

    def debug_dump(self, debug_path: str) -> None:
        """Nothing to write."""


class StreamTypes(NamedTuple):
    """The classes of one device."""

    stream: type[Any]
    external_stream: type[Any]
    event: type[Any]
    graph: type[Any]


def make_stream_types(gpu: VirtualGpu) -> StreamTypes:
    """The classes `Stream`, `ExternalStream`, `Event` and `CUDAGraph` of this device."""
    event = type("Event", (VirtualEvent,), {"gpu": gpu})
    stream = type("Stream", (VirtualStream,), {"gpu": gpu, "event_type": event})
    external = type("ExternalStream", (stream,), {})
    return StreamTypes(stream, external, event, type("CUDAGraph", (VirtualGraph,), {"gpu": gpu}))


def synchronize(gpu: VirtualGpu, device: Any = None) -> None:
    """`torch.cuda.synchronize`: the host waits for all streams of *device*."""
    gpu.recorder.check_running()
    gpu.recorder.synchronize(CallType.SYNC_DEVICE, device_index(gpu, device))
