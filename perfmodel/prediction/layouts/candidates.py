"""Candidates: the layouts that a Transformer could run in on a number of ranks.

Fields that the user set with `--set` are fixed; all others are searched.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.capabilities import Overlap
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE, load_schedules
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.transformer.axes import (
    AXES,
    OF_MODEL,
    Axis,
    Divided,
    Room,
    group_size,
)
from perfmodel.workloads.transformer.layout_choice import ChosenLayout, choose_layout
from perfmodel.workloads.transformer.run import unfuses_attention
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Recompute, StateSharding
from topologies import Cluster

MOST_SEQUENCES = 32
"""The largest micro-batch tried: GEMMs gain nothing beyond it."""
RUNS = (1, 2, 4)
RECOMPUTED = (Recompute.NONE, Recompute.ATTENTION, Recompute.FULL)
_WORK = {Recompute.NONE: 3.0, Recompute.ATTENTION: 3.2, Recompute.OPS: 3.5, Recompute.FULL: 4.0}
"""Forward, backward and recomputation, in forward passes."""
_GROUP_SHARE, _GATHER_SHARE = 0.1, 0.2
_SETTINGS = {
    "micro_batch": "parallel.micro_batch",
    "sharding": "parallel.sharding",
    "interleaving": "parallel.interleaving",
    "sequence_parallel": "parallel.sequence_parallel",
    "recompute": "training.recompute",
    "dispatcher": "parallel.dispatcher",
    "expert_overlap": "parallel.expert_overlap",
    "schedule": "parallel.schedule",
}


def searched_axes() -> list[Axis]:
    """The degrees that a search tries sizes of."""
    return [axis for axis in AXES.values() if axis.values is not None]


def searched_fields() -> dict[str, str]:
    """The searched parameters and their workload fields."""
    return {axis.name: f"parallel.{axis.name}" for axis in searched_axes()} | _SETTINGS


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
            **{
                f"parallel.{axis.name}": size
                for axis in searched_axes()
                if axis.is_set(size := getattr(layout, axis.name), self.spec.model)
            },
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
        groups = sum(
            math.log2(getattr(layout, axis.name))
            for axis in searched_axes()
            if axis.divided is not Divided.LAYERS
        )
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
    own = options.choose(spec)
    if own is not None:
        yield own
    for split in options.iter_splits():
        for changes in options.iter_changes({**split, "dp": None}):
            found = options.complete(changes)
            is_own = own is not None and found is not None and found.is_like(own)
            if found is not None and not is_own:
                yield found


def list_space(candidates: Iterable[Candidate]) -> dict[str, list[int | str | bool]]:
    """The values of every field in which *candidates* may differ."""
    found: dict[str, dict[int | str | bool, None]] = {
        field: {} for field in searched_fields().values()
    }
    for one in candidates:
        for field, value in one.overrides.items():
            found[field][value] = None
    return {field: sorted(values) for field, values in found.items() if values}


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
        self._fixed = {word for word, field in searched_fields().items() if field in stated}
        self._chosen: dict[tuple[object, ...], ChosenLayout | None] = {}

    def iter_splits(self) -> Iterator[dict[str, int]]:
        """Sizes of all degrees that are searched, each as the ones before it allow."""
        splits: list[dict[str, int]] = [{}]
        for axis in searched_axes():
            splits = [
                {**split, axis.name: size} for split in splits for size in self.sizes(axis, split)
            ]
        yield from splits

    def sizes(self, axis: Axis, split: Mapping[str, int]) -> list[int]:
        """Sizes of *axis* beside those of *split*; ranks of a model copy divide all ranks."""
        stated = self._stated(axis.name)
        if axis.divided is Divided.TOKENS and unfuses_attention(self._spec, self._stack):
            # Ranks can share a sequence only with a fused kernel.
            stated = getattr(self._spec.parallel, axis.name)
        ranks, per_host = self._cluster.rank_count, self._cluster.ranks_per_host
        room = Room(self._spec, ranks, per_host, split)
        assert axis.values is not None
        found = axis.values(room) if stated is None else [stated]
        return [size for size in found if axis.divided not in OF_MODEL or room.rest % size == 0]

    def _stated(self, word: str) -> int | None:
        """The size of a group or micro-batch, where the user set it."""
        size: int | None = getattr(self._spec.parallel, word) if word in self._fixed else None
        return size

    def iter_changes(self, split: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """*split* with micro-batches, and the fields that do not change the groups of ranks."""
        batch = self._spec.batch
        copies = self._cluster.rank_count // group_size(split.get, *OF_MODEL)
        if batch % copies == 0:
            sharers = group_size(split.get, Divided.TOKENS)
            settings = list(self._iter_settings(split, copies * sharers))
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
        if group_size(split.get, Divided.EXPERTS) > 1:
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
        training = spec.training.model_copy(update={"recompute": changes["recompute"]})
        sections = {"parallel": spec.parallel.model_copy(update=parallel), "training": training}
        # What takes tokens to experts changes neither the layout nor its memory.
        alike = tuple(value for word, value in changes.items() if word != "dispatcher")
        return self.choose(spec.model_copy(update=sections), alike)

    def choose(self, whole: TransformerSpec, alike: tuple[object, ...] = ()) -> Candidate | None:
        """The layout that *whole* states, completed; None where there is none.

        It is the same for all that are *alike*; the own layout is like no other.
        """
        if alike not in self._chosen:
            self._chosen[alike] = self._complete(whole)
        if (chosen := self._chosen[alike]) is None:
            return None
        layout = chosen.layout
        split = {"tp": layout.tp, "pp": layout.pp, "micro_batch": layout.micro_batch}
        parallel = whole.parallel.model_copy(update=split)
        completed = whole.model_copy(update={"parallel": parallel})
        return Candidate(completed, chosen, self._stack, is_own=not alike)

    def _complete(self, whole: TransformerSpec) -> ChosenLayout | None:
        cluster = self._cluster
        with suppress(WorkloadError):
            return choose_layout(
                whole,
                rank_count=cluster.rank_count,
                ranks_per_host=cluster.ranks_per_host,
                memory_bytes=cluster.device.memory_bytes,
                stack=self._stack,
            )
        return None
