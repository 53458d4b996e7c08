"""The Kineto reader: what it keeps, and what it says about damage."""

import gzip
import json

import pytest

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import TraceError
from tests.conftest import CHECKOUT
from tests.traces.builders import kernel, launch, span, write_trace
from traces import kineto_rows as kineto_fields
from traces.kineto import load_kineto
from traces.trace import Category


def small_trace():
    return [
        span("cpu_op", "aten::mm", 10, 20, **{"External id": 4, "Input Dims": [[2, 3], [3, 4]]}),
        launch(9, 15),
        kernel(9, 25, 7.5, grid=[4, 1, 1], block=[128, 1, 1]),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
        span("python_function", "run", 0, 99),
    ]


def test_rows_are_kept_with_their_links(tmp_path):
    path = write_trace(
        tmp_path / "a.json", small_trace(), distributedInfo={"rank": 2, "world_size": 4}
    )

    trace = load_kineto(path)

    assert (trace.rank, trace.world_size) == (2, 4)
    assert [trace.name_of(row) for row in range(3)] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert trace.columns.start_ns.tolist() == [10_000, 15_000, 25_000]
    assert trace.columns.duration_ns.tolist() == [20_000, 5_000, 7_500]
    assert trace.columns.correlation.tolist() == [-1, 9, 9]
    assert trace.detail_of(0)["Input Dims"] == [[2, 3], [3, 4]]
    assert trace.detail_of(2)["grid"] == [4, 1, 1]
    assert trace.report.left_out == {"arrows, names and marks": 1, "category python_function": 1}


def test_gzip_and_plain_and_bare_array_give_the_same_rows(tmp_path):
    plain = load_kineto(write_trace(tmp_path / "rank0.json", small_trace()))
    packed = load_kineto(write_trace(tmp_path / "rank0.json.gz", small_trace()))
    bare_path = tmp_path / "rank0_bare.json"
    bare_path.write_text(json.dumps(small_trace()))
    bare = load_kineto(bare_path)

    for other in (packed, bare):
        assert other.columns.start_ns.tolist() == plain.columns.start_ns.tolist()
        assert other.report.faults == ()


