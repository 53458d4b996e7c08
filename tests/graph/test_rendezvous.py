"""The first call that ranks do not make alike, and collectives made of the parts of ranks."""

import pytest

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import LaneKind
from perfmodel.graph.rendezvous import (
    PeerCall,
    find_divergence,
    group_peers,
    join_parts,
    name_ranks,
)


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


def groups_of(peers):
    """The groups of a job whose recorded ranks call every collective of *peers* once."""
    builder = JobBuilder()
    program = builder.new_program()
    lane = program.add_lane("stream", LaneKind.COMMUNICATION)
    for name, group in peers.groups.items():
        for collective in group.collectives:
            slot = peers.slot_of(name)
            program.add_task(lane, Communication(collective), label=name, slot=slot)
    peers.add_ranks(builder, [builder.add_program(program.build())])
    return {group.name: group.ranks for group in builder.build(JobFacts("job")).groups}


def reduction(group, group_size, stride=1):
    kind = CollectiveKind.ALL_REDUCE
    return PeerCall(group, group_size, kind, 64, DType.FP32, stride=stride)


def test_ranks_without_a_trace_are_in_groups_like_those_of_the_recorded_ones():
    calls = [reduction("tp", 2), reduction("dp", 4, stride=2), reduction("odd", 3)]
    peers = group_peers("job", [[*calls, reduction("world", 8)]] * 2)

    assert (peers.rank_count, peers.recorded_count) == (8, 2)
    assert peers.faults == ("6 of 8 ranks are not recorded; they are assumed to do the same",)
    assert "2 of 8 ranks were recorded" in peers.assumptions[0]
    everybody = tuple(range(8))
    assert groups_of(peers) == {
        "tp 0": (0, 1), "tp 1": (2, 3), "tp 2": (4, 5), "tp 3": (6, 7),
        "dp 0": (0, 2, 4, 6), "dp 1": (1, 3, 5, 7),
        # Three do not divide eight.
        "odd 0": everybody, "world 0": everybody,
    }  # fmt: skip


def test_groups_of_recorded_ranks_are_those_that_call_them():
    peers = group_peers("job", [[reduction("a", 0)], [reduction("a", 0), reduction("alone", 0)]])
    assert (peers.rank_count, peers.assumptions) == (2, ())
    assert "the 1 collectives of group 'alone' have no partner" in peers.faults[0]
    assert groups_of(peers) == {"a": (0, 1)}


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([[reduction("a", 2**16 + 1)]], "at most 65536 ranks, one says 65537"),
        ([[reduction("a", 2)], []], "states 2 ranks, but collectives of only 1 are in the traces"),
        ([[reduction("a", 2)], [reduction("a", 2)] * 2], "#1: rank 0 lacks all_reduce of 64 bytes"),
    ],
)
def test_groups_that_cannot_be_are_refused(ranks, message):
    with pytest.raises(TraceError, match=message):
        group_peers("job", ranks)
