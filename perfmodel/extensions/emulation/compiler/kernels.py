"""Compiled kernels: what Inductor's kernels read and write, and the launches of them.

When Inductor has written the source of a kernel, its own dependencies say which part of every
buffer the kernel touches. That description is a comment in the source, so it is stored with it in
torch's cache and comes back with it in another process. Nothing is compiled further: a launch
records one kernel. Bytes are those of the tensors at the launch, times the touched share, so they
follow sizes that change.

Of a buffer a kernel touches at most all of it. A place that depends on values (a lookup) is
touched once for every element of the kernel. Whether an argument is loaded, stored to, or both, is
what the source says. A looped reduction that comes back to a row finds it in the cache.

The instructions of an element are read from the source, too: Inductor writes one value a line,
after common ones were joined, and most are one instruction of a lane. They decide where a kernel is
bound by them and not by memory, such as the exponentials of a softmax over a vocabulary. A looped
kernel counts its loops, the others all of their lines; addresses and masks are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from torch import Tensor
from torch._inductor.dependencies import MemoryDep
from torch._inductor.virtualized import V

from perfmodel.extensions.emulation.compiler.masks import AttentionTemplate, RegionMasks
from perfmodel.extensions.emulation.driver.descriptions import DTYPE_WORDS
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.user_kernels import read_text, record_kernel

MARK = "# perfmodel: "
_LENGTHS = ("xnumel", "ynumel", "znumel", "r0_numel", "r1_numel")
_SIGNATURE = re.compile(r"\ndef (?P<kernel>\w+)\((?P<names>[^)]*)\)", re.DOTALL)
_LOADED = re.compile(r"tl\.(?:load|atomic_\w+)\((?:tl\.make_block_ptr\()?(\w+)")
_STORED = re.compile(r"tl\.(?:store|atomic_\w+)\((?:tl\.make_block_ptr\()?(\w+)")
_CHANGED = re.compile(r"'mutated_arg_names': \[(.*?)\]")
_VALUE = re.compile(r"^(?P<indent> +)(?:_?tmp\d+(?:_\w+)?(?:, _?tmp\d+\w*)*) = (?P<text>.+)$", re.M)
_LOOP_INDENT = 8
_CALLED = re.compile(
    r"(?:tl|tl_math|libdevice|triton_helpers)\.(?P<name>\w+)\(|(?P<quotient> / )", re.M
)
_SPECIAL = 8
"""Lanes of a multiprocessor over its special units: instructions that one of theirs costs."""
_INSTRUCTIONS = {
    "exp": _SPECIAL + 2, "exp2": _SPECIAL, "log": _SPECIAL + 2, "log2": _SPECIAL,
    "rsqrt": _SPECIAL + 2, "sqrt": _SPECIAL + 2, "sqrt_rn": _SPECIAL + 6, "div_rn": _SPECIAL + 8,
    "sigmoid": 2 * _SPECIAL + 4, "tanh": 2 * _SPECIAL + 8, "erf": _SPECIAL + 18,
    "sin": 30, "cos": 30, "pow": 2 * _SPECIAL + 24, "online_softmax_combine": 2 * _SPECIAL + 12,
    "full": 0, "broadcast_to": 0, "reshape": 0,
}  # fmt: skip
"""Instructions of the functions that do not cost one; divisions are `/`."""
_QUOTIENT = _SPECIAL + 2


def describe_kernel(kernel: Any, source: str, *, is_part: bool = False) -> dict[str, Any]:
    """The touched shares of the arguments of *kernel*, of which Inductor has written *source*."""
    if not hasattr(kernel, "features") or not kernel.features.node_schedule:
        # A template: its arguments show what it does when it is launched.
        return {}
    parts = getattr(kernel, "sub_kernels", None)
    if parts:
        # One launch for several independent kernels; each has arguments of its own.
        found = [describe_kernel(part, source, is_part=True) for part in parts]
        shares = _joined(found)
        return {
            "kind": "foreach",
            "shares": shares,
            "row_length": max(one["row_length"] for one in found),
            # Each part has its own lines.
            "instructions": count_instructions(source) / len(found),
            "elements": sum(one["elements"] for one in found),
        }
    features = kernel.features
    is_reduction = features.is_reduction()
    kind = "pointwise"
    if is_reduction:
        kind = "persistent_reduction" if kernel.persistent_reduction else "reduction"
    return {
        "kind": kind,
        "shares": dict(_shares(kernel, source, is_part=is_part)),
        "row_length": _number(features.reduction_numel) if is_reduction else 0,
        "instructions": count_instructions(source),
        "elements": _number(features.numel * features.reduction_numel),
    }


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    shares: dict[str, list[float]] = {}
    for part in parts:
        for name, (read, written) in part["shares"].items():
            before = shares.setdefault(name, [0.0, 0.0])
            shares[name] = [min(before[0] + read, 1.0), min(before[1] + written, 1.0)]
    return shares


def _shares(
    kernel: Any, source: str, *, is_part: bool
) -> Iterator[tuple[str, tuple[float, float]]]:
    """The share of the buffer of every argument that is read, and that is written."""
    loaded, stored = set(_LOADED.findall(source)), set(_STORED.findall(source))
    features, accesses = kernel.features, kernel.features.buf_accesses()
    elements = _number(features.numel * features.reduction_numel)
    names, buffers, *_ = kernel.args.python_argdefs()
    # A buffer that is changed in place has a name before, and another one after.
    aliases = {
        outer: tuple(getattr(one, "other_names", ()))
        for one in kernel.args.inplace_buffers.values()
        for outer in getattr(one, "other_names", ())
    }
    for argument, outer in zip(names, buffers, strict=True):
        if not isinstance(outer, str) or V.graph.try_get_buffer(outer) is None:
            continue
        known = [dep for name in aliases.get(outer, (outer,)) for dep in accesses.get(name, ())]
        if is_part and not known:
            continue
        size = max(_number(V.graph.get_numel(outer)), 1)
        places = dict(_touched(dep, elements) for dep in known)
        touched = sum(places.values()) if places else elements
        share, name = min(1.0, touched / size), argument.name
        yield name, (share * (name in loaded), share * (name in stored))


def _touched(dependency: Any, elements: int) -> tuple[str, int]:
    """Where *dependency* touches its buffer, and how much of it."""
    if isinstance(dependency, MemoryDep) and not dependency.is_indirect():
        return str(dependency.index), _number(dependency.get_numel())
    return "", elements


def _number(size: Any) -> int:
    """*size* as it was when the code was compiled."""
    return int(V.graph.sizevars.optimization_hint(size, fallback=0))


class Launcher:
    """A kernel in generated code: every launch of it is recorded."""

    def __init__(self, gpu: Gpu, name: str, source: str, masks: RegionMasks | None) -> None:
        self._gpu, self._masks = gpu, masks
        self._operator = f"inductor.{name}"
        found = re.search(MARK + "(.*)", source)
        self._words: dict[str, Any] = json.loads(found[1]) if found else {}
        # What Inductor did not schedule the script wrote.
        self._script = None
        self._names = argument_names(name, source)
        if found is None:
            self._operator = re.sub(r"_\d+$", "", name)
            self._script = read_text(source, tuple(self._names))
        self._attention = AttentionTemplate.find(source)
        self._shares = self._words.get("shares") or _guessed_shares(self._names, source)
        self._kinds: dict[Any, int] = {}

    def run(self, *args: Any, **_: Any) -> None:
        """Record a launch with these arguments."""
        recorder = self._gpu.recorder
        recorder.check_running()
        recorder.enter_stream()
        if recorder.is_on and self._attention is not None:
            given = dict(zip(self._names, args, strict=False))
            words = self._attention.describe(self._gpu, given, self._masks)
            recorder.launch(recorder.intern_kind(words), recorder.state().device, 1)
        elif recorder.is_on and self._script is not None:
            self._run_of_script(args, *self._script)
        elif recorder.is_on:
            key = tuple(arg.shape if isinstance(arg, Tensor) else None for arg in args)
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = recorder.intern_kind(self._describe(args))
            recorder.launch(kind, recorder.state().device, 1)
        self._forget(args)

    def _run_of_script(
        self, args: Sequence[Any], names: Sequence[str], stored: Sequence[str], multiplies: bool
    ) -> None:
        """Record a kernel that the script wrote itself, in a compiled region."""
        given = dict(zip(names, args, strict=False))
        record_kernel(
            self._gpu,
            self._operator,
            inputs=[one for name, one in given.items() if name not in stored],
            outputs=[one for name, one in given.items() if name in stored],
            has_products=multiplies,
        )

    def _tensors(self, args: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
        for name, value in zip(self._names, args, strict=False):
            if isinstance(value, Tensor):
                yield name, value

    def _describe(self, args: Sequence[Any]) -> dict[str, Any]:
        rows: tuple[list[Any], list[Any]] = ([], [])
        for name, tensor in self._tensors(args):
            size_bytes = tensor.untyped_storage().nbytes() if not tensor.is_cuda else _bytes(tensor)
            dtype = DTYPE_WORDS[str(tensor.dtype)]
            for row, share in zip(rows, self._shares.get(name, (0.0, 0.0)), strict=True):
                if share:
                    row.append([name, list(tensor.shape), dtype, round(size_bytes * share)])
        return {
            "operator": self._operator,
            "inputs": rows[0],
            "outputs": rows[1],
            "written": [],
            "arguments": {
                "kind": self._words.get("kind", "pointwise"),
                "row_length": self._words.get("row_length", 0),
                "instructions": round(self._words.get("instructions", 0) * self._elements(args)),
            },
        }

    def _elements(self, args: Sequence[Any]) -> int:
        """Elements of a launch: the lengths that it is given, as large as they are now."""
        given = dict(zip(self._names, args, strict=False))
        lengths = [given[name] for name in _LENGTHS if isinstance(given.get(name), int)]
        return prod(lengths) if lengths else int(self._words.get("elements", 0))

    def _forget(self, args: Sequence[Any]) -> None:
        for name, tensor in self._tensors(args):
            if self._shares.get(name, (0, 0))[1]:
                self._gpu.values.forget(tensor)


def _bytes(tensor: Tensor) -> int:
    """Bytes of *tensor*; a dimension that is only repeated counts once."""
    count = 1
    for length, step in zip(tensor.shape, tensor.stride(), strict=True):
        if step or not length:
            count *= length
    return count * tensor.itemsize


def argument_names(kernel: str, source: str) -> list[str]:
    """The arguments of *kernel* in *source*, in order; functions that it calls may come first."""
    names = {found["kernel"]: found["names"].split(",") for found in _SIGNATURE.finditer(source)}
    return [name.partition(":")[0].strip() for name in names[kernel]]


def _guessed_shares(names: Sequence[str], source: str) -> dict[str, tuple[float, float]]:
    """For kernels that Inductor did not schedule: whole tensors, as far as the source shows."""
    changed = _CHANGED.search(source)
    stored = {*_STORED.findall(source), *(re.findall(r"'(\w+)'", changed[1]) if changed else ())}
    return {name: (float(name not in stored), float(name in stored)) for name in names}


def count_instructions(source: str) -> int:
    """Instructions per element of the kernel in *source*."""
    values = [(len(found["indent"]), found["text"]) for found in _VALUE.finditer(source)]
    if "for r0_offset in" in source:
        values = [value for value in values if value[0] >= _LOOP_INDENT]
    return sum(_of_value(text) for _, text in values)


def _of_value(text: str) -> int:
    counts = [
        _QUOTIENT if found["quotient"] else _INSTRUCTIONS.get(found["name"], 1)
        for found in _CALLED.finditer(text)
    ]
    return max(counts, default=1)
