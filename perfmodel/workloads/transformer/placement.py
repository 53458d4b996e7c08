"""Layout: the numbers of a parallel layout, and which ranks form which group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

_ENDS = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor, pipeline, context and data parallelism, and the micro-batches of every rank.

    Ranks that share a sequence (*cp*) hold the same weights, so gradients are reduced over them
    as over data-parallel ones: *data* positions count both, those of a sequence side by side.
    Experts are spread over the ranks of a stage on their own: *etp* side by side share the
    products of an expert, *ep* such groups divide the experts among themselves.
    *interleaving* is how many separate runs of layers a pipeline stage holds.
    The ranks that divide experts stand on *expert_hosts* hosts.
    *shard* is how many data-parallel ranks divide state, all of them if left out. *lengths* are
    the layers of each run, as nearly equal as possible if left out.
    """

    tp: int
    pp: int
    dp: int
    micro_batch: int
    micro_batches: int
    is_sequence_parallel: bool = False
    interleaving: int = 1
    shard: int | None = None
    lengths: tuple[int, ...] | None = None
    cp: int = 1
    ep: int = 1
    etp: int = 1
    expert_hosts: int = 1

    @property
    def rank_count(self) -> int:
        """Ranks of the job."""
        return self.pp * self.ranks_of_stage

    @property
    def weight_copies(self) -> int:
        """Ranks of a stage with the same weights outside experts: data times context parallel."""
        return self.dp * self.cp

    @property
    def ranks_of_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.weight_copies

    @property
    def expert_copies(self) -> int:
        """Ranks of a stage with the same experts."""
        return self.ranks_of_stage // (self.ep * self.etp)

    @property
    def shard_ranks(self) -> int:
        """Data-parallel ranks that divide state among themselves."""
        return self.shard or self.weight_copies

    @property
    def replicas(self) -> int:
        """Groups of ranks with a whole state each."""
        return self.weight_copies // self.shard_ranks

    def with_micro_batch(self, micro_batch: int) -> Layout:
        """The same layout with larger or smaller micro-batches."""
        sequences = self.micro_batch * self.micro_batches
        return replace(self, micro_batch=micro_batch, micro_batches=sequences // micro_batch)

    def layer_runs(self, layers: int, *, stage: int) -> tuple[range, ...]:
        """The runs of layers that *stage* holds, of a model of *layers* layers."""
        lengths = self.lengths or split_layers(layers, self.pp * self.interleaving)
        ranges = [range(*ends) for ends in pairwise((0, *accumulate(lengths)))]
        return tuple(ranges[run * self.pp + stage] for run in range(self.interleaving))

    def layer_count(self, layers: int, *, stage: int) -> int:
        """Layers that *stage* holds."""
        return sum(len(run) for run in self.layer_runs(layers, stage=stage))

    def rank(self, *, tensor: int, data: int, stage: int) -> int:
        """The rank at a position."""
        return tensor + self.tp * (data + self.weight_copies * stage)

    def tensor_group(self, *, data: int, stage: int) -> range:
        """Ranks that share the products of a layer."""
        return range(
            self.rank(tensor=0, data=data, stage=stage),
            self.rank(tensor=0, data=data, stage=stage) + self.tp,
        )

    def data_group(self, *, tensor: int, stage: int, replica: int = 0) -> range:
        """Ranks that hold the same weights or divide them; *replica* counts such groups."""
        ranks = self.shard_ranks
        first = self.rank(tensor=tensor, data=replica * ranks, stage=stage)
        return range(first, first + self.tp * ranks, self.tp)

    def replica_group(self, *, tensor: int, stage: int, share: int) -> range:
        """Ranks that hold the same *share* of the state, one of every replica."""
        first = self.rank(tensor=tensor, data=share, stage=stage)
        step = self.tp * self.shard_ranks
        return range(first, first + step * self.replicas, step)

    def stage_ranks(self, *, tensor: int, data: int) -> range:
        """Ranks that a micro-batch passes through, first stage first."""
        first = self.rank(tensor=tensor, data=data, stage=0)
        return range(first, self.rank_count, self.ranks_of_stage)

    def context_group(self, *, tensor: int, replica: int, stage: int) -> range:
        """Ranks that share the sequences of one data-parallel *replica*, first tokens first."""
        first = self.rank(tensor=tensor, data=replica * self.cp, stage=stage)
        return range(first, first + self.tp * self.cp, self.tp)

    def iter_expert_tensor_groups(self, stage: int) -> Iterator[range]:
        """Ranks that share the products of the same experts."""
        first = stage * self.ranks_of_stage
        for start in range(first, first + self.ranks_of_stage, self.etp):
            yield range(start, start + self.etp)

    def iter_expert_groups(self, stage: int) -> Iterator[range]:
        """Ranks that exchange tokens, because they divide the experts among themselves."""
        first, block = stage * self.ranks_of_stage, self.ep * self.etp
        for start in range(first, first + self.ranks_of_stage, block):
            for place in range(self.etp):
                yield range(start + place, start + block, self.etp)

    def iter_expert_copies(self, stage: int) -> Iterator[range]:
        """Ranks that hold the same experts and reduce their gradients."""
        first, block = stage * self.ranks_of_stage, self.ep * self.etp
        for place in range(block):
            yield range(first + place, first + self.ranks_of_stage, block)


@lru_cache(maxsize=1024)
def split_layers(layers: int, runs: int) -> tuple[int, ...]:
    """Layers of each of *runs* parts, in order.

    Equal if that divides; else with embedding and head counted as a layer each,
    if that divides; else the middle parts have a layer more than the others,
    because the ends have more to do.
    """
    if layers % runs and (layers + _ENDS) % runs == 0 and runs > 1:
        whole = (layers + _ENDS) // runs
        return (whole - 1, *[whole] * (runs - _ENDS), whole - 1)
    whole, rest = divmod(layers, runs)
    first = min(1, runs - rest)
    return tuple(whole + (first <= run < first + rest) for run in range(runs))


def deal_by_cost(layers: int, runs: int, *, layer_cost: int, head_cost: int) -> tuple[int, ...]:
    """Layers of each of *runs* parts if a part takes blocks until it has more than its share.

    Embedding, last norm, and two blocks of the loss cost nothing but are blocks.
    A part that got no block at all has -1 layers.
    """
    costs = [0, *[layer_cost] * layers, 0, head_cost, 0, 0]
    total, so_far, part = sum(costs), 0, 0
    part_of: list[int] = []
    for cost in costs:
        part_of.append(part)
        so_far += cost
        if so_far * runs > total * (part + 1) and part < runs - 1:
            part += 1
    counts = Counter(part_of[1 : layers + 1])
    used = set(part_of)
    return tuple(counts[number] if number in used else -1 for number in range(runs))
