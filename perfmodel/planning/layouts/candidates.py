"""Candidates: the layouts that a Transformer could run in on a number of ranks.

Fields that the user set with `--set` are fixed; all others are searched.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.transformer.layout_choice import ChosenLayout, choose_layout
from perfmodel.workloads.transformer.run import unfuses_attention
from perfmodel.workloads.transformer.spec import Recompute, StateSharding, TransformerSpec
from topologies import Cluster

MOST_STAGES = 64
MOST_SEQUENCES = 32
"""The largest micro-batch tried: GEMMs gain nothing beyond it."""
RUNS = (1, 2, 4)
SHORTEST_SHARE = 8192
"""Fewest tokens of a sequence per rank: shorter sequences are not split."""
MOST_EXPERT_HOSTS = 8
MOST_UNEVEN = 1.1
"""Longest stage over the mean, if the number of stages does not divide the layers."""
_WORK = {Recompute.NONE: 3.0, Recompute.ATTENTION: 3.2, Recompute.OPS: 3.5, Recompute.FULL: 4.0}
"""Forward, backward and recomputation, in forward passes."""
_GROUP_SHARE, _GATHER_SHARE = 0.1, 0.2
FIELDS = {
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "cp": "parallel.cp",
    "ep": "parallel.ep",
    "micro_batch": "parallel.micro_batch",
    "sharding": "parallel.sharding",
    "interleaving": "parallel.interleaving",
    "sequence_parallel": "parallel.sequence_parallel",
    "recompute": "training.recompute",
}
"""The searched parameters and their workload fields."""


@dataclass(frozen=True)
class Candidate:
    """A layout in workload fields, completed for the number of ranks."""

    spec: TransformerSpec
    chosen: ChosenLayout
    stack: SoftwareStack

    @property
    def overrides(self) -> dict[str, int | str | bool]:
        """The fields to set to get this layout again."""
        parallel, layout = self.spec.parallel, self.chosen.layout
        return {
            "parallel.tp": layout.tp,
            "parallel.pp": layout.pp,
            **({"parallel.cp": layout.cp} if layout.cp > 1 else {}),
            **({"parallel.ep": layout.ep} if self.spec.model.has_experts else {}),
            "parallel.micro_batch": layout.micro_batch,
            "parallel.sharding": parallel.sharding.value,
            "parallel.interleaving": layout.interleaving,
            **(
                {"parallel.sequence_parallel": layout.is_sequence_parallel} if layout.tp > 1 else {}
            ),
            "training.recompute": self.spec.training.recompute.value,
        }

    @property
    def peak_bytes(self) -> int:
        """Memory of the fullest rank."""
        return self.chosen.peak_bytes

    @property
    def promise(self) -> float:
        """Estimated work and idle time, in forward passes; low ones are bounded first.

        Communication counts only as a penalty on wide groups.
        """
        layout = self.chosen.layout
        work = _WORK[self.spec.training.recompute]
        longest = max(layout.layer_count(self.spec.model.layers, stage=s) for s in range(layout.pp))
        idle = (layout.pp - 1) / (layout.interleaving * layout.micro_batches)
        groups = math.log2(layout.tp) + math.log2(layout.cp) + math.log2(layout.ep)
        is_gathered = self.spec.parallel.sharding.divides_weights
        return (
            work * (1 + idle) * (longest * layout.pp / self.spec.model.layers)
            + _GROUP_SHARE * groups
            + _GATHER_SHARE * layout.micro_batches * is_gathered
        )


def iter_candidates(
    spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack, *, stated: Collection[str] = ()
) -> Iterator[Candidate]:
    """Every layout of *spec* on *cluster*; fields in *stated* keep their values."""
    ranks = cluster.rank_count
    fixed = {word for word, field in FIELDS.items() if field in stated}
    for tp in _tensor_sizes(spec, cluster, fixed):
        for pp in _stage_counts(spec, ranks // tp, fixed):
            for further in _iter_further(spec, cluster, stack, ranks // (tp * pp), fixed):
                split = {"tp": tp, "pp": pp, "dp": None, **further}
                for changes in _iter_changes(spec, split, ranks, fixed):
                    found = _complete(spec, cluster, stack, split | changes)
                    if found is not None:
                        yield found


def _iter_further(
    spec: TransformerSpec,
    cluster: Cluster,
    stack: SoftwareStack,
    rest: int,
    fixed: Collection[str],
) -> Iterator[dict[str, int]]:
    """Context and expert parallelism; only long sequences gain from being split."""
    longest = min(spec.sequence_length // SHORTEST_SHARE, rest, cluster.ranks_per_host * 2)
    shares = [spec.parallel.cp]
    if "cp" not in fixed and not unfuses_attention(spec, stack):
        shares = _powers(max(longest, 1))
    divisions = [spec.parallel.ep]
    if "ep" not in fixed and spec.model.has_experts:
        most = min(spec.model.experts, rest, cluster.ranks_per_host * MOST_EXPERT_HOSTS)
        divisions = [ep for ep in _powers(most) if spec.model.experts % ep == 0]
    for cp in shares:
        for ep in divisions:
            if rest % cp == 0:
                yield {"cp": cp, "ep": ep}


def _iter_changes(
    spec: TransformerSpec, split: dict[str, Any], ranks: int, fixed: Collection[str]
) -> Iterator[dict[str, object]]:
    """Micro-batches, and the fields that do not change the groups of ranks."""
    dp = ranks // (split["tp"] * split["pp"] * split["cp"])
    if spec.batch % dp:
        return
    for micro_batch in _micro_batches(spec, spec.batch // dp, fixed):
        for changes in _iter_rest(spec, split, dp * split["cp"], fixed):
            yield {"micro_batch": micro_batch, **changes}


def _tensor_sizes(spec: TransformerSpec, cluster: Cluster, fixed: Collection[str]) -> list[int]:
    if "tp" in fixed and spec.parallel.tp:
        return [spec.parallel.tp]
    model = spec.model
    most = min(cluster.ranks_per_host * 2, cluster.rank_count, model.heads)
    return [tp for tp in _powers(most) if cluster.rank_count % tp == 0 and model.heads % tp == 0]


def _stage_counts(spec: TransformerSpec, rest: int, fixed: Collection[str]) -> list[int]:
    if "pp" in fixed and spec.parallel.pp:
        return [spec.parallel.pp] if rest % spec.parallel.pp == 0 else []
    layers = spec.model.layers
    return [
        pp
        for pp in range(1, min(rest, layers, MOST_STAGES) + 1)
        if rest % pp == 0
        and (_divides(layers, pp) or -(-layers // pp) * pp <= MOST_UNEVEN * layers)
    ]


def _divides(layers: int, pp: int) -> bool:
    """Whether stages are equal, embedding and head counted as a layer each or not at all."""
    return layers % pp == 0 or (layers + 2) % pp == 0


def _micro_batches(spec: TransformerSpec, sequences: int, fixed: Collection[str]) -> list[int]:
    if "micro_batch" in fixed and spec.parallel.micro_batch:
        return [spec.parallel.micro_batch]
    return [size for size in _powers(min(sequences, MOST_SEQUENCES)) if sequences % size == 0]


def _iter_rest(
    spec: TransformerSpec, split: dict[str, Any], dp: int, fixed: Collection[str]
) -> Iterator[dict[str, object]]:
    pp = split["pp"]
    shardings = [StateSharding.NONE]
    if dp > 1:
        shardings = [StateSharding.ZERO1] + ([StateSharding.ZERO3] if pp == 1 else [])
    if "sharding" in fixed:
        shardings = [spec.parallel.sharding]
    recomputes: tuple[Recompute, ...] = (Recompute.NONE, Recompute.ATTENTION, Recompute.FULL)
    if "recompute" in fixed:
        recomputes = (spec.training.recompute,)
    runs = (spec.parallel.interleaving,) if "interleaving" in fixed else RUNS if pp > 1 else (1,)
    splits: tuple[bool | None, ...] = (spec.parallel.sequence_parallel,)
    if "sequence_parallel" not in fixed and split["tp"] > 1:
        splits = (True, False)
    words = ("sharding", "recompute", "interleaving", "sequence_parallel")
    for values in product(shardings, recomputes, runs, splits):
        yield dict(zip(words, values, strict=True))


def _complete(
    spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack, changes: dict[str, Any]
) -> Candidate | None:
    parallel = {key: value for key, value in changes.items() if key != "recompute"}
    runs = changes["interleaving"]
    if runs > 1 and spec.model.layers % (changes["pp"] * runs):
        return None
    whole = spec.model_copy(
        update={
            "parallel": spec.parallel.model_copy(update=parallel),
            "training": spec.training.model_copy(update={"recompute": changes["recompute"]}),
        }
    )
    try:
        chosen = choose_layout(
            whole,
            rank_count=cluster.rank_count,
            ranks_per_host=cluster.ranks_per_host,
            memory_bytes=cluster.device.memory_bytes,
            stack=stack,
        )
    except WorkloadError:
        return None
    return Candidate(whole, chosen, stack)


def _powers(most: int) -> list[int]:
    return [1 << exponent for exponent in range(max(most, 1).bit_length()) if 1 << exponent <= most]
