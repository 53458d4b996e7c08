"""Compressed files are read no further than was agreed."""

import gzip
import time

import pytest

from perfmodel.base.errors import TraceError
from tests.traces.builders import kernel, launch, write_trace
from traces.chakra import load_chakra
from traces.file_stream import DEFAULT_LIMITS, Limits, open_chunks
from traces.job_trace import load_job_trace
from traces.kineto import load_kineto

SPANS = [launch(1, 0), kernel(1, 10, 5)]


def test_a_file_that_unpacks_to_more_than_agreed_is_refused(tmp_path):
    path = tmp_path / "big.json.gz"
    path.write_bytes(gzip.compress(b"a" * 200_000))
    with open_chunks(path, Limits(most_bytes=100_000)) as chunks:
        assert chunks.next()
        with pytest.raises(TraceError, match="--limits-factor"):
            chunks.read(200_000)


def test_a_file_of_nothing_but_repetition_is_refused(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"\0" * (70 * 2**20)))
    with open_chunks(path) as chunks, pytest.raises(TraceError, match="200 times its size"):
        chunks.read(70 * 2**20)
    assert DEFAULT_LIMITS.scaled(10).most_ratio == 2000


def test_an_endless_string_is_refused_in_time(tmp_path):
    path = tmp_path / "endless.json"
    path.write_bytes(b'{"traceEvents":[{"ph":"X","name":"' + b"abcdefgh" * (3 * 2**20))
    since_s = time.process_time()
    with pytest.raises(TraceError, match="has no end"):
        load_kineto(path)
    assert time.process_time() - since_s < 5


def test_many_operations_are_refused(tmp_path):
    path = tmp_path / "many.et"
    path.write_bytes(
        b"\x07\x0a\x050.0.4" + b"".join(b"\x02\x08" + bytes([n]) for n in range(1, 60))
    )
    assert len(load_chakra(path).operations) == 59
    with pytest.raises(TraceError, match="at most 50 operations"):
        load_chakra(path, Limits(most_objects=50))


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        *[("distributedInfo", {"rank": rank, "world_size": 2}, "distributedInfo.rank")
          for rank in (10**9, 2**63, -5, "one", 1e30)],
        ("baseTimeNanoseconds", 2**70, "baseTimeNanoseconds"),
    ],
)  # fmt: skip
def test_a_rank_or_a_base_time_that_cannot_be_is_a_fault(tmp_path, key, value, fault):
    trace = load_kineto(write_trace(tmp_path / "a.json", SPANS, **{key: value}))
    assert trace.rank == 0
    assert fault in trace.report.faults[0]


def test_a_huge_job_does_not_list_its_missing_ranks(tmp_path):
    write_trace(tmp_path / "a.json", SPANS, distributedInfo={"rank": 7, "world_size": 2**20})

    job = load_job_trace(tmp_path / "a.json")

    assert job.missing_count == 2**20 - 1
    assert job.missing_ranks == (0, 1, 2, 3, 4, 5, 6, 8, 9)
