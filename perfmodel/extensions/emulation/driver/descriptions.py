"""Descriptions: calls, tensors and script lines as plain values, for records and messages.

A tensor is described by its shape, number format and the bytes it really has: a dimension that
is only repeated (stride 0) is counted once.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import zlib
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
"""Positional and keyword arguments of a call."""

DTYPE_WORDS: dict[str, str] = {}
"""Our name of every number format, or that of the nearest one we have; an order states them."""
_PLAIN = (int, bool, str, type(None))
_LOOKED_AT = 2**16
"""Elements of a tensor from the host that its checksum is made of."""
_FORWARD = "aten.convolution."
_CONVOLUTIONS = (_FORWARD, "aten.convolution_backward.")
_WITH_GROUPED_GRADIENTS = (2,)
"""The first release of torch that is taken to have kernels for any groups. Between 1.13 and 2.1
their forward kernels became up to 28 % faster; no later times of training are published."""
_GENERATED = ["<"]
"""Prefixes of paths of generated code."""
_LIBRARIES = tuple(
    str(Path(folder)) + "/"
    for folder in {
        Path(torch.__file__).parent,
        Path(__file__).parents[1],
        Path(sysconfig.get_paths()["stdlib"]),
        Path(sysconfig.get_paths()["purelib"]),
        Path(sysconfig.get_paths()["platlib"]),
    }
)


def describe_tensor(name: str, tensor: Tensor) -> list[Any]:
    """Name, shape, format and bytes of *tensor*."""
    count = 1
    for length, step in zip(tensor.shape, tensor.stride(), strict=True):
        if step or not length:
            count *= length
    return [name, list(tensor.shape), DTYPE_WORDS[str(tensor.dtype)], count * tensor.itemsize]


def describe_call(op: Any, args: Args, kwargs: Kwargs, outputs: list[Tensor]) -> dict[str, Any]:
    """The call of *op*."""
    inputs: list[list[Any]] = []
    arguments: dict[str, Any] = {}
    for place, schema in enumerate(op._schema.arguments):
        value = argument(args, kwargs, place, schema.name, schema.default_value)
        tensors = tensors_in(value)
        inputs += [describe_tensor(schema.name, tensor) for tensor in tensors]
        plain = None if tensors else _plain(value)
        if plain is not None:
            arguments[schema.name] = plain
    written = [
        schema.name
        for schema in op._schema.arguments
        if schema.alias_info is not None and schema.alias_info.is_write
    ]
    return {
        "operator": str(op),
        "inputs": inputs,
        "outputs": [describe_tensor("", tensor) for tensor in outputs],
        "written": written,
        "arguments": arguments,
    }


def describe_kernel(
    operator: str, *, inputs: list[Tensor], outputs: list[Tensor], **arguments: Any
) -> dict[str, Any]:
    """A kernel under a name of ours, with what it reads and writes."""
    return {
        "operator": operator,
        "inputs": [describe_tensor("", tensor) for tensor in inputs],
        "outputs": [describe_tensor("", tensor) for tensor in outputs],
        "written": [],
        "arguments": arguments,
    }


def argument(args: Args, kwargs: Kwargs, place: int, name: str, default: Any = None) -> Any:
    """The argument of a call that its schema has at *place*."""
    return args[place] if place < len(args) else kwargs.get(name, default)


def schema_name(op: Any) -> str:
    """The name of *op* without namespace and overload."""
    return str(op._schema.name.partition("::")[2])


def is_inexact(tensor: Tensor) -> bool:
    """Whether *tensor* holds floats or complex numbers, which have no values on the device."""
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in *value*, however deeply nested."""
    found: list[Tensor] = []
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.SymInt | float):
        return float(value)
    if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        return list(value)
    if isinstance(value, torch.dtype):
        return DTYPE_WORDS[str(value)]
    return None


def script_line() -> str:
    """The innermost line of the user's code, such as `train.py:41`.

    The thread of a backward pass has none; then it is the line of the main thread, which waits
    in `backward`.
    """
    found = _innermost(sys._getframe(1))
    if found is None:
        main = threading.main_thread().ident
        found = _innermost(sys._current_frames().get(main or 0))
    if found is None:
        return "no line of the script"
    return show_line(found.f_code, found.f_lineno)


