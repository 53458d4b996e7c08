"""The table of transformations: the word that people type, and what it stands for."""

from __future__ import annotations

from typing import Any

from perfmodel.whatif.buckets import ChangeBuckets
from perfmodel.whatif.cuda_graphs import CudaGraphs
from perfmodel.whatif.durations import HostOverhead, ReplaceDType, Scale, ScaleBatch, SetDuration
from perfmodel.whatif.fusion import Fuse, JoinOptimizer
from perfmodel.whatif.gaps import SetGap
from perfmodel.whatif.ordering import Overlap, Serialise
from perfmodel.whatif.prefetch import PrefetchData
from perfmodel.whatif.recompute import Recompute
from perfmodel.whatif.removal import DeleteLayers, Remove, RemoveStalls, WithoutRecompute
from perfmodel.whatif.scaling_out import ChangeMachine, ChangeRanks
from perfmodel.whatif.straggler import RemoveStraggler
from perfmodel.whatif.traffic import Compress, Quantise

TRANSFORMATIONS: dict[str, type[Any]] = {
    "scale": Scale,
    "set": SetDuration,
    "remove": Remove,
    "delete_layers": DeleteLayers,
    "fuse": Fuse,
    "optimizer": JoinOptimizer,
    "dtype": ReplaceDType,
    "batch": ScaleBatch,
    "recompute": Recompute,
    "no_recompute": WithoutRecompute,
    "host_overhead": HostOverhead,
    "cuda_graphs": CudaGraphs,
    "gap": SetGap,
    "no_stalls": RemoveStalls,
    "no_straggler": RemoveStraggler,
    "prefetch": PrefetchData,
    "bucket": ChangeBuckets,
    "overlap": Overlap,
    "serialise": Serialise,
    "compress": Compress,
    "quantise": Quantise,
    "machine": ChangeMachine,
    "ranks": ChangeRanks,
}
"""Every transformation by its word. Each follows the protocol `Transformation`."""
