"""Many ranks in few words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.plan import Shard, ShardingPlan
from embeddings.plan_document import list_unrunnable
from embeddings.table import EmbeddingTable
from perfmodel.reports.text import format_ranks, name_ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "3"),
        (range(8), "0-7"),
        ([0, 8, 16, 24], "0-24 step 8"),
        ([1, 5], "1, 5"),
        ([0, 1, 2, 7], "0-2, 7"),
        ([4, 5], "4-5"),
    ],
)
def test_ranks_are_written_as_ranges(ranks, text):
    assert format_ranks(list(ranks)) == text


def test_what_is_left_out_is_counted():
    assert format_ranks([0, 2, 5, 9, 14, 20], max_pieces=2) == "0, 2, and 4 more"


def test_one_rank_is_singular():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([3, 4]) == "ranks 3-4"


def test_rows_over_some_ranks_of_a_host_are_none_of_torchrecs_plans():
    # Two hosts of two ranks. The first table is divided over the second host, as TorchRec can;
    # the second over one rank of each, the third over one host in the wrong order.
    tables = tuple(EmbeddingTable(name, rows=8, width=4) for name in ("good", "split", "turned"))
    rows_of = ((2, 3), (1, 2), (1, 0))
    shards = [
        Shard(place, rank, first_row=4 * half, rows=4, first_column=0, width=4)
        for place, ranks in enumerate(rows_of)
        for half, rank in enumerate(ranks)
    ]
    plan = ShardingPlan(tables, 4, tuple(sorted(shards)), ranks_per_host=2, summed_in_host=(0, 2))

    assert list_unrunnable(plan) == ("split", "turned")
    copied = replace(plan, frequent_rows=(1, 0, 0))
    assert list_unrunnable(copied) == ("good", "split", "turned")


@given(st.sets(st.integers(0, 200), min_size=1))
def test_the_exact_text_names_every_rank_once(ranks):
    named: list[int] = []
    for piece in format_ranks(sorted(ranks), max_pieces=10**9).split(", "):
        bounds, _, step = piece.partition(" step ")
        first, _, last = bounds.partition("-")
        named += range(int(first), int(last or first) + 1, int(step or 1))

    assert named == sorted(ranks)
