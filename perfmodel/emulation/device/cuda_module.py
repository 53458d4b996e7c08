"""`torch.cuda` and `torch.accelerator` as a script finds them with real GPUs.

Functions are replaced by name in their modules; torch's own code that decides from them (autocast
lists, mixed precision, meshes) stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import torch
import torch.cuda.nvtx
import torch.nn.parallel._functions
import torch.nn.parallel.comm
from torch._dynamo import trace_rules

from perfmodel.emulation.device.cuda_types import (
    VirtualEvent,
    VirtualGraph,
    VirtualStream,
    device_index,
    install_tensor_types,
    synchronize,
)
from perfmodel.emulation.device.gpu import VirtualGpu, address_of

CUDA_VERSION = "12.8"
CUDNN_VERSION = 91_002
NCCL_VERSION = 22_703
"""Versions that scripts see; no answer depends on them."""


class CudaModule:
    """Patches the modules of torch for one device."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._is_initialized = False

    def install(self) -> None:
        """Replace everything."""
        # torch._dynamo, which meta kernels import, lists functions of torch by identity and
        # refuses one function under two names: let it make its list of the originals.
        trace_rules.get_torch_obj_rule_map()
        self._install_devices()
        self._install_streams()
        self._install_memory()
        self._install_random()
        self._install_core()
        self._install_pinning()
        _install_scatter()
        _install_profiler()
        install_tensor_types()
        # Evaluation without it takes the same layers one by one; nested tensors are not covered.
        torch.backends.mha.set_fastpath_enabled(False)

    def _current(self) -> int:
        return self._gpu.recorder.state().device

    def set_device(self, device: Any) -> None:
        """Make *device* the current one of this thread.

        Only now CUDA counts as initialised: a device mesh looks at that to choose a
        device by local rank.
        """
        self._is_initialized = True
        index = device_index(self._gpu, device)
        if not 0 <= index < self._gpu.count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: cuda:{index}, but there are "
                f"{self._gpu.count} devices."
            )
        self._gpu.recorder.state().set_device(index)

    def _init(self) -> None:
        self._is_initialized = True

    def _install_devices(self) -> None:
        gpu, cuda, model = self._gpu, torch.cuda, self._gpu.model
        major, minor = model.capability
        context = _make_device_context(gpu)
        properties = SimpleNamespace(
            name=model.name, major=major, minor=minor, warp_size=32, is_integrated=0,
            total_memory=model.memory_bytes, multi_processor_count=model.multiprocessors,
            max_threads_per_multi_processor=model.max_threads, max_threads_per_block=1024,
            is_multi_gpu_board=0, regs_per_multiprocessor=65_536, gcnArchName="", uuid="virtual",
            shared_memory_per_block=49_152, L2_cache_size=model.l2_bytes,
            shared_memory_per_block_optin=model.shared_memory_bytes - 1024,
            shared_memory_per_multiprocessor=model.shared_memory_bytes,
        )  # fmt: skip
        _replace(
            cuda,
            is_initialized=lambda: self._is_initialized,
            init=self._init,
            _lazy_init=self._init,
            current_device=self._current,
            set_device=self.set_device,
            device=context,
            _DeviceGuard=context,
            device_of=lambda tensor: context(tensor.get_device() if tensor.is_cuda else -1),
        )
        _answer(
            cuda,
            is_available=True,
            _is_compiled=True,
            device_count=gpu.count,
            get_device_properties=properties,
            get_device_name=model.name,
            get_device_capability=model.capability,
            is_bf16_supported=major >= 8,
            is_tf32_supported=major >= 8,
            get_arch_list=[f"sm_{major}{minor}"],
            can_device_access_peer=True,
            utilization=100,
        )
        for module in (cuda, cuda.profiler):
            _answer(module, cudart=_Runtime(), check_error=None)

    def _install_streams(self) -> None:
        gpu, cuda = self._gpu, torch.cuda
        event = type("Event", (VirtualEvent,), {"gpu": gpu})
        stream = type("Stream", (VirtualStream,), {"gpu": gpu, "event_type": event})
        external = type("ExternalStream", (stream,), {})
        graph = type("CUDAGraph", (VirtualGraph,), {"gpu": gpu})
        context = _make_stream_context(gpu)
        for module in (cuda, cuda.streams):
            _replace(module, Stream=stream, Event=event, ExternalStream=external)
        _replace(
            cuda,
            synchronize=partial(synchronize, gpu),
            current_stream=lambda device=None: stream(
                stream_id=gpu.recorder.state().stream.value, device_index=device_index(gpu, device)
            ),
            default_stream=lambda device=None: stream(
                stream_id=0, device_index=device_index(gpu, device)
            ),
            set_stream=partial(_set_stream, gpu),
            StreamContext=context,
            stream=context,
            CUDAGraph=graph,
        )
        _replace(cuda.graphs, CUDAGraph=graph)
        _answer(cuda.graphs, _graph_pool_handle=(0, 0))
        ranges = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA", "deviceRangeStart",
                  "deviceRangeEnd")  # fmt: skip
        quiet = SimpleNamespace()
        _answer(quiet, **dict.fromkeys(ranges, 0))
        _replace(torch.cuda.nvtx, _nvtx=quiet)
        _answer(cuda, is_current_stream_capturing=False)
        _answer(
            torch.accelerator,
            is_available=True,
            device_count=gpu.count,
            current_accelerator=torch.device("cuda"),
        )
        _replace(
            torch.accelerator,
            current_device_index=self._current,
            current_device_idx=self._current,
            set_device_index=self.set_device,
            set_device_idx=self.set_device,
            synchronize=cuda.synchronize,
            current_stream=cuda.current_stream,
            set_stream=cuda.set_stream,
        )

    def _install_memory(self) -> None:
        gpu, memory = self._gpu, self._gpu.memory

        def held(device: Any = None) -> int:
            return memory.allocated_bytes(device_index(gpu, device))

        def peak(device: Any = None) -> int:
            return memory.peak_bytes[device_index(gpu, device)]

        def statistics(device: Any = None) -> dict[str, int]:
            words: dict[str, int] = defaultdict(int)
            for kind in ("allocated", "active", "reserved", "requested"):
                words[f"{kind}_bytes.all.current"] = held(device)
                words[f"{kind}_bytes.all.peak"] = peak(device)
            return words

        functions: dict[str, Callable[..., Any]] = {
            "memory_allocated": held,
            "max_memory_allocated": peak,
            "memory_reserved": held,
            "max_memory_reserved": peak,
            "memory_cached": held,
            "max_memory_cached": peak,
            "memory_stats": statistics,
            "memory_stats_as_nested_dict": lambda device=None: dict(statistics(device)),
            "mem_get_info": lambda device=None: (
                memory.capacity_bytes - held(device),
                memory.capacity_bytes,
            ),
            "memory_summary": lambda device=None, **_: (
                f"allocated {held(device)} bytes, at most {peak(device)} bytes"
            ),
            "memory_snapshot": _always([]),
            "reset_peak_memory_stats": lambda device=None: memory.reset_peak(
                device_index(gpu, device)
            ),
        }
        functions |= dict.fromkeys(
            ("empty_cache", "ipc_collect", "reset_accumulated_memory_stats",
             "set_per_process_memory_fraction", "_record_memory_history"), _always(None),
        )  # fmt: skip
        functions["reset_max_memory_allocated"] = functions["reset_peak_memory_stats"]
        functions["reset_max_memory_cached"] = functions["reset_peak_memory_stats"]
        for module in (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory):
            _replace(module, **{name: f for name, f in functions.items() if hasattr(module, name)})
        _replace(torch.accelerator, get_memory_info=functions["mem_get_info"])

    def _install_random(self) -> None:
        """Random numbers on the device have no values, so that a seed changes nothing."""
        count = self._gpu.count
        # Seed and offset, as on a real device.
        state = torch.zeros(16, dtype=torch.uint8)

        class DeviceGenerator(torch.Generator):
            """The generator of the device: some scripts read its state and set it."""

            def get_state(self) -> torch.Tensor:
                return state.clone()

            def set_state(self, _: torch.Tensor) -> Self:
                return self

        functions: dict[str, Callable[..., Any]] = dict.fromkeys(
            ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state",
             "set_rng_state_all"),
            _always(None),
        )  # fmt: skip
        functions |= {
            "get_rng_state": lambda *_, **__: state.clone(),
            "get_rng_state_all": lambda: [state.clone() for _ in range(count)],
            "initial_seed": _always(0),
        }
        for module in (torch.cuda, torch.cuda.random):
            _replace(module, **functions)
        torch.cuda.default_generators = tuple(DeviceGenerator() for _ in range(count))

    def _install_core(self) -> None:
        gpu, core = self._gpu, torch._C
        state = gpu.recorder.state
        _answer(
            core,
            _nccl_version=NCCL_VERSION,
            _nccl_version_suffix=b"",
            _get_accelerator=torch.device("cuda"),
            _host_emptyCache=None,
            _cuda_getDeviceCount=gpu.count,
            _cuda_emptyCache=None,
            _cuda_isCurrentStreamCapturing=False,
            _cuda_getCompiledVersion=12_080,
            _cuda_record_memory_history=None,
            _cuda_cudaHostAllocator=0,
        )
        _replace(
            core,
            _cuda_getDevice=self._current,
            _cuda_setDevice=self.set_device,
            _cuda_getCurrentRawStream=lambda _: state().stream.value,
            _cuda_isInBadFork=lambda: gpu.recorder.is_forked,
            _cuda_synchronize=partial(synchronize, gpu),
            _cuda_exchangeDevice=partial(_exchange_device, gpu),
            _cuda_maybeExchangeDevice=partial(_exchange_device, gpu),
            _cuda_getDefaultStream=lambda device: (0, device, 1),
            _cuda_memorySnapshot=lambda *_: {"segments": [], "device_traces": []},
            _cuda_hostMemoryStats=dict,
        )
        torch.version.cuda = CUDA_VERSION
        _answer(torch.backends.cuda, is_built=True)
        # Weights of recurrent layers are not packed, which has no meaning here.
        _answer(torch.backends.cudnn, is_available=True, version=CUDNN_VERSION, is_acceptable=False)

    def _install_pinning(self) -> None:
        pinned = self._gpu.pinned

        def pin_memory(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            if tensor.is_cuda:
                raise RuntimeError("cannot pin 'torch.cuda.Tensor': only dense CPU tensors can be")
            copy = tensor.clone()
            pinned.add(address_of(copy))
            return copy

        def is_pinned(tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
            return not tensor.is_cuda and address_of(tensor) in pinned

        torch.Tensor.pin_memory = pin_memory
        torch.Tensor.is_pinned = is_pinned


def _replace(module: Any, **functions: Any) -> None:
    for name, function in functions.items():
        setattr(module, name, function)


def _answer(module: Any, **answers: Any) -> None:
    """Replace functions of *module* by ones that always give the same answer."""
    _replace(module, **{name: _always(answer) for name, answer in answers.items()})


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


class _Runtime:
    """`torch.cuda.cudart()`: every call succeeds and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return _always(0)


def _exchange_device(gpu: VirtualGpu, index: int) -> int:
    state = gpu.recorder.state()
    old = state.device
    if index >= 0:
        state.set_device(index)
    return old


def _set_stream(gpu: VirtualGpu, stream: Any) -> None:
    if stream is not None:
        gpu.recorder.state().stream.value = stream.stream_id


def _make_device_context(gpu: VirtualGpu) -> type[Any]:
    class DeviceContext:
        """`torch.cuda.device`: another current device for a while."""

        def __init__(self, device: Any) -> None:
            is_none = device is None or (isinstance(device, int) and device < 0)
            self.idx = -1 if is_none else device_index(gpu, device)
            self.prev_idx = -1

        def __enter__(self) -> None:
            self.prev_idx = _exchange_device(gpu, self.idx)

        def __exit__(self, *_: object) -> None:
            _exchange_device(gpu, self.prev_idx)

    return DeviceContext


def _make_stream_context(gpu: VirtualGpu) -> type[Any]:
    class StreamContext:
        """`torch.cuda.stream`: another current stream for a while."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream
            self._old = 0

        def __enter__(self) -> None:
            self._old = gpu.recorder.state().stream.value
            _set_stream(gpu, self.stream)

        def __exit__(self, *_: object) -> None:
            gpu.recorder.state().stream.value = self._old

    return StreamContext


def _install_profiler() -> None:
    """A profiler in the script sees the host only: there is nothing to ask about the device."""
    kind, states = torch.autograd.profiler.profile, torch.autograd.ProfilerState
    original = kind.__init__

    def start(profiler: Any, *args: Any, **kwargs: Any) -> None:
        original(profiler, *args, **kwargs)
        # One that is not enabled has no kind.
        if getattr(profiler, "profiler_kind", None) is states.KINETO_GPU_FALLBACK:
            profiler.profiler_kind = states.KINETO

    kind.__init__ = start


def _install_scatter() -> None:
    """DataParallel copies pieces of a batch by functions that a CPU build does not have."""

    def scatter(
        tensor: torch.Tensor,
        devices: Any = (),
        chunk_sizes: Any = None,
        dim: int = 0,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, ...]:
        pieces = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
        return tuple(
            piece.to(f"cuda:{device}") for piece, device in zip(pieces, devices, strict=False)
        )

    def gather(tensors: Any, dim: int = 0, destination: Any = None, **_: Any) -> Any:
        target = "cuda" if destination is None else destination
        return torch.cat([tensor.to(target) for tensor in tensors], dim)

    def broadcast_coalesced(
        tensors: Any, devices: Any, *_: Any, **__: Any
    ) -> list[list[torch.Tensor]]:
        return [[tensor.to(f"cuda:{device}") for tensor in tensors] for device in devices]

    def reduce_add_coalesced(
        inputs: Any, destination: Any = None, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, ...]:
        target = "cuda" if destination is None else f"cuda:{destination}"
        return tuple(
            torch.stack([part.to(target) for part in parts]).sum(0)
            for parts in zip(*inputs, strict=True)
        )

    comm = torch.nn.parallel.comm
    _replace(
        comm,
        scatter=scatter,
        gather=gather,
        broadcast_coalesced=broadcast_coalesced,
        reduce_add_coalesced=reduce_add_coalesced,
    )
    assert torch.nn.parallel._functions.comm is comm
