"""Which ranks make a block."""

from __future__ import annotations

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


def test_ranks_with_equal_work_are_dealt_evenly():
    job, _ = alternating_job(ranks=12, members=3)

    blocks = deal_ranks(job, block_count=4)

    assert blocks == (range(3), range(3, 6), range(6, 9), range(9, 12))


def test_a_cut_counts_the_rendezvous_that_it_crosses():
    job, _ = paired_job(pairs=2, tasks=5)

    # Cuts before ranks 0 to 3 and after the last: only those inside a pair cross its 5.
    assert crossed_rendezvous(job).tolist() == [0, 5, 0, 5, 0]


def test_a_cut_moves_a_little_to_keep_a_group_together():
    job, _ = paired_job(pairs=45)

    # 90 ranks in two blocks: 45 each would part the pair (44, 45); one rank off is
    # 1 / 45 = 2.2 % of a block, less than the 5 % that are allowed.
    blocks = deal_ranks(job, block_count=2)

    assert blocks == (range(44), range(44, 90))


def test_a_cut_does_not_move_far_to_keep_a_group_together():
    job, _ = paired_job(pairs=5)

    # 10 ranks: one rank off would be 1 / 5 = 20 % of a block.
    assert deal_ranks(job, block_count=2) == (range(5), range(5, 10))
