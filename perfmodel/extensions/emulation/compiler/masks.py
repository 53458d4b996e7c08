"""flex_attention in compiled code: its kernels, and the share of blocks that its masks keep.

Compiled kernels have no values, also where eager code would know them: integers that a script
computes from its tokens. A mask of blocks is such a result, and it decides how long
flex_attention takes. So the part of the graph that leads to it is evaluated on the host, with what
is known of the region's arguments, each time the region runs. Where that is too large, or in
another region, the function of the mask, which the call has with it, is evaluated at some points of
every block. Integers that a region returns are carried to the code that takes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx
from torch._higher_order_ops.flex_attention import flex_attention
from torch._subclasses.fake_tensor import is_fake

from perfmodel.extensions.emulation.driver.descriptions import DTYPE_WORDS, is_inexact
from perfmodel.extensions.emulation.driver.flex import (
    count_pairs_of_blocks,
    kept_share,
    share_of_blocks,
)
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.values import MOST_KEPT

_MASK, _INDICES, _COUNTS, _SIDES, _FUNCTION = 4, 3, (2, 4), slice(-3, -1), -1
"""Where the mask is among the arguments of flex_attention, and what is where in it."""
_READ = -1
"""Where the tensors are that the function of the mask reads."""
_CHANGING = frozenset({"setitem", "iadd", "isub", "imul", "iand", "ior", "ixor"})
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
    """A kernel of flex_attention, recognised by the names in its source.

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
        self, gpu: Gpu, given: Mapping[str, Any], masks: RegionMasks | None
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


class FunctionShares:
    """Shares of blocks that functions of masks keep: the layers of a model have the same one."""

    def __init__(self) -> None:
        self._last: dict[Any, tuple[list[Any], float]] = {}

    def of(
        self, gpu: Gpu, function: fx.GraphModule, shape: tuple[int, ...], read: Sequence[Any]
    ) -> float:
        """The share of *function*, which reads *read*.

        *shape* is batch, heads, both lengths and both sides of a block.
        """
        key = (_words(function), shape)
        last_read, share = self._last.get(key, (None, 0.0))
        if last_read is None or not all(map(_is_same, last_read, read)):

            def mask_mod(*places: Tensor) -> Any:
                return _Evaluation(gpu, function, (*places, *read)).of(_output(function))

            share = kept_share(mask_mod, shape[:2], shape[2:4], shape[4:])
            copies = [one.clone() if isinstance(one, Tensor) else one for one in read]
            self._last[key] = (copies, share)
        return share