def test_metadata_may_stand_behind_the_rows(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": small_trace(), "distributedInfo": {"rank": 3}}))

    trace = load_kineto(path)

    assert trace.rank == 3
    assert trace.report.objects == 5
    assert trace.report.faults == ()


def test_nanosecond_stamps_and_base_time_add_up(tmp_path):
    rows = [kernel(1, 3924272845723.565, 8.192)]
    trace = load_kineto(write_trace(tmp_path / "a.json", rows, baseTimeNanoseconds=10**18))

    # 3924272845723.565 us = 3924272845723565 ns
    assert trace.columns.start_ns[0] == 10**18 + 3924272845723565
    assert trace.columns.duration_ns[0] == 8192


def test_braces_quotes_and_backslashes_in_names_do_not_cut_objects(tmp_path):
    names = ['a{b}"c"', "d\\", '\\"}{', "tail]}"]
    rows = [kernel(i, 10 * i, 1, name=name) for i, name in enumerate(names)]

    trace = load_kineto(write_trace(tmp_path / "a.json", rows))

    assert [trace.name_of(row) for row in range(4)] == names


def test_many_batches_lose_nothing(tmp_path):
    rows = [kernel(i, i, 0.5, name=f"k{i % 7}" * 20) for i in range(5000)]

    trace = load_kineto(write_trace(tmp_path / "a.json.gz", rows))

    assert trace.columns.correlation.tolist() == list(range(5000))


def test_a_truncated_tail_keeps_the_complete_rows_and_says_so(tmp_path):
    path = write_trace(tmp_path / "rank1.json", small_trace()[:3] * 20)
    path.write_bytes(path.read_bytes()[:-300])

    trace = load_kineto(path)

    assert 50 < trace.report.kept < 60
    assert "file ends early" in trace.report.faults[0]
    assert trace.rank == 1


def test_a_cut_gzip_file_is_reported(tmp_path):
    rows = [kernel(i, i, 0.5, name=f"k{i * i}") for i in range(3000)]
    path = write_trace(tmp_path / "rank1.json.gz", rows)
    path.write_bytes(path.read_bytes()[:-2000])

    trace = load_kineto(path)

    assert 0 < trace.report.kept < 3000
    assert any("compressed file is damaged" in fault for fault in trace.report.faults)


def test_bad_utf8_is_replaced_and_reported(tmp_path):
    path = write_trace(tmp_path / "a.json", small_trace())
    path.write_bytes(path.read_bytes().replace(b"aten::mm", b"aten::\xff\xfe"))

    trace = load_kineto(path)

    assert trace.report.kept == 3
    assert "not UTF-8" in trace.report.faults[0]


def test_integers_beyond_64_bits_are_absent_and_reported(tmp_path):
    rows = [*small_trace(), kernel(2**70, 50, 1), kernel(2**64 - 1, 60, 1)]

    trace = load_kineto(write_trace(tmp_path / "a.json", rows))

    assert trace.columns.correlation.tolist()[-2:] == [-1, -1]
    assert any("64 bits" in fault for fault in trace.report.faults)


def test_bare_inf_is_read_as_absent(tmp_path):
    path = write_trace(tmp_path / "a.json", [kernel(1, 5, 1, speed=12345), *small_trace()])
    path.write_bytes(path.read_bytes().replace(b"12345", b"inf"))

    trace = load_kineto(path)

    assert trace.report.kept == 4
    assert "inf or nan" in trace.report.faults[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dur": -3}, "negative duration"),
        ({"dur": None}, "`dur`"),
        ({"ts": "soon"}, "`ts`"),
        ({"ts": 1e300}, "out of range"),
        ({"name": 5}, "without a name"),
        ({"ph": None}, "phase"),
        ({"cat": None}, "category"),
    ],
)
def test_a_faulty_row_is_left_out_and_named(tmp_path, change, word):
    rows = [kernel(i, i, 0.5) for i in range(40)] + [{**kernel(99, 5, 1), **change}]

    trace = load_kineto(write_trace(tmp_path / "a.json", rows))

    assert trace.report.kept == 40
    assert trace.report.left_out["faulty"] == 1
    assert word in trace.report.faults[0]


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"{}", b'{"traceEvents": []}', b'{"traceEvents": 5}', b"\x1f\x8bnonsense",
     b'{"traceEvents": [' + b'{"ph": 3},' * 50 + b"]}"],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_path(tmp_path, content):
    path = tmp_path / "junk.json"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=r"junk\.json"):
        load_kineto(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(TraceError, match="directory"):
        load_kineto(tmp_path)


def test_the_schema_file_names_every_field_that_is_read():
    schema = load_yaml(CHECKOUT / "traces" / "schema_kineto.yaml")

    assert set(schema["categories"]) == {*kineto_fields.CATEGORIES, kineto_fields.FUNCTION}
    assert set(schema["arguments"]) == set(kineto_fields.NUMBER_FIELDS) - {"tid"}
    details = {
        *kineto_fields.SHAPE_FIELDS, *kineto_fields.GEOMETRY_FIELDS,
        *kineto_fields.COLLECTIVE_FIELDS, *kineto_fields.WAIT_FIELDS,
    }  # fmt: skip
    assert set(schema["details"]) == details


def test_a_rocm_trace_reads_with_its_address_streams(shared_data):
    path = shared_data / "traces" / "resnet_ddp_mi300x4" / "rank0.json.gz"
    trace = load_kineto(path)

    assert trace.report.faults == ()
    assert trace.report.objects == 40480
    kernels = trace.columns.is_in(Category.KERNEL).sum()
    assert kernels == 3114
    with gzip.open(path) as stream:
        assert stream.read(1) == b"{"
