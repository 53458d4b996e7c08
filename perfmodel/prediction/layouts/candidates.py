"""Candidates: the layouts that a Transformer could run in on a number of ranks.

Fields that the user set with `--set` are fixed; all others are searched.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.capabilities import Overlap
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE, load_schedules
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.transformer.layout_choice import ChosenLayout, choose_layout
from perfmodel.workloads.transformer.run import unfuses_attention
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Recompute, StateSharding
from topologies import Cluster

MOST_STAGES = 64
MOST_SEQUENCES = 32
"""The largest micro-batch tried: GEMMs gain nothing beyond it."""
RUNS = (1, 2, 4)
RECOMPUTED = (Recompute.NONE, Recompute.ATTENTION, Recompute.FULL)
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
    "dispatcher": "parallel.dispatcher",
    "expert_overlap": "parallel.expert_overlap",
    "schedule": "parallel.schedule",
}
"""The searched parameters and their workload fields."""


@dataclass(frozen=True)
class Candidate:
    """A layout in workload fields, completed for the number of ranks."""

    spec: TransformerSpec
    chosen: ChosenLayout
    stack: SoftwareStack
    is_own: bool = False
    """Whether it is the one that the workload states, or leaves to the number of ranks."""

    @property
    def overrides(self) -> dict[str, int | str | bool]:
        """The fields to set to get this layout again."""
        parallel, layout = self.spec.parallel, self.chosen.layout
        fields = {
            "parallel.tp": layout.tp,
            "parallel.pp": layout.pp,
            "parallel.cp": layout.cp if layout.cp > 1 else None,
            "parallel.ep": layout.ep if self.spec.model.has_experts else None,
            "parallel.micro_batch": layout.micro_batch,
            "parallel.sharding": parallel.sharding.value,
            "parallel.interleaving": parallel.interleaving,
            "parallel.schedule": parallel.schedule
            if parallel.schedule != DEFAULT_SCHEDULE
            else None,
            "parallel.sequence_parallel": layout.is_sequence_parallel if layout.tp > 1 else None,
            "parallel.dispatcher": parallel.dispatcher.value if parallel.dispatcher else None,
            "parallel.expert_overlap": parallel.expert_overlap or None,
            "training.recompute": self.spec.training.recompute.value,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def is_like(self, other: Candidate) -> bool:
        """Whether *other* is the same layout, however it was stated."""
        return self.chosen.layout == other.chosen.layout and self.overrides == other.overrides

    @property
    def peak_bytes(self) -> int:
        """Memory of the fullest rank."""
        return self.chosen.peak_bytes

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch."""
        return self.chosen.layout.micro_batch

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
    """Every layout of *spec* on *cluster*, its own one first; fields in *stated* keep their values.

    The own one is what `predict` would take, whatever its sizes are.
    """
    options = LayoutOptions(spec, cluster, stack, stated)
    ranks = cluster.rank_count
    own = options.choose(spec, is_own=True)
    if own is not None:
        yield own
    for tp in options.tensor_sizes():
        for pp in options.stage_counts(ranks // tp):
            for groups in options.iter_groups(ranks // (tp * pp), tp):
                for changes in options.iter_changes({"tp": tp, "pp": pp, "dp": None, **groups}):
                    found = options.complete(changes)
                    is_own = own is not None and found is not None and found.is_like(own)
                    if found is not None and not is_own:
                        yield found


class LayoutOptions:
    """The values that are tried for each field of a layout; those *stated* keep theirs."""

    def __init__(
        self,
        spec: TransformerSpec,
        cluster: Cluster,
        stack: SoftwareStack,
        stated: Collection[str] = (),
    ) -> None:
        self._spec, self._cluster, self._stack = spec, cluster, stack
        self._fixed = {word for word, field in FIELDS.items() if field in stated}

    def _stated(self, word: str) -> int | None:
        """The size of a group or micro-batch, where the user set it."""
        size: int | None = getattr(self._spec.parallel, word) if word in self._fixed else None
        return size

    def tensor_sizes(self) -> list[int]:
        """Ranks of a tensor group: they divide ranks and heads, on two hosts at most."""
        if stated := self._stated("tp"):
            return [stated]
        ranks, heads = self._cluster.rank_count, self._spec.model.heads
        most = min(self._cluster.ranks_per_host * 2, ranks, heads)
        return [tp for tp in _powers(most) if ranks % tp == 0 and heads % tp == 0]

    def stage_counts(self, rest: int) -> list[int]:
        """Numbers of stages that divide the *rest* of the ranks, and the layers or nearly so."""
        if stated := self._stated("pp"):
            return [stated] if rest % stated == 0 else []
        layers = self._spec.model.layers
        return [
            pp
            for pp in range(1, min(rest, layers, MOST_STAGES) + 1)
            if rest % pp == 0
            # Embedding and head are counted as a layer each or not at all.
            and (
                layers % pp == 0
                or (layers + 2) % pp == 0
                or -(-layers // pp) * pp <= MOST_UNEVEN * layers
            )
        ]

    def iter_groups(self, rest: int, tp: int = 1) -> Iterator[dict[str, int]]:
        """Context and expert parallelism; only long sequences gain from being split.

        Experts are divided over all ranks of a stage, *rest* groups of *tp*.
        """
        spec, per_host = self._spec, self._cluster.ranks_per_host
        shares, divisions = [spec.parallel.cp], [spec.parallel.ep]
        if "cp" not in self._fixed and not unfuses_attention(spec, self._stack):
            longest = min(spec.sequence_length // SHORTEST_SHARE, rest, per_host * 2)
            shares = _powers(max(longest, 1))
        if spec.model.has_experts and "ep" not in self._fixed:
            most = min(rest * tp, spec.model.experts, per_host * MOST_EXPERT_HOSTS)
            divisions = [ep for ep in _powers(most) if spec.model.experts % ep == 0]
        for cp, ep in product(shares, divisions):
            if rest % cp == 0:
                yield {"cp": cp, "ep": ep}

    def iter_changes(self, split: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """*split* with micro-batches, and the fields that do not change the groups of ranks."""
        batch, copies = self._spec.batch, self._cluster.rank_count
        copies //= split["tp"] * split["pp"] * split["cp"]
        if batch % copies == 0:
            settings = list(self._iter_settings(split, copies * split["cp"]))
            for micro_batch in self.micro_batches(batch // copies):
                for changes in settings:
                    yield {**split, "micro_batch": micro_batch, **changes}

    def micro_batches(self, sequences: int) -> list[int]:
        """Sequences of a micro-batch; they divide those of a rank."""
        if stated := self._stated("micro_batch"):
            return [stated]
        most = min(sequences, MOST_SEQUENCES)
        return [size for size in range(1, most + 1) if sequences % size == 0]

    def _iter_settings(self, split: dict[str, Any], dp: int) -> Iterator[dict[str, Any]]:
        """Settings that most jobs choose from, and the workload's own."""
        parallel, pp = self._spec.parallel, split["pp"]
        own = self._spec.training.recompute
        shardings = [StateSharding.NONE]
        if dp > 1:
            shardings = [StateSharding.ZERO1] + ([StateSharding.ZERO3] if pp == 1 else [])
            if pp == 1 or not parallel.sharding.divides_weights:
                shardings = list(dict.fromkeys((*shardings, parallel.sharding)))
        is_split = "sequence_parallel" not in self._fixed and split["tp"] > 1
        tried: dict[str, Sequence[object]] = {
            "sharding": shardings,
            "recompute": list(dict.fromkeys((*RECOMPUTED, own))),
            "interleaving": RUNS if pp > 1 else (1,),
            "sequence_parallel": (True, False) if is_split else (parallel.sequence_parallel,),
            **self._ways(split),
        }
        for word in self._fixed & set(tried):
            tried[word] = [own if word == "recompute" else getattr(parallel, word)]
        for values in product(*tried.values()):
            yield dict(zip(tried, values, strict=True))

    def _ways(self, split: dict[str, Any]) -> dict[str, Sequence[object]]:
        """How tokens reach experts and stages take micro-batches, where the stack has several."""
        stack, ways = self._stack, dict[str, Sequence[object]]()
        if split["ep"] > 1:
            ways["dispatcher"] = stack.dispatchers
            if Overlap.EXPERT_EXCHANGE in stack.overlaps:
                ways["expert_overlap"] = (False, True)
        if split["pp"] > 1:
            ways["schedule"] = stack.schedules
        return ways

    def complete(self, changes: dict[str, Any]) -> Candidate | None:
        """The layout with *changes*; None where layers or memory do not allow it."""
        spec, runs = self._spec, changes["interleaving"]
        if runs > 1 and spec.model.layers % (changes["pp"] * runs):
            return None
        schedule = changes.get("schedule", DEFAULT_SCHEDULE)
        if runs > 1 and not load_schedules()[schedule].interleaves:
            return None
        parallel = {key: value for key, value in changes.items() if key != "recompute"}
        return self.choose(
            spec.model_copy(
                update={
                    "parallel": spec.parallel.model_copy(update=parallel),
                    "training": spec.training.model_copy(
                        update={"recompute": changes["recompute"]}
                    ),
                }
            )
        )

    def choose(self, whole: TransformerSpec, *, is_own: bool = False) -> Candidate | None:
        """The layout that *whole* states, completed; None where there is none."""
        cluster = self._cluster
        try:
            chosen = choose_layout(
                whole,
                rank_count=cluster.rank_count,
                ranks_per_host=cluster.ranks_per_host,
                memory_bytes=cluster.device.memory_bytes,
                stack=self._stack,
            )
        except WorkloadError:
            return None
        layout = chosen.layout
        split = {"tp": layout.tp, "pp": layout.pp, "micro_batch": layout.micro_batch}
        parallel = whole.parallel.model_copy(update=split)
        completed = whole.model_copy(update={"parallel": parallel})
        return Candidate(completed, chosen, self._stack, is_own)


def _powers(most: int) -> list[int]:
    """Powers of two up to *most*."""
    return [1 << exponent for exponent in range(most.bit_length())]