def line_of(fault: BaseException) -> str:
    """The innermost line of the user's code that *fault* came through."""
    found, trace = "no line of the script", fault.__traceback__
    while trace is not None:
        if _innermost(trace.tb_frame) is trace.tb_frame:
            found = show_line(trace.tb_frame.f_code, trace.tb_lineno)
        trace = trace.tb_next
    return found


def show_line(code: CodeType, line: int) -> str:
    """A line of *code*, with its file as seen from where the script runs."""
    path = Path(code.co_filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{line}"


def hide_code(folder: Path) -> None:
    """Let no line in *folder*, where generated code is, count as the user's."""
    _GENERATED.append(f"{folder}/")


def _innermost(frame: FrameType | None) -> FrameType | None:
    """The first frame from *frame* up that is neither a library nor generated code."""
    while frame is not None and (
        frame.f_code.co_filename.startswith((*_GENERATED, *_LIBRARIES))
        or _is_installed(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame


@cache
def _is_installed(path: str) -> bool:
    """Whether *path* belongs to a package that was installed, into whatever folder."""
    return any(
        path.startswith(f"{folder}/") and next(Path(folder).glob("*.dist-info"), None) is not None
        for folder in sys.path
        if folder
    )


def checksum_of(values: Tensor) -> int:
    """A checksum of *values*; of many, only some are read."""
    flat = values.resolve_conj().resolve_neg().reshape(-1)
    some = flat[:: flat.numel() // _LOOKED_AT + 1].contiguous()
    return zlib.crc32(some.view(torch.uint8).numpy().data)


def channels_last(name: str, args: Args) -> torch.memory_format | None:
    """The layout of a convolution whose image or weight has its channels last."""
    if not name.startswith(_CONVOLUTIONS):
        return None
    operands = args[_FORWARD not in name :][:2]
    wanted = {4: torch.channels_last, 5: torch.channels_last_3d}.get(operands[0].dim())
    is_last = wanted is not None and any(
        one.is_contiguous(memory_format=wanted) and not one.is_contiguous() for one in operands
    )
    return wanted if is_last else None


def describe_settings(
    name: str, args: Args, release: tuple[int, ...], capability: tuple[int, int]
) -> dict[str, bool]:
    """What decides about a kernel but is not an argument of its operator.

    That is whether fp32 runs in TF32, whether cuDNN converts images to the layout that tensor
    cores need, whether it has a kernel for them that sums up gradients of grouped weights, and
    whether a product must load the elements of an operand one at a time.
    """
    if "conv" in name:
        found = {"allows_tf32": torch._C._get_cudnn_allow_tf32()}
        if not name.startswith(_CONVOLUTIONS):
            return found
        if channels_last(name, args) is not None:
            return found | {"sums_singly": _sums_singly(name, args, release)}
        least = {torch.float16: 7, torch.bfloat16: 8, torch.float64: 99}
        needed = least.get(args[0].dtype, 8 if found["allows_tf32"] else 99)
        return found | {"converts_layout": capability[0] >= needed}
    if any(word in name for word in ("mm", "mv", "dot")):
        loads_singly = any(isinstance(one, Tensor) and _has_odd_rows(one) for one in args)
        return {"allows_tf32": torch._C._get_cublas_allow_tf32(), "loads_singly": loads_singly}
    return {}


def _sums_singly(name: str, args: Args, release: tuple[int, ...]) -> bool:
    """Whether the gradient of weights is that of groups for which cuDNN has one simple kernel.

    The library of torch 1 packs groups into tiles of tensor cores: of up to 8 channels always, of
    16 and 32 if there are 32, 64 ... of them (ResNeXt). Others have no such kernel.
    """
    if _FORWARD in name or release >= _WITH_GROUPED_GRADIENTS or args[9] == 1:
        return False
    width = args[2].shape[1]
    return width > 8 and bool(32 % width or args[9] % 32)


def _has_odd_rows(matrix: Tensor) -> bool:
    """Whether rows, or columns if those are contiguous, begin at any two bytes.

    The narrowest copy of more than one element at a time has four bytes.
    """
    if matrix.dim() < 2 or matrix.itemsize != 2 or min(matrix.shape) < 2:
        return False
    return max(matrix.stride()[-2:]) % 2 == 1
