"""Workers in this process: all blocks of a replay, worked off in any order."""

from __future__ import annotations

from perfmodel.engine.layout import max_distance
from perfmodel.engine.replay import kept_of_reach
from perfmodel.execution.parts import divide_job, take_durations, take_part
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.rounds import Message, replay_blocks


class LocalWorkers:
    """All blocks in this process; orders are worked off in an order that *source* draws.

    By chance a block is lost and made again from its log. Of a *stored* job each reads its part.
    """

    def __init__(self, job, durations, *, blocks, iterations, source=None, stored=None):
        kept = kept_of_reach(max_distance(job), iterations)
        self._make = lambda ranks: RankBlock(
            take_part(job, ranks) if stored is None else stored,
            take_durations(job, durations, ranks) if stored is None else durations,
            Assignment(ranks, iterations, kept),
        )
        self._ranks = blocks
        self._source = source
        self.rank_blocks = [self._make(ranks) for ranks in blocks]
        self.logs = [[] for _ in blocks]
        self.heard = [0] * len(blocks)
        self.rounds = 0

    def tell(self, orders):
        self.rounds += any(len(news) for told in orders.values() for news in told)
        for block, told in orders.items():
            for news in told:
                self.logs[block].append(Message(len(self.logs[block]), news).to_bytes())

    def hear(self):
        waiting = [block for block, log in enumerate(self.logs) if self.heard[block] < len(log)]
        block = self._source.choice(waiting) if self._source else waiting[0]
        if self._source and self._source.random() < 0.1:
            self.rank_blocks[block] = self._make(self._ranks[block])
            self.rank_blocks[block].catch_up(self.logs[block][: self.heard[block]])
        message = self.logs[block][self.heard[block]]
        report = self.rank_blocks[block].advance(message)
        assert self.rank_blocks[block].advance(message) == report
        self.heard[block] += 1
        return [(block, Message.from_bytes(report))]

    def ask(self, block, method, *words):
        return getattr(self.rank_blocks[block], method)(*words)

    def ask_all(self, method, *words):
        return self.ask_each(method, [words] * len(self.rank_blocks))

    def ask_each(self, method, words):
        return [self.ask(block, method, *of_block) for block, of_block in enumerate(words)]


def replay_in_blocks(job, durations, *, iterations, block_count, source=None, stored=None):
    division = divide_job(job, block_count=block_count)
    workers = LocalWorkers(
        job, durations, blocks=division.blocks, iterations=iterations, source=source, stored=stored
    )
    kept = range(iterations - kept_of_reach(max_distance(job), iterations), iterations)
    found = replay_blocks(workers, job, division, kept, vector_count=durations.vector_count)
    return found, workers
