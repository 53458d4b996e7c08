"""Sharing: one rank compiles a region, the others load its code from the folder of the run.

torch's own caches hold the code. They distinguish GPUs by number, in the key and in the code, while
ranks differ in nothing else. So the number of the rank's own GPU is left out of both: generated
code runs on the current device. Of ranks that come to the same region one compiles and the others
wait. torch does not store the parts of a graph that is split at DDP's buckets, because their first
call answers with fake tensors, in the strides of the generated code. Here these are stored, too.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._guards import TracingContext

FOLDER = "compiled"
_NUMBER = re.compile(rb"(cuda:|type='cuda', index=)(\d+)")


def device_here(compiled_for: int) -> Callable[..., torch.device]:
    """The function `device` of code compiled for GPU *compiled_for*, which runs on any."""

    def device(*words: Any, **named: Any) -> torch.device:
        made = torch.device(*words, **named)
        is_own = made == torch.device("cuda", compiled_for)
        return torch.device("cuda", torch.cuda.current_device()) if is_own else made

    return device


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one rank at a time is in a `with` block."""
    with (folder / "compiling").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def share_code() -> None:
    """Leave the rank's own GPU out of the keys of the caches, and out of the code."""
    from torch._inductor.codecache import FxGraphCachePickler
    from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    pickler: Any = FxGraphCachePickler
    initialise, dumps = pickler.__init__, pickler.dumps

    def start(own: Any, *args: Any, **kwargs: Any) -> None:
        initialise(own, *args, **kwargs)
        own.dispatch_table[torch.device] = lambda device: (str, (_without_number(str(device)),))

    pickler.__init__ = start
    pickler.dumps = lambda own, what: _NUMBER.sub(_replace, dumps(own, what))
    words: Any = CUDADeviceOpOverrides
    words.set_device = lambda _, index: f"torch.cuda.set_device({_relative(index)})"
    words.device_guard = lambda _, index: f"torch.cuda._DeviceGuard({_relative(index)})"
    code: Any = PythonWrapperCodegen
    write_header = code.write_header

    def write(own: Any) -> None:
        write_header(own)
        own.header.splice(
            f"from {__name__} import device_here\n"
            f"device = device_here({torch.cuda.current_device()})\n"
        )

    code.write_header = write
    _share_split_graphs()


def _share_split_graphs() -> None:
    """Store what fake outputs of split graphs look like with their code, and answer with them."""
    from torch._functorch._aot_autograd import autograd_cache as caching
    from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult
    from torch._functorch._aot_autograd.runtime_wrappers import FakifiedOutWrapper

    made: list[list[Any]] = []
    wrapper: Any = FakifiedOutWrapper
    compute = wrapper._compute_output_meta_with_inductor_strides

    def compute_and_keep(own: Any) -> list[Any]:
        made[:] = [compute(own)]
        return made[0]

    module: Any = caching
    cache, check = module.AOTAutogradCache, module.check_cacheable
    save = cache.save

    def save_with_outputs(key: str, entry: Any, remote: bool) -> None:
        if _answers_with_fakes():
            outputs = made.pop()
            if any(_may_change(one) for one in outputs):
                return
            entry.fake_outputs = [_looks(one) for one in outputs]
        save(key, entry, remote)

    def check_other_rules(graph: Any) -> None:
        context: Any = TracingContext.try_get()
        if context is None:
            check(graph)
            return
        was_split, context.fakify_first_call = context.fakify_first_call, False
        try:
            check(graph)
        finally:
            context.fakify_first_call = was_split

    result: Any = GenericAOTAutogradResult
    load = result._load_and_post_compile

    def load_with_outputs(own: Any, args: Any, options: Any) -> tuple[Any, Any, bool]:
        forward, backward, has_backward = load(own, args, options)
        if _answers_with_fakes():
            forward = _answering_once(forward, own.fake_outputs)
            # DDP's optimizer of graphs asks for it, as for that of a graph that was compiled.
            context: Any = TracingContext.try_get()
            context.fw_metadata = own.runtime_metadata
        return forward, backward, has_backward

    wrapper._compute_output_meta_with_inductor_strides = compute_and_keep
    cache.save = staticmethod(save_with_outputs)
    module.check_cacheable = check_other_rules
    result._load_and_post_compile = load_with_outputs


def _answers_with_fakes() -> bool:
    context = TracingContext.try_get()
    return context is not None and context.fakify_first_call


def _may_change(value: Any) -> bool:
    """Whether *value* is a symbol, or a tensor with sizes that are symbols."""
    is_tensor = isinstance(value, torch.Tensor)
    numbers = (*value.shape, *value.stride()) if is_tensor else (value,)
    return any(isinstance(number, torch.SymInt) for number in numbers)


def _looks(value: Any) -> Any:
    """What is needed to make a fake of *value* again."""
    if not isinstance(value, torch.Tensor):
        return value
    return _Fake(tuple(value.shape), tuple(value.stride()), value.dtype)


@dataclass(frozen=True)
class _Fake:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _answering_once(run: Any, outputs: list[Any]) -> Callable[..., Any]:
    """*run*, whose first call answers with fakes of *outputs*."""
    context: Any = TracingContext.try_get()
    with context.fake_mode:
        waiting = [[
            torch.empty_strided(one.size, one.stride, dtype=one.dtype, device="cuda")
            if isinstance(one, _Fake)
            else one
            for one in outputs
        ]]  # fmt: skip

    def answer(inputs: list[Any]) -> Any:
        return waiting.pop() if waiting else run(inputs)

    return answer


def _relative(index: int) -> int:
    """-1 for the current device, which is that of the rank."""
    return -1 if index == torch.cuda.current_device() else index


def _without_number(device: str) -> str:
    return _NUMBER.sub(_replace, device.encode()).decode()


def _replace(found: re.Match[bytes]) -> bytes:
    return found[1] if int(found[2]) == torch.cuda.current_device() else found[0]
