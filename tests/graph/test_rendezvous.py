"""The first call that ranks do not make alike, and collectives made of the parts of ranks."""

import pytest

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.rendezvous import PeerCall, find_divergence, join_parts, name_ranks


@pytest.mark.parametrize(
    ("calls", "number", "text"),
    [
        (["abcd", "abcd", "acd"], 1, "rank 2 lacks b, made by ranks 0-1; in its place: c"),
        (["abcd", "acd", "acd"], 1, "ranks 1-2 lack b, made by rank 0; in its place: c"),
        (["abcd", "abxcd", "abcd"], 2, "ranks 0, 2 lack x, made by rank 1; in its place: c"),
        (["abcd", "axcd", "abcd"], 1, "x on rank 1, b on ranks 0, 2"),
        (["abcd", "bacd", "abcd"], 0, "b on rank 1, a on ranks 0, 2"),
        (["abc", "ab", "abc"], 2, "rank 1 lacks c, made by ranks 0, 2; in its place: no call"),
        (["ab", "ab", "abc"], 2, "ranks 0-1 lack c, made by rank 2; in its place: no call"),
        (["", "ab"], 0, "rank 0 lacks a, made by rank 1; in its place: no call"),
        # Without a majority the rank with the most calls is right, then the first.
        (["abc", "bc"], 0, "rank 1 lacks a, made by rank 0; in its place: b"),
        (["bc", "abc"], 0, "rank 0 lacks a, made by rank 1; in its place: b"),
        (["ax", "ay"], 1, "y on rank 1, x on rank 0"),
    ],
)
def test_the_rank_that_does_not_do_what_most_do_is_named_with_the_call(calls, number, text):
    found = find_divergence(enumerate(calls), str, str)
    assert (found.number, found.text) == (number, text)
    assert found.sentence("g") == (
        "group 'g': members must make the same collectives in the same order; the first that "
        f"differs is #{number}: {text}."
    )


def test_calls_that_are_alike_do_not_diverge_and_may_end_where_a_recording_does():
    assert find_divergence(enumerate(["abc", "abc"]), str, str) is None
    assert find_divergence(enumerate(["abc", "ab"]), str, str, is_cut=True) is None
    assert find_divergence(enumerate(["abc", "ax"]), str, str, is_cut=True).number == 1


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([], "nobody"), ([4], "rank 4"), ([0, 1], "ranks 0-1"), ([1, 3], "ranks 1, 3"),
        ([0, 2, 4, 6, 8, 10], "ranks 0, 2, 4, 6, 8, 10"),
        ([0, 2, 4, 6, 8, 10, 12, 14], "ranks 0, 2, 4, 6, 8, 10 and 2 more"),
    ],
)  # fmt: skip
def test_ranks_have_a_short_name(ranks, name):
    assert name_ranks(ranks) == name


def part(size_bytes, *sent_bytes, kind=CollectiveKind.ALL_TO_ALL):
    return PeerCall("g", 2, kind, size_bytes, DType.FP16, sent_bytes=sent_bytes, root=1)


@pytest.mark.parametrize(
    ("parts", "matrix"),
    [
        ([part(32, 8, 24), part(30, 15, 15)], ((8, 24), (15, 15))),
        # Even pieces, pieces that are not all known, and other kinds have no matrix.
        ([part(32, 16, 16), part(32, 16, 16)], None),
        ([part(32, 8, 24), part(32)], None),
        ([part(32, 8, 24, kind=CollectiveKind.ALL_GATHER)] * 2, None),
    ],
)
def test_the_parts_of_all_members_make_one_collective(parts, matrix):
    kind = parts[0].kind
    assert join_parts(parts) == Collective(kind, 32, DType.FP16, byte_matrix=matrix, root=1)
