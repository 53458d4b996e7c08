"""Which ranks make a block."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.execution.parts import crossed_rendezvous, deal_ranks
from tests.execution.jobs import alternating_job, paired_job
from tests.strategies import jobs


@given(made=jobs(), block_count=st.integers(1, 9))
def test_every_rank_is_in_one_block_and_no_block_is_empty(made, block_count):
    job, _ = made

    blocks = deal_ranks(job, block_count=block_count)

    assert [rank for block in blocks for rank in block] == list(range(job.rank_count))
    assert len(blocks) == min(block_count, job.rank_count)
    assert all(len(block) > 0 for block in blocks)


def test_a_cut_counts_the_rendezvous_that_it_crosses():
    job, _ = paired_job(pairs=2, tasks=5)

    # Cuts before ranks 0 to 3 and after the last: only those inside a pair cross its 5.
    assert crossed_rendezvous(job).tolist() == [0, 5, 0, 5, 0]


@pytest.mark.parametrize(
    ("job", "cuts"),
    [
        (alternating_job(ranks=12, members=3), [0, 3, 6, 9, 12]),
        # 90 ranks in two blocks: 45 each would part the pair (44, 45); one rank off is
        # 1 / 45 = 2.2 % of a block, less than the 5 % that are allowed.
        (paired_job(pairs=45), [0, 44, 90]),
        # 10 ranks: one rank off would be 1 / 5 = 20 % of a block.
        (paired_job(pairs=5), [0, 5, 10]),
    ],
)
def test_ranks_are_dealt_evenly_but_for_a_little_to_keep_a_group_together(job, cuts):
    blocks = deal_ranks(job[0], block_count=len(cuts) - 1)

    assert blocks == tuple(range(*ends) for ends in pairwise(cuts))
