"""flex_attention: how many blocks its mask leaves out.

A mask is evaluated on the host, at some points of every block, with the values known there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as masks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from perfmodel.extensions.emulation.driver.descriptions import Args, describe_tensor
from perfmodel.extensions.emulation.driver.gpu import Gpu

_POINTS = 8
"""Rows and columns of a block at which a mask is evaluated, its edges among them."""
_MOST_AT_ONCE = 1 << 22
"""Points that are evaluated together."""
_MOST_POINTS, _FEWEST_ROWS = 1 << 24, 8
"""Points of a mask of compiled code that are evaluated, and rows of blocks of each head."""
_UNKNOWN = "blocks that a mask leaves out"


def share_of_blocks(gpu: Gpu, counts: Sequence[Tensor], indices: Tensor) -> float | None:
    """The share of blocks that *counts* keep of as many as *indices* has columns; None: unknown."""
    known = [gpu.values.known(one) for one in counts]
    if any(one is None for one in known):
        return None
    kept = sum(int(one.sum()) for one in known if one is not None)
    return kept / (counts[0].numel() * indices.shape[-1])


def count_pairs_of_blocks(gpu: Gpu, pairs: int, share: float | None) -> int:
    """The *share* of all *pairs* that is computed; all of them if it is unknown."""
    if share is None:
        gpu.recorder.count_placeholder(_UNKNOWN)
        return pairs
    return max(round(pairs * share), 1)


class _KnownValues(TorchDispatchMode):
    """Runs operators on the host with the known values of device tensors."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        del types
        args, kwargs = tree_map_only(Tensor, self._host_tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _host_tensor(self, tensor: Tensor) -> Tensor:
        known = self._gpu.values.known(tensor) if tensor.is_cuda else tensor
        if known is None:
            raise LookupError
        return known


def install_masks(gpu: Gpu) -> None:
    """Evaluate masks of blocks with the values that are known on the host."""
    original = masks.create_block_mask

    def create_block_mask(
        mask_mod: Any, B: Any, H: Any, Q_LEN: int, KV_LEN: int, device: Any = None,  # noqa: N803  torch's names
        BLOCK_SIZE: Any = 128, _compile: bool = False, **more: Any,  # noqa: N803  torch's name
    ) -> Any:  # fmt: skip
        place = torch.device("cuda" if device is None else device)
        if place.type != "cuda" or torch.compiler.is_compiling():
            return original(mask_mod, B, H, Q_LEN, KV_LEN, place, BLOCK_SIZE, _compile, **more)
        sides = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
        heads, lengths = (B or 1, H or 1), (Q_LEN, KV_LEN)
        with gpu.recorder.paused(), torch.no_grad():
            blocks = _blocks(gpu, mask_mod, heads, lengths, sides)
            made = masks._create_sparse_block_from_block_mask(blocks, mask_mod, lengths, *sides)
            made = made.to(place)
        _record_mask(gpu, made, () if _compile else (*heads, *lengths))
        return made

    masks.create_block_mask = create_block_mask


def _record_mask(gpu: Gpu, made: Any, dense: tuple[int, ...]) -> None:
    """One kernel that writes the blocks; without a compiler it reads a mask of all pairs."""
    if not gpu.recorder.is_on:
        return
    size_bytes = 1
    for length in dense:
        size_bytes *= length
    words = {
        "operator": "create_block_mask",
        "inputs": [["mask", list(dense), "int8", size_bytes]] if dense else [],
        "outputs": [describe_tensor("", one) for one in made.as_tuple() if torch.is_tensor(one)],
        "written": [],
        "arguments": {},
    }
    gpu.recorder.launch(gpu.recorder.intern_kind(words), made.kv_indices.get_device(), 2)


def _blocks(
    gpu: Gpu,
    mask_mod: Any,
    heads: tuple[int, int],
    lengths: tuple[int, int],
    sides: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Blocks with some pairs, and with all, by batch and head."""
    queries, keys = (_points(*pair) for pair in zip(lengths, sides, strict=True))
    rows, columns = len(queries) // _POINTS, len(keys) // _POINTS
    some = torch.zeros(*heads, rows, columns, dtype=torch.bool)
    every = some.clone()
    step = max(_MOST_AT_ONCE // (_POINTS * len(keys)), 1)
    try:
        with _KnownValues(gpu):
            for batch, head in torch.cartesian_prod(*map(torch.arange, heads)):
                for first in range(0, rows, step):
                    chosen = queries[first * _POINTS : (first + step) * _POINTS]
                    tiles = _tiles(mask_mod, batch, head, chosen, keys)
                    place = (batch, head, slice(first, first + step))
                    some[place], every[place] = tiles.any(-1), tiles.all(-1)
    except LookupError:
        gpu.recorder.count_placeholder(_UNKNOWN)
        some[:] = True
    return some & ~every, every


def kept_share(
    mask_mod: Any, heads: Sequence[int], lengths: Sequence[int], sides: Sequence[int]
) -> float:
    """The share of blocks with some pairs; *mask_mod* and what it reads are on the host.

    Where there are many rows of blocks, batches and heads, some are evaluated, evenly spread.
    """
    queries, keys = (_points(*pair) for pair in zip(lengths, sides, strict=True))
    most = max(_MOST_POINTS // (_POINTS * len(keys)), 1)
    masks_of_heads = _spread(torch.cartesian_prod(*map(torch.arange, heads)), most)
    rows = _spread(queries.view(-1, _POINTS), max(most // len(masks_of_heads), _FEWEST_ROWS))
    step = max(_MOST_AT_ONCE // (_POINTS * len(keys)), 1)
    shares = [
        _tiles(mask_mod, batch, head, chosen.flatten(), keys).any(-1).flatten()
        for batch, head in masks_of_heads
        for chosen in rows.split(step)
    ]
    return float(torch.cat(shares).double().mean())


def _spread(rows: Tensor, most: int) -> Tensor:
    """At most so many of *rows*, at even distances."""
    count = min(len(rows), most)
    return rows[torch.linspace(0, len(rows) - 1, count).round().long()]


def _tiles(mask_mod: Any, batch: Tensor, head: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """What *mask_mod* says at the points of every block, by row and column of blocks."""
    seen = mask_mod(batch, head, queries[:, None], keys[None]).expand(len(queries), len(keys))
    columns = len(keys) // _POINTS
    return seen.reshape(-1, _POINTS, columns, _POINTS).transpose(1, 2).flatten(2)


def _points(length: int, side: int) -> Tensor:
    """Where masks are evaluated along one side: some positions of every block."""
    inside = torch.linspace(0, side - 1, _POINTS).round().long()
    starts = torch.arange(0, length, side)
    return (starts[:, None] + inside).flatten().clamp(max=length - 1)
