"""CUDA types: streams, events, captured graphs and tensor types of `torch.cuda`.

`torch.Stream` and `torch.Event` of C++ work through the device guard; these add the rest of the
CUDA interface. The time between two events is a placeholder of one millisecond. Older scripts
call `torch.cuda.FloatTensor` and the like.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from perfmodel.extensions.emulation.device.gpu import VirtualGpu
from perfmodel.extensions.emulation.rank_record import Call, CallType

ELAPSED_MS = 1.0
"""The answer of `elapsed_time`: times are known only to the prediction."""
_CUDA_TYPE = 1
_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
_MODULE = "torch.cuda"


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
        return self.gpu.recorder.is_capturing

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
        """A placeholder."""
        del end_event
        self.gpu.recorder.count_placeholder("time between events")
        return ELAPSED_MS


class VirtualGraph:
    """A captured graph: what was recorded meanwhile, repeated by a replay as one launch.

    The replay runs on the current stream and thread; streams that joined the capture stay apart.
    """

    gpu: ClassVar[VirtualGpu]

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._calls: list[Call] = []
        self._stream = 0
        self._steps = 0

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Start to capture."""
        self._stream = self.gpu.recorder.stream()
        self.gpu.recorder.begin_capture()

    def capture_end(self) -> None:
        """Take what was captured out of the record."""
        self._calls, self._steps = self.gpu.recorder.end_capture()

    def replay(self) -> None:
        """Do it again."""
        recorder = self.gpu.recorder
        recorder.check_running()
        recorder.replay(self._calls, self._stream, steps=self._steps)

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


def synchronize(gpu: VirtualGpu, device: Any = None) -> None:
    """`torch.cuda.synchronize`: the host waits for all streams of *device*."""
    gpu.recorder.check_running()
    gpu.recorder.synchronize(CallType.SYNC_DEVICE, device_index(gpu, device))


class CudaTensorType(type):
    """The type of a tensor on the device with numbers of one format."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = "cuda") -> Tensor:
        """A tensor of these sizes, or with these values."""
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device=device)
        return torch.empty(*args or (0,), dtype=cls.dtype, device=device)

    def __instancecheck__(cls, tensor: Any) -> bool:
        """Whether *tensor* is of this type."""
        return isinstance(tensor, Tensor) and tensor.is_cuda and tensor.dtype == cls.dtype


def install_tensor_types() -> None:
    """Add the tensor types to torch."""
    types: dict[Any, CudaTensorType] = {}
    for name, dtype in _DTYPES.items():
        made = CudaTensorType(name, (), {"dtype": dtype, "__module__": _MODULE})
        setattr(torch.cuda, name, made)
        types[f"{_MODULE}.{name}"] = types[made] = made
    original_type, original_default = Tensor.type, torch.set_default_tensor_type

    def as_type(
        tensor: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Any:
        if isinstance(dtype, (str, CudaTensorType)) and dtype in types:
            return tensor.to("cuda", types[dtype].dtype, non_blocking=non_blocking)
        return original_type(tensor, dtype, non_blocking, **kwargs)

    def set_default(kind: Any) -> None:
        if isinstance(kind, (str, CudaTensorType)) and kind in types:
            torch.set_default_dtype(types[kind].dtype)
            torch.set_default_device("cuda")
        else:
            original_default(kind)

    Tensor.type = as_type
    torch.set_default_tensor_type = set_default
