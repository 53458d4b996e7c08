"""`torch.cuda` and `torch.accelerator` as a script finds them with real GPUs.

Functions are replaced by name in their modules; torch's own code that decides from them (autocast
lists, mixed precision, meshes) stays.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import torch
import torch.cuda.nvtx
import torch.nn.parallel._functions
import torch.nn.parallel.comm

from perfmodel.base.documents import load_yaml
from perfmodel.extensions.emulation.device.cuda_types import (
    VirtualEvent,
    VirtualGraph,
    VirtualStream,
    device_index,
    install_tensor_types,
    synchronize,
)
from perfmodel.extensions.emulation.device.gpu import VirtualGpu, address_of
from perfmodel.extensions.emulation.device.nvml import CUDA, TEMPERATURE_C, UTILISATION

_BUILD = torch.__config__.show()
"""How torch was built, asked before C++ takes the device for a GPU and wants its libraries."""
_CUDNN = "9.10.2"
_MODULES = (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory)
"""Where functions about memory are."""


class CudaModule:
    """Patches the modules of torch for one device."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._is_initialized = False

    def install(self) -> None:
        """Replace everything."""
        for modules, answers in load_yaml(Path(__file__).with_suffix(".yaml")).items():
            for module in modules.split(", "):
                _answer(attrgetter(module)(torch), **answers)
        self._install_devices()
        self._install_streams()
        self._install_memory()
        self._install_random()
        self._install_pinning()
        _install_runtime()
        _install_scatter()
        _install_profiler()
        install_tensor_types()
        # Evaluation without it takes the same layers one by one; nested tensors are not covered.
        torch.backends.mha.set_fastpath_enabled(False)

    def _set_device(self, device: Any) -> None:
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

    def _exchange_device(self, index: int) -> int:
        state = self._gpu.recorder.state()
        old = state.device
        if index >= 0:
            state.set_device(index)
        return old

    def _init(self) -> None:
        self._is_initialized = True

    def _install_devices(self) -> None:
        gpu, cuda, model = self._gpu, torch.cuda, self._gpu.model
        major, minor = model.capability

        def current() -> int:
            return gpu.recorder.state().device

        # Dynamo knows constants by their type.
        properties: Any = object.__new__(cuda._CudaDeviceProperties)
        properties.__dict__.update(
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
            current_device=current,
            set_device=self._set_device,
            _exchange_device=self._exchange_device,
            _maybe_exchange_device=self._exchange_device,
        )
        _answer(
            cuda,
            device_count=gpu.count,
            get_device_properties=properties,
            is_bf16_supported=major >= 8,
            is_tf32_supported=major >= 8,
            get_arch_list=[f"sm_{major}{minor}"],
            utilization=UTILISATION,
            memory_usage=UTILISATION,
            temperature=TEMPERATURE_C,
            power_draw=model.power_w * 1000,
            clock_rate=model.clock_mhz,
        )
        accelerator = torch.device("cuda")
        _answer(torch.accelerator, device_count=gpu.count, current_accelerator=accelerator)
        _replace(
            torch.accelerator,
            current_device_index=current,
            current_device_idx=current,
            set_device_index=self._set_device,
            set_device_idx=self._set_device,
        )
        _answer(
            torch._C,
            _nccl_version_suffix=b"",
            _get_accelerator=accelerator,
            _cuda_getDeviceCount=gpu.count,
        )
        _replace(
            torch._C,
            _cuda_getDevice=current,
            _cuda_setDevice=self._set_device,
            _cuda_isInBadFork=lambda: gpu.recorder.is_forked,
            _cuda_exchangeDevice=self._exchange_device,
            _cuda_maybeExchangeDevice=self._exchange_device,
        )
        torch.version.cuda = CUDA
        build = f"{_BUILD.rstrip()}\n  - CUDA Runtime {CUDA}\n  - CuDNN {_CUDNN}\n"
        _answer(torch._C, _show_config=build)

    def _install_streams(self) -> None:
        gpu, cuda, state = self._gpu, torch.cuda, self._gpu.recorder.state
        event = type("Event", (VirtualEvent,), {"gpu": gpu})
        stream = type("Stream", (VirtualStream,), {"gpu": gpu, "event_type": event})
        external = type("ExternalStream", (stream,), {})
        graph = type("CUDAGraph", (VirtualGraph,), {"gpu": gpu})

        def current_stream(device: Any = None) -> Any:
            index = device_index(gpu, device)
            return stream(stream_id=state().stream.value, device_index=index)

        def set_stream(stream: Any) -> None:
            if stream is not None:
                state().stream.value = stream.stream_id

        shared = {
            "synchronize": partial(synchronize, gpu),
            "current_stream": current_stream,
            "set_stream": set_stream,
        }
        for module in (cuda, cuda.streams):
            _replace(module, Stream=stream, Event=event, ExternalStream=external)
        for module in (cuda, cuda.graphs):
            _replace(
                module,
                CUDAGraph=graph,
                is_current_stream_capturing=lambda: gpu.recorder.is_capturing,
            )
        _replace(torch._C, _cuda_isCurrentStreamCapturing=lambda: gpu.recorder.is_capturing)
        for module in (cuda, torch.accelerator):
            _replace(module, **shared)
        _replace(
            cuda,
            default_stream=lambda device=None: stream(
                stream_id=0, device_index=device_index(gpu, device)
            ),
        )
        _answer(cuda.graphs, _graph_pool_handle=(0, 0))
        _replace(
            torch._C,
            _cuda_getCurrentRawStream=lambda _: state().stream.value,
            _cuda_getDefaultStream=lambda device: (0, device, 1),
            _cuda_synchronize=shared["synchronize"],
        )

    def _install_memory(self) -> None:
        gpu, memory = self._gpu, self._gpu.memory

        def statistics(device: Any = None) -> dict[str, int]:
            index = device_index(gpu, device)
            words: dict[str, int] = defaultdict(int)
            for kind in ("allocated", "active", "reserved", "requested"):
                words[f"{kind}_bytes.all.current"] = memory.allocated_bytes(index)
                words[f"{kind}_bytes.all.peak"] = memory.peak_bytes[index]
            return words

        def free_and_all(device: Any = None) -> tuple[int, int]:
            held = memory.allocated_bytes(device_index(gpu, device))
            return memory.capacity_bytes - held, memory.capacity_bytes

        def reset_peak(device: Any = None) -> None:
            memory.reset_peak(device_index(gpu, device))

        # All that torch says about memory it reads from these.
        for module in _MODULES:
            _replace(module, memory_stats=statistics, reset_peak_memory_stats=reset_peak)
        for module in _MODULES[:2]:
            _replace(module, memory_stats_as_nested_dict=statistics, mem_get_info=free_and_all)
        _replace(torch.accelerator, get_memory_info=free_and_all)
        _replace(
            torch._C,
            _cuda_memorySnapshot=lambda *_: {"segments": [], "device_traces": []},
            _cuda_hostMemoryStats=dict,
        )

    def _install_random(self) -> None:
        """Random numbers on the device have no values: some scripts read a state and set it."""
        count = self._gpu.count
        # Seed and offset, as on a real device.
        state = torch.zeros(16, dtype=torch.uint8)

        class DeviceGenerator(torch.Generator):
            """The generator of a device; compiled code that is run twice keeps one for each run."""

            number = 0

            @property
            def device(self) -> torch.device:
                return torch.device("cuda", self.number)

            def get_state(self) -> torch.Tensor:
                return state.clone()

            def set_state(self, _: torch.Tensor) -> Self:
                return self

            def clone_state(self) -> Self:
                return self

            graphsafe_get_state, graphsafe_set_state = clone_state, set_state

        def of_device(number: int) -> DeviceGenerator:
            made = DeviceGenerator()
            made.number = number
            return made

        for module in (torch.cuda, torch.cuda.random):
            _replace(
                module,
                get_rng_state=lambda *_, **__: state.clone(),
                get_rng_state_all=lambda: [state.clone() for _ in range(count)],
            )
        torch.cuda.default_generators = tuple(map(of_device, range(count)))

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
    """CUDA's runtime library: every call succeeds, and does nothing but keep limits."""

    def __init__(self) -> None:
        self._limits: dict[int, int] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        known = {"cudaDeviceSetLimit": self._set_limit, "cudaDeviceGetLimit": self._read_limit}
        return known.get(name, _always(0))

    def _set_limit(self, limit: Any, value: Any) -> int:
        self._limits[getattr(limit, "value", limit)] = getattr(value, "value", value)
        return 0

    def _read_limit(self, place: Any, limit: Any) -> int:
        place[0] = self._limits.get(getattr(limit, "value", limit), 0)
        return 0


def _install_runtime() -> None:
    """Answer `torch.cuda.cudart()`, and scripts that load the runtime library themselves."""
    runtime = _Runtime()
    for module in (torch.cuda, torch.cuda.profiler):
        _answer(module, cudart=runtime)

    class Library(ctypes.CDLL):
        def __new__(cls, name: Any = None, *_: Any, **__: Any) -> Any:
            is_runtime = name is not None and "libcudart" in str(name)
            return runtime if is_runtime else super().__new__(cls)

    loader: Any = ctypes.cdll
    ctypes.CDLL = loader._dlltype = Library  # type: ignore[misc]  # scripts find it by this name


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
