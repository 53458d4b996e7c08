"""Inductor on a device that runs nothing: its kernels are recorded, not compiled further.

What it would time on a device is decided instead: GEMMs whose operands are not aligned are padded
where torch finds them bound by arithmetic, and GEMMs are those of the library, also with
`max-autotune`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._dynamo import trace_rules

from perfmodel.extensions.emulation.driver import attention_packages, user_kernels
from perfmodel.extensions.emulation.driver.gpu import Gpu

_PADS_SINCE = (2, 5)
"""The first release of torch whose compiler pads products: a reading of one published time (124 M
parameters, 50,257 words, torch 2.4.1), which is 22 % off otherwise."""


def keep(value: Any) -> Callable[[], Any]:
    """What always gives *value*, also after torch.distributed has emptied lists."""

    def get() -> Any:
        return value

    get.cache_clear = lambda: None  # type: ignore[attr-defined]
    return get


def guide_dynamo() -> None:
    """Let Dynamo follow stand-ins of packages, as it follows the real ones, and no more of ours."""
    trace_rules.add(__name__.partition(".")[0])
    answered = {one.__file__ for one in (attention_packages, user_kernels)}
    rules: Any = trace_rules
    rules.get_legacy_mod_inlinelist = keep(trace_rules.get_legacy_mod_inlinelist() | answered)


def take_kernels(gpu: Gpu, cache: Path, masks: Callable[[], Any]) -> None:
    """Record the kernels that Inductor writes; what it stores goes to the folder *cache*.

    *masks* gives those of the region that is being compiled.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    from torch._functorch import config as autograd
    from torch._inductor import async_compile, compile_fx, config
    from torch._inductor.codegen import triton
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
    # Both ways take as long, and a padded product is then preferred.
    padding: Any = pad_mm
    padding._skip_do_bench_times, padding.get_do_bench = True, lambda: lambda _: 1.0
    tuner: Any = CoordescTuner
    tuner.autotune_single_field = staticmethod(lambda _, first, *__, **___: first)

    # A graph is captured when its code first runs.
    def capture(model: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        def replay(inputs: Any) -> Any:
            with gpu.recorder.in_graph():
                return model(inputs)

        return replay

    compiling: Any = compile_fx
    compiling.cudagraphify = capture
    scheduling: Any = triton.TritonScheduling
    define: Callable[..., str] = scheduling.define_kernel

    def define_kernel(own: Any, source: str, nodes: Any, kernel: Any) -> str:
        words = json.dumps(describe_kernel(kernel, source))
        return define(own, f"{MARK}{words}\n{source}", nodes, kernel)

    scheduling.define_kernel = define_kernel
    compile_: Any = async_compile.AsyncCompile
    compile_.triton = lambda _, name, source, *__, **___: Launcher(gpu, name, source, masks())