class RegionMasks:
    """The masks of one region, in the order of its calls of flex_attention.

    The backward pass comes to them in the opposite order. A share that is not known is None.
    *shares* is one for all regions.
    """

    def __init__(self, gpu: Gpu, model: fx.GraphModule, shares: FunctionShares) -> None:
        self._gpu, self._model, self._shares = gpu, model, shares
        self._calls = [node for node in model.graph.nodes if node.target is flex_attention]
        self._forward: list[float | None] = []
        self._backward: list[float | None] = []
        self._integers = _integer_outputs(model)

    def watch(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """*compiled*, with the masks evaluated before each run, and integers after it."""
        if not self._calls and not self._integers:
            return compiled

        def run(*args: Any) -> Any:
            if any(map(is_fake, args)):
                return compiled(*args)
            is_on = self._gpu.recorder.is_on
            with self._gpu.recorder.paused(), torch.no_grad(), torch.random.fork_rng([]):
                values = _Evaluation(self._gpu, self._model, args)
                self._forward = [self._share(values, node) for node in self._calls if is_on]
                # Before the region runs, which may change its arguments.
                integers = [(place, values.try_of(node)) for place, node in self._integers]
            self._backward = list(self._forward)
            results = compiled(*args)
            self._carry(integers, results)
            return results

        return run

    def take(self, *, is_backward: bool) -> float | None:
        """The share of blocks of the next kernel of attention."""
        shares = self._backward if is_backward else self._forward
        return shares.pop(-1 if is_backward else 0) if shares else None

    def _carry(self, integers: Sequence[tuple[int, Any]], results: Any) -> None:
        """Remember what is known of the *results* of a run, for the regions that take them."""
        outputs = dict(enumerate(results if isinstance(results, tuple | list) else (results,)))
        for place, value in integers:
            output = outputs.get(place)
            if isinstance(value, Tensor) and isinstance(output, Tensor) and not is_fake(output):
                self._gpu.values.set(output, value)

    def _share(self, values: _Evaluation, node: fx.Node) -> float | None:
        mask: Any = node.args[_MASK]
        read: Any = node.args[_READ]
        counts = [values.try_of(mask[place]) for place in _COUNTS if mask[place] is not None]
        if all(one is not None for one in counts):
            columns = values.shape(mask[_INDICES])[-1]
            return float(sum(int(one.sum()) for one in counts) / (counts[0].numel() * columns))
        try:
            function = values.of(mask[_FUNCTION])
            heads = values.shape(mask[_COUNTS[0]])[:2]
            shape = [*heads, *map(values.of, (*mask[:2], *mask[_SIDES]))]
            tensors = [values.of(one) for one in read]
            return self._shares.of(self._gpu, function, tuple(map(int, shape)), tensors)
        except _UnknownError:
            return None


def _output(model: fx.GraphModule) -> Any:
    return next(node for node in model.graph.nodes if node.op == "output").args[0]


def _integer_outputs(model: fx.GraphModule) -> list[tuple[int, fx.Node]]:
    """Outputs of *model* whose values may be carried to other regions, by their place."""
    outputs = _output(model)
    found = []
    for place, node in enumerate(outputs if isinstance(outputs, tuple | list) else (outputs,)):
        example = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if (
            isinstance(example, Tensor)
            and node.op != "placeholder"
            and not is_inexact(example)
            and example.numel() <= MOST_KEPT
        ):
            found.append((place, node))
    return found


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    return bool(first == second)


def _words(function: fx.GraphModule) -> str:
    """What *function* does, without the names of its nodes."""
    places = {node: place for place, node in enumerate(function.graph.nodes)}
    return repr([
        (node.op, node.op == "placeholder" or str(node.target),
         fx.node.map_arg((node.args, node.kwargs), lambda one: f"%{places[one]}"))
        for node in places
    ])  # fmt: skip


class _Evaluation:
    """Values of the nodes of *model*, as far as the *args* of a call determine them."""

    def __init__(self, gpu: Gpu, model: fx.GraphModule, args: Sequence[Any]) -> None:
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

    def try_of(self, value: Any) -> Any:
        """As `of`, or None if it is not known."""
        try:
            return self.of(value)
        except _UnknownError:
            return None

    def shape(self, node: fx.Node) -> Sequence[int]:
        """The sizes of the tensor that *node* is."""
        tensor = self._given.get(node, node.meta.get("example_value"))
        if not isinstance(tensor, Tensor):
            raise _UnknownError
        return tensor.shape

    def _evaluate(self, node: fx.Node) -> Any:
        example = node.meta.get("example_value")
        if isinstance(example, Tensor) and (
            example.is_floating_point() or example.numel() > _MOST_ELEMENTS
        ):
            raise _UnknownError
        if "c10d" in str(node.target) or any(_changes(user) for user in node.users):
            raise _UnknownError
        if node.op == "placeholder":
            return self._host_value(self._given.get(node))
        if node.op == "get_attr":
            return self._host_value(attrgetter(str(node.target))(self._model))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: self._known[one])
        args, kwargs = fx.node.map_aggregate((args, kwargs), _on_host)
        try:
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            if callable(node.target):
                return node.target(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError) as fault:
            raise _UnknownError from fault
        raise _UnknownError

    def _host_value(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_cuda:
            return value
        known = self._gpu.values.known(value)
        if known is None:
            raise _UnknownError
        return known


def _changes(node: fx.Node) -> bool:
    """Whether *node* writes to what it is given."""
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _CHANGING


def _on_host(value: Any) -> Any:
    """Devices as the host; everything else as it is."""
    if isinstance(value, torch.device):
        return _HOST
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value
