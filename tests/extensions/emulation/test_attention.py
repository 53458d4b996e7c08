"""Pairs of packed sequences."""

from __future__ import annotations

from perfmodel.extensions.emulation.driver.attention import count_pairs, equal_lengths


def test_packed_sequences_of_unknown_lengths_are_taken_to_be_equally_long():
    # 32 rows of two heads in three sequences; a dimension before the rows counts as rows.
    assert equal_lengths((32, 2, 64), 3).tolist() == [10, 11, 11]
    assert equal_lengths((1, 32, 2, 64), 2).tolist() == [16, 16]


def test_a_window_hides_keys_that_a_causal_query_would_see():
    # Queries of one sequence of 4 see 1, 2, 3 and 4 keys; with one key before them 1, 2, 2 and 2.
    assert count_pairs([4], [4], is_causal=True, left=-1) == 10
    assert count_pairs([4], [4], is_causal=True, left=1) == 7
    # On both sides: three of the four, or all of two.
    assert count_pairs([4, 2], [4, 2], is_causal=False, left=1) == 4 * 3 + 2 * 2
