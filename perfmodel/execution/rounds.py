"""Rounds: one replay over several blocks, until every block is done.

In a round every block that has news is told it, walks on as far as it can,
and says who is ready. Blocks walk to where nothing more is known, so a round
that resolves nothing while tasks are left can never be followed by one that
does: the replay is stalled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from perfmodel.engine.block import Arrivals, no_arrivals
from perfmodel.engine.layout import Int32s
from perfmodel.engine.stall import explain_stall
from perfmodel.execution.exchange import Bools, Exchange
from perfmodel.execution.messages import Report
from perfmodel.graph.job import JobGraph


class BlockCrew(Protocol):
    """Those who work on the blocks of a replay, by the number of the block."""

    @property
    def awaited(self) -> Sequence[Bools]:
        """Of every block, to which rendezvous it has a word to add."""
        ...

    def advance(self, iteration: int, news: Mapping[int, Arrivals]) -> Mapping[int, Report]:
        """Tell blocks their *news* in an *iteration*; what each of these reports."""
        ...

    def heads(self) -> Int32s:
        """The next task of every lane of all blocks, in the order of ranks."""
        ...


def run_rounds(
    job: JobGraph,
    crew: BlockCrew,
    *,
    blocks: Sequence[range],
    iterations: int,
    vector_count: int,
) -> None:
    """Bring all *iterations* of *job* to their end, or raise the error that says who waits."""
    exchange = Exchange(job, blocks=blocks, awaited=crew.awaited, vector_count=vector_count)
    for iteration in range(iterations):
        exchange.begin_iteration()
        undone = set(range(len(blocks)))
        news = {block: no_arrivals(vector_count) for block in range(len(blocks))}
        while news:
            reports = crew.advance(iteration, news)
            undone -= {block for block, report in reports.items() if report.is_done}
            resolved = exchange.take(reports[block].arrivals for block in sorted(reports))
            shares = {block: exchange.share_of(block, resolved) for block in sorted(undone)}
            news = {block: share for block, share in shares.items() if len(share)}
        if undone:
            raise explain_stall(job, crew.heads())
