"""Operators: what torch calls on the device, around torch's own kernels.

Every kernel at the CUDA key is replaced by one that calls it and then describes the call, if the
driver was asked for a launch meanwhile. Kernels that are called by kernels belong to the first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, get_kernel

from perfmodel.extensions.emulation.driver.attention import OPERATORS as ATTENTION
from perfmodel.extensions.emulation.driver.attention import AttentionCalls, declare_attention
from perfmodel.extensions.emulation.driver.descriptions import (
    Args,
    Kwargs,
    checksum_of,
    describe_call,
    describe_kernel,
    describe_settings,
    schema_name,
    script_line,
    tensors_in,
)
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.groups import Groups
from perfmodel.extensions.emulation.driver.sparse import coalesce, describe_sparse
from perfmodel.extensions.emulation.driver.values import (
    CONSTANT,
    MOST_VALUES,
    ValueKernel,
    forget_floats,
    is_written,
    same_bytes,
)

_SPACES = ("aten::", "c10d::")
_KEYS = ("CUDA", "SparseCUDA", "SparseCsrCUDA")
_MADE_OF_OTHERS = (
    "aten::copy_", "aten::convolution", "aten::convolution_backward", "aten::embedding",
    "aten::embedding_dense_backward",
)  # fmt: skip
"""Operators without a CUDA kernel of their own that are kernels on a GPU."""
_WITHOUT_WORK = ("aten.empty", "aten.set_", "aten.resize_", "aten.record_stream")
Kernel = Callable[..., Any]


class Operators:
    """Describes the calls of one process.

    *peak_place* is the line that reached the most memory, *pieces* are the parts of batches that
    are used first, if not all that was moved: checksum and offset.
    """

    def __init__(self, gpu: Gpu, groups: Groups) -> None:
        self.peak_place = "a line that runs before the recorded iterations"
        self._gpu, self._recorder, self._groups = gpu, gpu.recorder, groups
        self._attention: dict[Any, AttentionCalls] = {}
        self._facts = (gpu.release, gpu.model.capability)
        self._most_bytes = 0
        self.pieces: list[tuple[int, int]] = []
        self._moved: dict[int, tuple[int, int]] = {}
        self._kept: list[Library] = []

    def install(self) -> None:
        """Replace all kernels that the device has, also those of libraries that come later."""
        names = set(torch._C._dispatch_get_all_op_names())
        self._replace(name for name in names if name.startswith(_SPACES))
        declare_attention(self._launch)
        calls: Any = torch.ops
        load = calls.load_library

        def load_library(path: str) -> None:
            known = set(torch._C._dispatch_get_all_op_names())
            load(path)
            self._replace(set(torch._C._dispatch_get_all_op_names()) - known)

        calls.load_library = load_library

    def _replace(self, names: Iterable[str]) -> None:
        """Replace the kernels of the operators *names*."""
        made: Any = Library
        libraries: dict[str, Any] = {}
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for full in names:
                space, _, name = full.partition("::")
                for key in _KEYS:
                    if has_kernel(full, key) or (key == "CUDA" and full in _MADE_OF_OTHERS):
                        if space not in libraries:
                            libraries[space] = made(space, "IMPL")
                        kernel = self._kernel_of(space, name, key)
                        libraries[space].impl(name, kernel, key, with_keyset=True)
        # Kernels live as long as their libraries.
        self._kept += libraries.values()

    def _launch(self, op: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Record a kernel that torch does not have."""
        recorder = self._recorder
        recorder.check_running()
        recorder.enter_stream()
        if recorder.is_on:
            recorder.launch(self._kind(op, args, kwargs, result), recorder.state().device)

    def _kernel_of(self, space: str, name: str, key: str) -> Kernel:
        base, _, overload = name.partition(".")
        op = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        kernel = get_kernel(op, key).call_boxed
        if space == "c10d":
            return partial(self._groups.call, base, kernel)
        if name == "_local_scalar_dense":
            kernel = partial(self._read, kernel)
        schemas = op._schema.arguments
        places = [place for place, one in enumerate(schemas) if str(one.type) == "Tensor"]
        made = kernel
        if key == "CUDA":
            made = ValueKernel.around(name, op, kernel, self._recorder.count_placeholder)
        elif name == "_coalesce":
            made = partial(coalesce, self._gpu)
        return partial(self._call, op, made, places, name in CONSTANT)

    def _read(self, kernel: Kernel, keys: Any, tensor: Tensor) -> Any:
        """The value of *tensor*, or one where no kernel wrote any."""
        value = kernel(keys, tensor)
        if is_written(tensor):
            return value
        self._recorder.count_placeholder("value of a device tensor")
        return type(value)(1)

    def _call(
        self,
        op: Any,
        kernel: Kernel,
        places: list[int],
        is_constant: bool,
        keys: Any,
        *given: Any,
        **kwargs: Any,
    ) -> Any:
        recorder, args = self._recorder, list(given)
        for place in places:
            # torch hands over the plain number that a tensor was made of.
            if place < len(args) and isinstance(args[place], int | float | complex):
                args[place] = torch.tensor(args[place], device="cpu")
        thread: Any = recorder.state()
        if thread.is_inside:
            return kernel(keys, *args, **kwargs)
        recorder.check_running()
        recorder.flush()
        before = thread.launches
        if before != thread.seen:
            self._tell_unknown(thread)
        thread.is_inside = True
        try:
            result = kernel(keys, *args, **kwargs)
        finally:
            thread.is_inside = False
            thread.seen = thread.launches
        if thread.seen != before:
            if not is_constant:
                forget_floats(result)
            kind = self._kind(op, tuple(args), kwargs, result) if recorder.is_on else 0
            recorder.launch(kind, thread.device)
        elif recorder.is_on and _returns_argument(op, is_written=False):
            recorder.note(recorder.intern_kind({"operator": str(op)}))
        return result

    def _kind(self, op: Any, args: Args, kwargs: Kwargs, result: Any) -> int:
        name = str(op)
        self._watch_peak()
        if name == "aten.copy_.default":
            words = _describe_copy(args[0], args[1])
            checksum = words["arguments"].get("checksum")
            if checksum:
                self._moved[_storage_of(args[0])] = (checksum, args[0].numel())
            elif self._moved:
                self._note_pieces(args)
        elif name == "aten._local_scalar_dense.default":
            words = describe_kernel("device_to_host", inputs=[args[0]], outputs=[], pinned=False)
        else:
            made = [] if _returns_argument(op, is_written=True) else tensors_in(result)
            if self._moved:
                self._note_pieces(args)
            given = tensors_in([*args, *kwargs.values()])
            if any(one.layout is not torch.strided for one in (*given, *made)):
                return self._recorder.intern_kind(describe_sparse(op, given, made))
            words = describe_call(op, args, kwargs, made)
            words |= describe_settings(name, args, *self._facts)
            if schema_name(op) in ATTENTION:
                calls = self._attention.setdefault(op, AttentionCalls(self._gpu, op))
                words |= calls.observe(args, kwargs)
            if "embedding" in name and (seen := _rows_seen(op, args)) is not None:
                words["observed"] = seen
        return self._recorder.intern_kind(words)

    def _note_pieces(self, args: Args) -> None:
        for tensor in tensors_in(list(args)):
            checksum, count = self._moved.pop(_storage_of(tensor), (0, 0))
            if tensor.numel() < count:
                self.pieces.append((checksum, int(tensor.storage_offset())))

    def _watch_peak(self) -> None:
        most = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"]
        if most > self._most_bytes:
            if self._most_bytes:
                self.peak_place = script_line()
            self._most_bytes = most

    def _tell_unknown(self, thread: Any) -> None:
        """Name a kernel that was launched outside of any operator."""
        if self._recorder.is_on:
            self._recorder.placeholders[f"launches of {thread.kernel}, which are not priced"] += 1
        thread.seen = thread.launches


