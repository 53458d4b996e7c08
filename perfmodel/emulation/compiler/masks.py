"""flex_attention in compiled code: its kernels, and the share of blocks that its masks keep.

Compiled kernels have no values, also where eager code would know them: integers that a script
computes from its tokens. A mask of blocks is such a result, and it decides how long
flex_attention takes. So the part of the graph that leads to it is evaluated on the host, with what
is known of the region's arguments, each time the region runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch._higher_order_ops.flex_attention import flex_attention

from perfmodel.emulation.device.descriptions import DTYPE_WORDS
from perfmodel.emulation.device.flex import count_pairs_of_blocks, share_of_blocks
from perfmodel.emulation.device.gpu import VirtualGpu

_MASK, _INDICES, _COUNTS = 4, 3, (2, 4)
"""Where the mask is among the arguments of flex_attention, and what is where in it."""
_MOST_ELEMENTS = 1 << 24
"""Larger tensors are not evaluated."""
_HOST = torch.device("cpu")
_OPERAND = re.compile(r"^ +([A-Z_]+) = (arg_\w+)(?: \+ .+)?$", re.MULTILINE)
_SIZE = re.compile(r"^ +([A-Z_]+)(?: : tl\.constexpr)? = (\d+)$", re.MULTILINE)
_NEEDED = frozenset({"Q", "K", "V", "KV_IDX"})
_COUNTED = ("KV_NUM_BLKS", "FULL_KV_NUM_BLKS")
_SIZES = frozenset({"ZQ", "HQ", "Q_LEN", "KV_LEN", "GQA_SHARED_HEADS", "QK_HEAD_DIM"})


@dataclass(frozen=True, slots=True)
class AttentionTemplate:
    """A kernel of flex_attention, told by the names in its source.

    *operands* are by their name in the template the argument that has them, *sizes* those of the
    operands, which may be parts of a larger tensor.
    """

    operands: Mapping[str, str]
    sizes: Mapping[str, int]

    @classmethod
    def find(cls, source: str) -> AttentionTemplate | None:
        """The template in *source*, if it is one."""
        operands = dict(_OPERAND.findall(source))
        if not operands.keys() >= _NEEDED:
            return None
        return cls(operands, {name: int(size) for name, size in _SIZE.findall(source)})

    def describe(
        self, gpu: VirtualGpu, given: Mapping[str, Any], masks: RegionMasks | None
    ) -> dict[str, Any]:
        """A launch with the arguments *given*, as the operator that eager code has for it."""
        tensors: dict[str, Any] = {name: given.get(at) for name, at in self.operands.items()}
        is_backward = "DO" in tensors
        share = masks.take(is_backward=is_backward) if masks is not None else None
        if share is None:
            counts = [one for name in _COUNTED if (one := tensors.get(name)) is not None]
            share = share_of_blocks(gpu, counts, tensors["KV_IDX"])
        query, key = self._shape(tensors["Q"], is_key=False), self._shape(tensors["K"], is_key=True)
        dtype, size = DTYPE_WORDS[str(tensors["Q"].dtype)], tensors["Q"].itemsize
        rows = [("query", query), ("key", key), ("value", key)]
        if is_backward:
            rows = [("grad", query), *rows]
        pairs = count_pairs_of_blocks(gpu, query[0] * query[1] * key[1], share)
        return {
            "operator": f"perfmodel.attention{'_backward' if is_backward else ''}.default",
            "inputs": [[name, shape, dtype, prod(shape) * size] for name, shape in rows],
            "outputs": [["", query, dtype, prod(query) * size]],
            "written": [],
            "arguments": {"is_causal": False, "kernel": "flash2"},
            "observed": {"pairs": pairs},
        }

    def _shape(self, tensor: Tensor, *, is_key: bool) -> list[int]:
        """Batch, length, heads and width of an operand."""
        sizes = self.sizes
        if not sizes.keys() >= _SIZES:
            batch, heads, length, width = tensor.shape
            return [batch, length, heads, width]
        heads = sizes["HQ"] // (sizes["GQA_SHARED_HEADS"] if is_key else 1)
        return [
            sizes["ZQ"], sizes["KV_LEN" if is_key else "Q_LEN"], heads, sizes["QK_HEAD_DIM"],
        ]  # fmt: skip


class _UnknownError(LookupError):
    """A value that is not known, or not worth evaluating."""


class RegionMasks:
    """The masks of one region, in the order of its calls of flex_attention.

    The backward pass comes to them in the opposite order. A share that is not known is None.
    """

    def __init__(self, gpu: VirtualGpu, model: fx.GraphModule) -> None:
        self._gpu, self._model = gpu, model
        self._calls = [node for node in model.graph.nodes if node.target is flex_attention]
        self._forward: list[float | None] = []
        self._backward: list[float | None] = []

    def watch(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """*compiled*, with the masks evaluated before each run."""
        if not self._calls:
            return compiled

        def run(*args: Any) -> Any:
            if self._gpu.recorder.is_on:
                with self._gpu.recorder.paused(), torch.no_grad():
                    values = _Evaluation(self._gpu, self._model, args)
                    self._forward = [_share(values, node) for node in self._calls]
                self._backward = list(self._forward)
            return compiled(*args)

        return run

    def take(self, *, is_backward: bool) -> float | None:
        """The share of blocks of the next kernel of attention."""
        shares = self._backward if is_backward else self._forward
        return shares.pop(-1 if is_backward else 0) if shares else None


def _share(values: _Evaluation, node: fx.Node) -> float | None:
    mask: Any = node.args[_MASK]
    try:
        counts = [values.of(mask[place]) for place in _COUNTS if mask[place] is not None]
    except _UnknownError:
        return None
    columns = mask[_INDICES].meta["example_value"].shape[-1]
    return float(sum(int(one.sum()) for one in counts) / (counts[0].numel() * columns))


class _Evaluation:
    """Values of the nodes of *model*, as far as the *args* of a call tell."""

    def __init__(self, gpu: VirtualGpu, model: fx.GraphModule, args: Sequence[Any]) -> None:
        self._gpu, self._model = gpu, model
        inputs = (node for node in model.graph.nodes if node.op == "placeholder")
        self._given = dict(zip(inputs, args, strict=False))
        self._known: dict[fx.Node, Any] = {}

    def of(self, value: Any) -> Any:
        """*value*, or that of the node it is."""
        if not isinstance(value, fx.Node):
            return value
        # Graphs are deep: nodes that are needed are evaluated in order, not by recursion.
        needed, pending = {value}, [value]
        while pending:
            for node in pending.pop().all_input_nodes:
                if node not in needed and node not in self._known:
                    needed.add(node)
                    pending.append(node)
        for node in self._model.graph.nodes:
            if node in needed and node not in self._known:
                self._known[node] = self._evaluate(node)
        return self._known[value]

    def _evaluate(self, node: fx.Node) -> Any:
        example = node.meta.get("example_value")
        if isinstance(example, Tensor) and (
            example.is_floating_point() or example.numel() > _MOST_ELEMENTS
        ):
            raise _UnknownError
        if node.op == "placeholder":
            return self._host_value(self._given.get(node))
        if node.op == "get_attr":
            return self._host_value(getattr(self._model, str(node.target), None))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: self._known[one])
        args, kwargs = fx.node.map_aggregate((args, kwargs), _on_host)
        try:
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            if callable(node.target):
                return node.target(*args, **kwargs)
        except (RuntimeError, TypeError) as fault:
            raise _UnknownError from fault
        raise _UnknownError

    def _host_value(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_cuda:
            return value
        known = self._gpu.values.known(value)
        if known is None:
            raise _UnknownError
        return known


def _on_host(value: Any) -> Any:
    """Devices as the host; everything else as it is."""
    if isinstance(value, torch.device):
        return _HOST
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value
