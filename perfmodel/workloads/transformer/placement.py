"""Layout: the numbers of a parallel layout, and which ranks form which group."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor, pipeline and data parallelism, and the micro-batches of every rank.

    *interleaving* is how many separate runs of layers a pipeline stage holds.
    """

    tp: int
    pp: int
    dp: int
    micro_batch: int
    micro_batches: int
    is_sequence_parallel: bool = False
    interleaving: int = 1

    @property
    def rank_count(self) -> int:
        """Ranks of the job."""
        return self.tp * self.pp * self.dp

    def with_micro_batch(self, micro_batch: int) -> Layout:
        """The same layout with larger or smaller micro-batches."""
        sequences = self.micro_batch * self.micro_batches
        return replace(self, micro_batch=micro_batch, micro_batches=sequences // micro_batch)

    def layer_runs(self, layers: int, *, stage: int) -> tuple[range, ...]:
        """The runs of layers that *stage* holds, of a model of *layers* layers."""
        length = layers // (self.pp * self.interleaving)
        starts = ((run * self.pp + stage) * length for run in range(self.interleaving))
        return tuple(range(start, start + length) for start in starts)

    def rank(self, *, tensor: int, data: int, stage: int) -> int:
        """The rank at a position."""
        return tensor + self.tp * (data + self.dp * stage)

    def tensor_group(self, *, data: int, stage: int) -> range:
        """Ranks that share the products of a layer."""
        return range(
            self.rank(tensor=0, data=data, stage=stage),
            self.rank(tensor=0, data=data, stage=stage) + self.tp,
        )

    def data_group(self, *, tensor: int, stage: int) -> range:
        """Ranks that hold the same weights."""
        first = self.rank(tensor=tensor, data=0, stage=stage)
        return range(first, first + self.tp * self.dp, self.tp)

    def stage_ranks(self, *, tensor: int, data: int) -> range:
        """Ranks that a micro-batch passes through, first stage first."""
        first = self.rank(tensor=tensor, data=data, stage=0)
        return range(first, self.rank_count, self.tp * self.dp)
