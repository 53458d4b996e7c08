"""User kernels: those that a script writes itself, in Triton or in CUDA for NVRTC.

Nothing is compiled. A launch is one kernel that reads and writes the tensors it is given, once
each. Which of them it writes is read from the source. Arithmetic inside the kernel is unknown, so
its price is tagged assumed. A kernel that multiplies matrices is taken for the GEMM that the shapes
of its tensors allow, and the job names it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from perfmodel.extensions.emulation.driver.gpu import Gpu

OPERATOR = "user_kernel"
"""How calls of such kernels are named in the record, before the name of the function."""
_STORES = ("store", "atomic")
_PARAMETERS = r"\b{name}\s*\(([^)]*)\)"


def install_nvrtc(gpu: Gpu) -> None:
    """Answer what torch compiles with NVRTC: `_compile_kernel`, jiterator, TorchScript."""

    def compile_kernel(source: str, name: str, *_: Any, **__: Any) -> Callable[..., None]:
        match = re.search(_PARAMETERS.format(name=re.escape(name)), source)
        constants = ["const" in one for one in match[1].split(",")] if match else []

        def launch(grid: Any = None, block: Any = None, args: Any = (), **_: Any) -> None:
            del grid, block
            given = list(zip(args, [*constants, *[False] * len(args)], strict=False))
            record_kernel(
                gpu,
                name,
                inputs=[one for one, is_constant in given if is_constant],
                outputs=[one for one, is_constant in given if not is_constant],
            )

        made: Any = launch
        made.set_shared_memory_config = lambda *_: None
        return launch

    def run_elementwise(
        _code: str, name: str, _by_reference: bool, count: int, tensors: Any, *_: Any
    ) -> Any:
        shape = torch.broadcast_shapes(*[tensor.shape for tensor in tensors])
        outputs = [tensors[0].new_empty(shape) for _ in range(count)]
        record_kernel(gpu, name, inputs=list(tensors), outputs=outputs)
        return outputs[0] if count == 1 else tuple(outputs)

    torch.cuda._compile_kernel = compile_kernel
    torch._C._cuda_jiterator_compile_and_launch_kernel = run_elementwise
    # The fuser of TorchScript would compile for the device; its operators run one by one.
    torch._C._jit_override_can_fuse_on_gpu(False)
    torch._C._jit_set_texpr_fuser_enabled(False)


def install_triton(gpu: Gpu, jit: Any, autotuner: Any) -> None:
    """Record launches of kernels made with the modules *jit* and *autotuner* of Triton."""

    def run(kernel: Any, *args: Any, grid: Any = None, warmup: bool = False, **words: Any) -> None:
        del grid, warmup
        # An autotuner or a heuristic adds arguments to the kernel inside it.
        while not isinstance(kernel, jit.JITFunction):
            kernel = kernel.fn
        names, stored, has_products = read_source(kernel.fn)
        given = {**dict(zip(names, args, strict=False)), **words}
        record_kernel(
            gpu,
            kernel.fn.__name__,
            inputs=[value for name, value in given.items() if name not in stored],
            outputs=[value for name, value in given.items() if name in stored],
            has_products=has_products,
        )

    for kind in (jit.JITFunction, autotuner.Autotuner, autotuner.Heuristics):
        kind.run = run


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Tensors of the device among *values*, and those that descriptors describe."""
    bases = [getattr(one, "base", one) for one in values]
    return [one for one in bases if isinstance(one, Tensor) and one.is_cuda]


def record_kernel(
    gpu: Gpu,
    name: str,
    *,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    has_products: bool = False,
) -> None:
    """Record one launch; what is neither a tensor of the device nor describes one is left out."""
    written, read = _tensors(outputs), _tensors(inputs)
    gpu.recorder.check_running()
    for tensor in written:
        gpu.values.forget(tensor)
    product: dict[str, Any] = product_of(read, written) if has_products else {}
    if has_products:
        priced = "as a GEMM with their shapes" if product else "by their bytes"
        gpu.recorder.notes[
            f"The script's own kernel {name} multiplies its tensors, and is priced {priced}."
        ] = None
    gpu.launch(f"{OPERATOR}.{name}", inputs=read, outputs=written, **product)


def product_of(read: Sequence[Tensor], written: Sequence[Tensor]) -> dict[str, int]:
    """Sizes of the GEMM that makes the first matrix of *written* from one of *read*, if any does.

    Rows or columns of an operand are as many as those of the result; its other side is summed up.
    """
    for out in written:
        # What has the shape of the result is rather added to it.
        for operand in sorted(read, key=lambda one: one.shape[-2:] == out.shape[-2:]):
            if min(out.dim(), operand.dim()) < 2:
                continue
            (rows, columns), sides = out.shape[-2:], operand.shape[-2:]
            for side, depth in (sides, sides[::-1]):
                if side in (rows, columns):
                    batch = out.numel() // (rows * columns)
                    return {"m": rows, "n": columns, "k": depth, "batch": batch}
    return {}


@cache
def read_source(function: Any) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Parameters of a Triton kernel, those it stores to, and whether it multiplies matrices.

    A pointer is often moved first (`y = y + row * stride`), so names are followed through
    assignments. A kernel whose source cannot be read is assumed to write everything.
    """
    names = tuple(inspect.signature(function).parameters)
    try:
        return read_text(textwrap.dedent(inspect.getsource(function)), names)
    except (OSError, SyntaxError, TypeError):
        return names, names, False


def read_text(text: str, names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """As `read_source`, of a kernel with the parameters *names* in *text*."""
    tree = ast.parse(text)
    origins = {name: {name} for name in names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    origins.setdefault(target.id, set()).update(_origins_in(node.value, origins))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    stores = [call for call in calls if _called(call).startswith(_STORES) and call.args]
    # A store names a pointer, or is called on a descriptor.
    places = [place for call in stores for place in (call.args[0], call.func)]
    stored = set().union(*(_origins_in(place, origins) for place in places))
    # A pointer that helpers store to cannot be told from one they load from.
    written = tuple(name for name in names if name in stored) if stores else names
    return names, written, any(_called(call).startswith("dot") for call in calls)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _origins_in(node: ast.AST, origins: Mapping[str, set[str]]) -> set[str]:
    """Parameters that the names in *node* come from."""
    return {
        origin
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name)
        for origin in origins.get(inner.id, ())
    }
