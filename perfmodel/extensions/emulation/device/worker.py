"""A worker: a process that makes the device once, tests it, and forks a process per rank.

`perfmodel.extensions.emulation.workers` starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed import FileStore

from perfmodel.extensions.emulation.compiler import front
from perfmodel.extensions.emulation.compiler.regions import Compiler
from perfmodel.extensions.emulation.device.cuda_module import CudaModule
from perfmodel.extensions.emulation.device.descriptions import DTYPE_WORDS
from perfmodel.extensions.emulation.device.distributed import Distributed
from perfmodel.extensions.emulation.device.exchange import PeerExchange
from perfmodel.extensions.emulation.device.forking import fork_ranks
from perfmodel.extensions.emulation.device.gpu import VirtualGpu, install_storages
from perfmodel.extensions.emulation.device.nvml import install_nvidia_smi
from perfmodel.extensions.emulation.device.packages import PackageFinder
from perfmodel.extensions.emulation.device.registering import register_kernels
from perfmodel.extensions.emulation.device.script import RankRun
from perfmodel.extensions.emulation.device.user_kernels import install_nvrtc
from perfmodel.extensions.emulation.request import TORCH_VERSION
from perfmodel.extensions.emulation.workers import (
    MOST_WORKING,
    Throttle,
    WorkerOrder,
    end_with,
    read_order,
)


class VirtualRun(RankRun):
    """A rank on a virtual device that replaces torch's own."""

    def __init__(self, gpu: VirtualGpu, order: WorkerOrder, rank: int) -> None:
        super().__init__(gpu.recorder, order, rank)
        self._gpu = gpu
        running = frozenset(order.ranks)
        store = FileStore(str(self._folder / "store"), -1)
        self._throttle = Throttle(self._folder, is_needed=len(running) > MOST_WORKING)
        self._exchange = PeerExchange(gpu, rank, running, store, self._throttle)
        self._distributed = Distributed(self._exchange, world_size=order.request.ranks)
        self._compiler = Compiler(gpu, Path(order.code), self._throttle, front)

    def install(self) -> None:
        """Install groups, compiler, packages and tools, and wait until this rank may work."""
        self._distributed.install()
        self._compiler.install()
        install_nvidia_smi(self._gpu.model, self._gpu.count, self._folder / f"bin_{self._rank}")
        sys.meta_path.insert(0, PackageFinder(self._gpu))
        self._throttle.take()

    @property
    def has_guessed(self) -> bool:
        """Whether objects of ranks that do not run were taken to be those of this rank."""
        return self._exchange.has_guessed

    def observed(self) -> dict[str, Any]:
        """What the device counted."""
        return {
            "groups": tuple(self._distributed.groups.values()),
            "peak_memory_bytes": self._gpu.memory.most_bytes,
            "peak_place": self._gpu.peak_place,
            "compiled_regions": self._compiler.compiled_count,
            "fallbacks": self._compiler.fallbacks,
            "compile_cpu_s": self._compiler.cpu_s,
            "pieces": tuple(self._gpu.pieces),
        }


def main() -> NoReturn:
    """Carry out the order that is named on the command line."""
    end_with(os.getppid())
    order = read_order(Path(sys.argv[1]))
    DTYPE_WORDS.update(order.formats)
    gpu = _make_gpu(order)
    if _fork_and_wait(lambda: _prove_device(gpu)) != 0:
        sys.exit(1)
    fork_ranks(order, lambda rank: VirtualRun(gpu, order, rank).run())


def _make_gpu(order: WorkerOrder) -> VirtualGpu:
    front.keep_lists_of_torch()
    request = order.request
    gpu = VirtualGpu(order.device, request.host_size, request.torch_release or TORCH_VERSION)
    gpu.native.install()
    CudaModule(gpu).install()
    install_storages(gpu)
    register_kernels(gpu)
    install_nvrtc(gpu)
    return gpu


def _prove_device(gpu: VirtualGpu) -> None:
    """Make tensors, run a layer backward, use streams and events, and count bytes.

    Virtual tables belong to one version of torch: a wrong slot crashes here, before any code of the
    user runs.
    """
    gpu.recorder.is_on = True
    inputs = torch.ones(4, 3, device="cuda")
    weight = torch.ones(3, 2, device="cuda", requires_grad=True)
    assert inputs.device == torch.device("cuda", 0)
    assert inputs.is_cuda
    (inputs @ weight).relu().sum().backward()
    assert weight.grad is not None
    assert weight.grad.shape == weight.shape
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        inputs.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    numbers = torch.tensor([3, 4]).cuda()
    assert (numbers + 1).tolist() == [4, 5]
    held = torch.cuda.memory_allocated()
    del inputs
    assert torch.cuda.memory_allocated() == held - 512
    operators = {
        gpu.recorder.kinds[call[1]]["operator"] for call in gpu.recorder.calls if not call[0]
    }
    assert {"aten.mm.default", "aten.threshold_backward.default"} <= operators


def _fork_and_wait(function: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as fault:  # Reported by the exit code.
            print(f"{type(fault).__name__}: {fault}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