def _storage_of(tensor: Tensor) -> int:
    """Where the bytes of *tensor*'s storage begin; a sparse tensor has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _describe_copy(target: Tensor, source: Tensor) -> dict[str, Any]:
    if not target.is_cuda:
        is_pinned = target.is_pinned()
        return describe_kernel("device_to_host", inputs=[source], outputs=[], pinned=is_pinned)
    if source.is_cuda:
        return describe_kernel("copy", inputs=[source], outputs=[target])
    return describe_kernel(
        "host_to_device",
        inputs=[source],
        outputs=[target],
        pinned=source.is_pinned(),
        checksum=checksum_of(source.detach()),
    )


def _rows_seen(op: Any, args: Args) -> dict[str, Any] | None:
    """How many rows the indices of a lookup name how often; None of those that are not known."""
    place = [one.name for one in op._schema.arguments].index("indices")
    indices = args[place]
    if not 0 < indices.numel() <= MOST_VALUES:
        return None
    values: Any = same_bytes(indices)
    _, counts = values.unique(return_counts=True)
    times, rows = counts.unique(return_counts=True)
    return {"times": times.tolist(), "rows_seen": rows.tolist()}


def _returns_argument(op: Any, *, is_written: bool) -> bool:
    """Whether *op* returns one of its arguments, which it has changed, or a view of it."""
    returns = op._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and alias.is_write == is_written
