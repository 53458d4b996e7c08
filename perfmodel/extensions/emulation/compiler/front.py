"""The front half of the compiler on the virtual device, as far as its generated Python code.

Dynamo, AOTAutograd and Inductor run unchanged; replaced are the questions they put to a GPU, the
allocation of buffers, and Triton, which neither exists here nor is needed to write its source.
What Inductor would time on the device is decided instead: GEMMs whose operands are not aligned
are padded where torch finds them bound by arithmetic, and GEMMs are those of the library, also
with `max-autotune`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed
import typing_extensions
from torch._dynamo import device_interface, eval_frame, trace_rules
from torch._dynamo.variables import torch as functions

from perfmodel.extensions.emulation.device import attention_packages, triton_stand_in, user_kernels
from perfmodel.extensions.emulation.device.gpu import VirtualGpu

_ASKED = (
    "current_device", "set_device", "device_count", "stream", "current_stream", "set_stream",
    "synchronize", "get_device_properties", "memory_allocated", "is_bf16_supported",
)  # fmt: skip
_OWN_PACKAGE = __name__.partition(".")[0]
_PADS_SINCE = (2, 5)
"""The first release of torch whose compiler pads products: a reading of one published time (124 M
parameters, 50,257 words, torch 2.4.1), which is 22 % off otherwise."""


def _set(target: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(target, name, value)


def keep_lists_of_torch() -> None:
    """Let Dynamo list the functions of torch before any of them is replaced."""
    functions.TorchInGraphFunctionVariable._get_handlers()
    # Made again, the list would have one function under two names.
    kept = _keep(trace_rules.get_torch_obj_rule_map())
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


def _keep(value: Any) -> Callable[[], Any]:
    """What always gives *value*, also after torch.distributed has emptied lists."""

    def get() -> Any:
        return value

    get.cache_clear = lambda: None  # type: ignore[attr-defined]
    return get


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
    trace_rules.add(_OWN_PACKAGE)
    # Dynamo follows calls of these packages, as it follows those of the real ones.
    answered = {one.__file__ for one in (attention_packages, triton_stand_in, user_kernels)}
    followed = trace_rules.get_legacy_mod_inlinelist() | answered
    _set(trace_rules, get_legacy_mod_inlinelist=_keep(followed))
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


def install_inductor(gpu: VirtualGpu, cache: Path, masks: Callable[[], Any]) -> None:
    """Let Inductor generate code for the device; what it stores goes to the folder *cache*.

    *masks* gives those of the region that is being compiled.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    from torch._functorch import config as autograd
    from torch._inductor import async_compile, compile_fx, config, scheduler, select_algorithm
    from torch._inductor.codegen import triton, triton_split_scan, wrapper
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner

    from perfmodel.extensions.emulation.compiler.kernels import MARK, Launcher, describe_kernel

    settings: Any = config
    settings.compile_threads = 1
    # Meta kernels of a script's own operators may state other strides than they have.
    settings.size_asserts = settings.alignment_asserts = False
    settings.fx_graph_cache = autograd.enable_autograd_cache = True
    settings.autotune_local_cache = settings.bundle_triton_into_fx_graph_cache = False
    # The code of a backward pass is generated at once, so that a fault in it is known in time.
    autograd.force_non_lazy_backward_lowering = True
    # Earlier releases left rows of odd lengths as they are.
    settings.shape_padding = settings.comprehensive_padding = gpu.release >= _PADS_SINCE
    settings.max_autotune_gemm_backends = settings.max_autotune_conv_backends = "ATEN"
    for module in (scheduler, pad_mm):
        _set(module, has_triton=lambda: True)
    _set(torch.utils._triton, triton_hash_with_backend=lambda: "virtual")
    code: Any = wrapper.PythonWrapperCodegen
    code.write_triton_header_once = lambda _: None
    code.write_get_raw_stream_header = lambda own: own.imports.writeline(
        "from torch._C import _cuda_getCurrentRawStream as get_raw_stream"
    )
    # Both ways take as long, and a padded product is then preferred.
    _set(pad_mm, _skip_do_bench_times=True, get_do_bench=lambda: lambda _: 1.0)
    _set(CoordescTuner, autotune_single_field=staticmethod(lambda _, first, *__, **___: first))

    def allocate(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return gpu.empty(size, stride, dtype, gpu.recorder.state().device)

    _set(torch._C._dynamo.guards, _empty_strided_cuda=allocate)
    # A graph is captured when its code first runs; C++ has none of what that needs.
    for name in ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled"):
        if not hasattr(torch._C, name):
            setattr(torch._C, name, lambda *_: None)
    torch._C._cuda_cudaCachingAllocator_is_enabled = lambda: True

    def capture(model: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        def replay(inputs: Any) -> Any:
            with gpu.recorder.in_graph():
                return model(inputs)

        return replay

    compile_fx.cudagraphify = capture
    # A template is loaded only to be timed, which is never done here.
    loaded = SimpleNamespace(__file__="template", key="template")
    _set(select_algorithm, PyCodeCache=SimpleNamespace(load=lambda *_, **__: loaded))
    kernel: Any = triton_split_scan.TritonSplitScanKernel
    kernel.scan = _with_triton_types(kernel.scan)
    scheduling: Any = triton.TritonScheduling
    define: Callable[..., str] = scheduling.define_kernel

    def define_kernel(own: Any, source: str, nodes: Any, kernel: Any) -> str:
        words = json.dumps(describe_kernel(kernel, source))
        return define(own, f"{MARK}{words}\n{source}", nodes, kernel)

    scheduling.define_kernel = define_kernel
    compile_: Any = async_compile.AsyncCompile
    compile_.triton = lambda _, name, source, **__: Launcher(gpu, name, source, masks())


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
