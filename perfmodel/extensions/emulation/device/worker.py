"""A worker: a process that makes the device once, tests it, and forks a process per rank.

`perfmodel.extensions.emulation.workers` starts it. Forks share the time and memory of importing
torch.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import orjson
import torch

from perfmodel.extensions.emulation.compiler.front import keep_lists_of_torch
from perfmodel.extensions.emulation.device.cuda_module import CudaModule
from perfmodel.extensions.emulation.device.gpu import VirtualGpu, install_storages
from perfmodel.extensions.emulation.device.registering import register_kernels
from perfmodel.extensions.emulation.device.script import RankRun
from perfmodel.extensions.emulation.device.user_kernels import install_nvrtc
from perfmodel.extensions.emulation.request import TORCH_VERSION
from perfmodel.extensions.emulation.workers import CODES, READY, WorkerOrder, read_order

_GRACE_S = 3.0
"""How long other ranks may continue after one has failed."""
_M_MMAP_THRESHOLD = -3
_PR_SET_PDEATHSIG = 1
_RETURNED_BYTES = 1 << 20
"""Larger blocks of host memory are returned as soon as they are free."""


def main() -> NoReturn:
    """Carry out the order that is named on the command line."""
    _end_with(os.getppid())
    order = read_order(Path(sys.argv[1]))
    gpu = _make_gpu(order)
    if _fork_and_wait(lambda: _prove_device(gpu)) != 0:
        sys.exit(1)
    folder = Path(order.folder)
    (folder / READY).touch()
    # Ranks share what is loaded so far. A collection would write into every object, and each rank
    # would have a copy of its own.
    gc.collect()
    gc.freeze()
    # Without a fixed threshold the allocator keeps ever larger pieces once one was freed.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)
    children: dict[int, int] = {}
    worker = os.getpid()
    for rank in order.ranks:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _end_with(worker)
            sys.exit(RankRun(gpu, order, rank).run())
        children[child] = rank
    codes = _wait(children)
    (folder / CODES).write_bytes(orjson.dumps({str(rank): code for rank, code in codes.items()}))
    # The interpreter has nothing to clean up, and the device must not be touched again.
    os._exit(0)


def _end_with(parent: int) -> None:
    """Have the system end this process when *parent* ends, even if it is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _make_gpu(order: WorkerOrder) -> VirtualGpu:
    keep_lists_of_torch()
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


def _wait(children: dict[int, int]) -> dict[int, int]:
    """The exit code of every rank; those that continue after another has failed are ended."""
    codes: dict[int, int] = {}
    pending = dict(children)

    def end_all(number: int, _: object) -> None:
        for child in pending:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, end_all)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deadline: float | None = None
    while pending:
        child, status = os.waitpid(-1, 0 if deadline is None else os.WNOHANG)
        if child in pending:
            code = os.waitstatus_to_exitcode(status)
            codes[pending.pop(child)] = code
            if code != 0 and deadline is None:
                deadline = time.monotonic() + _GRACE_S
        elif deadline is not None and time.monotonic() > deadline:
            end_all(signal.SIGKILL, None)
            deadline += _GRACE_S
        else:
            time.sleep(0.02)
    return codes
