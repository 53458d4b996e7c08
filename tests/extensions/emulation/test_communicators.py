"""Collectives are matched across ranks; what does not match is named."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.communicators import build_job
from perfmodel.extensions.emulation.rank_record import (
    CallType,
    GroupRecord,
    IterationRecord,
    RankRecord,
    from_bytes,
    to_bytes,
)
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Communication

LATENCY_NS = 1000
WORLD = GroupRecord("0", (0, 1), "train.py:1  2")


def collective(call="all_reduce", size=64, line="train.py:7", **more):
    words = {
        "call": call, "group": "0", "bytes": size, "dtype": "fp32", "root": 0, "peer": None,
        "splits": None, "line": line,
    }  # fmt: skip
    return words | more


def record(rank, collectives, groups=(WORLD,)):
    calls = tuple(
        (int(CallType.COLLECTIVE), number, 1, 5, number) for number in range(len(collectives))
    )
    return RankRecord(
        rank=rank, kinds=(), collectives=tuple(collectives), groups=tuple(groups), calls=calls,
        operator_names=("",) * len(calls), boundaries=(0, len(calls)),
        iterations=(IterationRecord(),), first_steady=0, main_thread=1, peak_memory_bytes=512,
        peak_place="train.py:3", placeholders={}, notes=(),
        compiled_regions=0, fallbacks={}, compile_cpu_s=0.0, was_stopped=True, step_count=1,
        torch_version="2.13.0", step_cpu_s=(),
    )  # fmt: skip


def build(*records, world_size=2):
    by_rank = {one.rank: one for one in records}
    return build_job(by_rank, world_size=world_size, latency_ns=LATENCY_NS, facts=JobFacts("test"))


def test_equal_calls_become_one_rendezvous():
    job = build(record(0, [collective()]), record(1, [collective()]))
    check_job(job)
    assert job.rank_count == 2
    assert [group.ranks for group in job.groups] == [(0, 1)]


REDUCE = "all_reduce of 64 bytes (fp32) at train.py:7"
GATHER = "all_gather of 128 bytes (fp32) at train.py:9"


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ("ra", f"#1: {GATHER} on rank 1, {REDUCE} on rank 0"),
        ("r", f"#1: rank 1 lacks {REDUCE}, made by rank 0; in its place: no call"),
        ("", f"#0: rank 1 lacks {REDUCE}, made by rank 0; in its place: no call"),
        ("rrr", f"#2: rank 0 lacks {REDUCE}, made by rank 1; in its place: no call"),
    ],
)
def test_the_first_call_that_differs_is_named_by_rank_number_and_line(calls, words):
    kinds = {"r": collective(), "a": collective("all_gather", 128, "train.py:9")}
    with pytest.raises(EmulationError) as fault:
        build(record(0, [collective(), collective()]), record(1, [kinds[one] for one in calls]))
    assert words in str(fault.value)


def test_of_four_ranks_the_one_that_skips_a_call_is_named_with_the_line_it_comes_to():
    gather = collective("all_gather", 128, "train.py:9")
    group = GroupRecord("0", (0, 1, 2, 3), "train.py:1  4")
    calls = {rank: [collective(), gather, collective()] for rank in (0, 1, 3)}
    calls[2] = [collective(), collective()]
    with pytest.raises(EmulationError) as fault:
        build(*(record(rank, calls[rank], [group]) for rank in range(4)), world_size=4)
    words = f"#1: rank 2 lacks {GATHER}, made by ranks 0, 1, 3; in its place: {REDUCE}"
    assert words in str(fault.value)


def test_ranks_that_were_not_run_meet_in_the_groups_made_by_the_same_line():
    groups = [
        GroupRecord("0", (0, 1, 2, 3), "train.py:1  4"),
        GroupRecord("1", (0, 1), "train.py:2  2"),
        GroupRecord("2", (2, 3), "train.py:2  2"),
    ]
    own = {0: "1", 3: "2"}
    run = [record(rank, [collective(group=own[rank])], groups) for rank in (0, 3)]
    job = build(*run, world_size=4)
    check_job(job)
    assert sorted(group.ranks for group in job.groups) == [(0, 1), (2, 3)]


def test_pieces_of_all_ranks_make_the_matrix_of_an_uneven_all_to_all():
    splits = {0: [8, 24], 1: [16, 16]}
    run = [record(rank, [collective("all_to_all", 32, splits=splits[rank])]) for rank in (0, 1)]
    job = build(*run)
    [op] = [op for op in job.ops if isinstance(op, Communication)]
    assert op.collective.byte_matrix == ((8, 24), (16, 16))


def test_the_root_of_a_broadcast_does_not_wait():
    job = build(record(0, [collective("broadcast")]), record(1, [collective("broadcast")]))
    check_job(job)
    roles = [job.program_of(rank).role.max() for rank in (0, 1)]
    assert roles == [1, 2]


def test_a_record_survives_its_file():
    one = record(0, [collective()])
    assert from_bytes(to_bytes(one)) == one
