"""The front half of the compiler on the virtual device, as far as its generated Python code.

Dynamo, AOTAutograd and Inductor run unchanged; replaced are the questions they put to a GPU, the
allocation of buffers, and Triton, which neither exists here nor is needed to write its source.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed
import typing_extensions
from torch._dynamo import device_interface, eval_frame, trace_rules
from torch._dynamo.variables import torch as functions

from perfmodel.extensions.emulation.compiler.inductor import keep
from perfmodel.extensions.emulation.device.gpu import VirtualGpu

_ASKED = (
    "current_device", "set_device", "device_count", "stream", "current_stream", "set_stream",
    "synchronize", "get_device_properties", "memory_allocated", "is_bf16_supported",
)  # fmt: skip


def _set(target: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(target, name, value)


def keep_lists_of_torch() -> None:
    """Let Dynamo list the functions of torch before any of them is replaced."""
    functions.TorchInGraphFunctionVariable._get_handlers()
    # Made again, the list would have one function under two names.
    kept = keep(trace_rules.get_torch_obj_rule_map())
    _set(trace_rules, get_torch_obj_rule_map=kept)


def _keep_constants() -> None:
    """Fold what replaces functions of torch that Dynamo folds, such as `get_device_properties`."""
    rules, listed = trace_rules.get_torch_obj_rule_map(), vars(functions)
    for name in ("constant_fold_functions", "constant_fold_functions_need_guards"):
        folded = listed[name]
        for old in list(folded):
            new = getattr(sys.modules.get(old.__module__ or ""), old.__name__, old)
            if new is not old:
                rules[new], folded[new] = rules[old], None


def install_dynamo(gpu: VirtualGpu) -> None:
    """Answer what Dynamo asks about the device."""
    kind: Any = device_interface.CudaInterface
    for name in _ASKED:
        setattr(kind, name, staticmethod(getattr(torch.cuda, name)))
    kind.device, kind.Event, kind.Stream = torch.cuda.device, torch.cuda.Event, torch.cuda.Stream
    kind.get_raw_stream = staticmethod(torch._C._cuda_getCurrentRawStream)
    kind.exchange_device = staticmethod(torch._C._cuda_exchangeDevice)
    kind.maybe_exchange_device = staticmethod(torch._C._cuda_maybeExchangeDevice)
    kind.raise_if_triton_unavailable = staticmethod(lambda _=None: None)
    for name in ("cuda", *(f"cuda:{number}" for number in range(gpu.count))):
        device_interface.register_interface_for_device(name, kind)
    _keep_constants()
    # A script's kernels are operators of ours, with and without Triton: Dynamo must not see it.
    _set(torch.utils._triton, has_triton_package=lambda: False)
    # Collectives warn in this release of torch. Earlier ones had no Python code there to compile.
    call: Any = torch.distributed.all_gather_into_tensor
    while hasattr(call, "__wrapped__"):
        if call.__code__.co_filename == typing_extensions.__file__:
            eval_frame.skip_code(call.__code__)
        call = call.__wrapped__
    # Code for NVRTC and extensions in CUDA are launched between the pieces of a region, which
    # therefore has breaks even if the script asks for one graph.
    optimize = torch._dynamo.optimize
    _set(
        torch._dynamo, optimize=lambda *args, **more: optimize(*args, **more | {"nopython": False})
    )
    # A build without cuDNN would give every convolution its channels first.
    _set(torch._C, _conv_determine_backend_memory_format=_format_of_cudnn)
    # It warns when it is imported without Triton.
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)


def _format_of_cudnn(image: Any, weight: Any, _: Any) -> torch.memory_format:
    """The layout in which cuDNN answers: channels last if *image* or *weight* has it."""
    wanted = torch.channels_last if image.dim() == 4 else torch.channels_last_3d
    formats = [torch._prims_common.suggest_memory_format(one) for one in (image, weight)]
    return wanted if wanted in formats else torch.contiguous_format


def answer_inductor(gpu: VirtualGpu) -> None:
    """Answer what Inductor asks about the device, and make its buffers there."""
    from torch._inductor import scheduler, select_algorithm
    from torch._inductor.codegen import triton_split_scan, wrapper
    from torch._inductor.fx_passes import pad_mm

    for module in (scheduler, pad_mm):
        _set(module, has_triton=lambda: True)
    _set(torch.utils._triton, triton_hash_with_backend=lambda: "virtual")
    code: Any = wrapper.PythonWrapperCodegen
    code.write_triton_header_once = lambda _: None
    code.write_get_raw_stream_header = lambda own: own.imports.writeline(
        "from torch._C import _cuda_getCurrentRawStream as get_raw_stream"
    )

    def allocate(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return gpu.empty(size, stride, dtype, gpu.recorder.state().device)

    _set(torch._C._dynamo.guards, _empty_strided_cuda=allocate)
    # C++ has none of what the capture of a graph needs.
    for name in ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled"):
        if not hasattr(torch._C, name):
            setattr(torch._C, name, lambda *_: None)
    torch._C._cuda_cudaCachingAllocator_is_enabled = lambda: True

    # A template is loaded only to be timed, which is never done here.
    loaded = SimpleNamespace(__file__="template", key="template")
    _set(select_algorithm, PyCodeCache=SimpleNamespace(load=lambda *_, **__: loaded))
    kernel: Any = triton_split_scan.TritonSplitScanKernel
    kernel.scan = _with_triton_types(kernel.scan)


class _Types(ModuleType):
    """`triton.language` as far as the widths of its types go."""

    def __getattr__(self, name: str) -> SimpleNamespace:
        width = re.search(r"\d+$", name)
        if width is None:
            raise AttributeError(name)
        return SimpleNamespace(primitive_bitwidth=int(width[0]))


def _with_triton_types(scan: Callable[..., Any]) -> Callable[..., Any]:
    """*scan*, which asks Triton how wide its types are; Triton need not be installed."""
    stand_ins = {name: _Types(name) for name in ("triton", "triton.language")}

    def wrapped(*args: Any, **options: Any) -> Any:
        before = {name: sys.modules.get(name) for name in stand_ins}
        sys.modules.update(stand_ins)
        try:
            return scan(*args, **options)
        finally:
            for name, module in before.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module

    return wrapped
