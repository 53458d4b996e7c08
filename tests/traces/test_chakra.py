"""Chakra execution traces, in and out."""

import gzip

import pytest

from perfmodel.base.errors import TraceError
from tests.traces.chakra_files import write_chakra
from traces.chakra import ChakraKind, ChakraOperation, ChakraTrace, load_chakra

OPERATIONS = (
    ChakraOperation(1, "start", ChakraKind.COMPUTE, duration_us=5, attributes={"is_cpu_op": True}),
    ChakraOperation(
        7, "all-reduce", ChakraKind.COLLECTIVE, control=(1,), data=(1,), start_us=2**40,
        attributes={"comm_size": 2**33, "scale": 0.5, "note": "ü"},
    ),
)  # fmt: skip


def test_what_is_written_is_read_back(tmp_path):
    write_chakra(ChakraTrace("x", "0.0.4", OPERATIONS), tmp_path / "a.et")
    (tmp_path / "a.et.gz").write_bytes(gzip.compress((tmp_path / "a.et").read_bytes()))

    back = load_chakra(tmp_path / "a.et")
    assert load_chakra(tmp_path / "a.et.gz").operations == back.operations == OPERATIONS
    assert back.faults == ()


def test_the_first_message_is_framed_by_hand(tmp_path):
    # 7 bytes of metadata: field 1, length 5, "0.0.4". Then an operation of 4 bytes:
    # field 1 (id) = 9; field 7 (duration) = 3.
    (tmp_path / "a.et").write_bytes(b"\x07\x0a\x050.0.4" + b"\x04\x08\x09\x38\x03")

    trace = load_chakra(tmp_path / "a.et")

    assert trace.version == "0.0.4"
    assert (trace.operations[0].number, trace.operations[0].duration_us) == (9, 3)


def test_a_wait_for_something_absent_is_reported(tmp_path):
    operations = (ChakraOperation(1, "a", ChakraKind.COMPUTE, data=(5,)),)
    write_chakra(ChakraTrace("x", "0.0.4", operations), tmp_path / "a.et")

    assert "waits for 5" in load_chakra(tmp_path / "a.et").faults[0]


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x05abc", b"\x03abc", b"\x02\x0a\x00"])
def test_junk_is_refused(tmp_path, content):
    (tmp_path / "junk.et").write_bytes(content)
    with pytest.raises(TraceError, match=r"junk\.et"):
        load_chakra(tmp_path / "junk.et")


def test_repeated_ids_are_refused(tmp_path):
    write_chakra(ChakraTrace("x", "0.0.4", OPERATIONS[:1] * 2), tmp_path / "a.et")
    with pytest.raises(TraceError, match="used twice"):
        load_chakra(tmp_path / "a.et")


def test_recorded_chakra_files_load(shared_data):
    for rank in (0, 1):
        trace = load_chakra(shared_data / "traces" / "gpt_tp2_v100x2" / f"chakra_rank{rank}.et.gz")
        assert len(trace.operations) == 2128
        assert sum(op.kind is ChakraKind.COLLECTIVE for op in trace.operations) == 39


def test_messages_longer_than_what_is_read_at_once_come_whole(tmp_path):
    # An operation of 6 MiB between two small ones: it is read on, and the next begins after it.
    long = ChakraOperation(2, "long", ChakraKind.COMPUTE, attributes={"note": "x" * 6 * 2**20})
    operations = (OPERATIONS[0], long, OPERATIONS[1])
    write_chakra(ChakraTrace("x", "0.0.4", operations), tmp_path / "a.et")

    assert load_chakra(tmp_path / "a.et").operations == operations


def test_a_message_cut_short_is_named_by_its_place_and_what_is_left(tmp_path):
    (tmp_path / "a.et").write_bytes(
        b"\x07\x0a\x050.0.4" + b"\x04\x08\x09\x38\x03" + b"\x05\x08\x0a"
    )

    with pytest.raises(
        TraceError, match=r"byte 13 must be 5 bytes long, but only 2 bytes are left"
    ):
        load_chakra(tmp_path / "a.et")
