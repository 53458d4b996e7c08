"""The Kineto reader: what it keeps, and what it says about damage."""

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


@pytest.fixture
def read(tmp_path):
    """Write rows, change the bytes of the file, and read it."""

    def load(rows, name="rank1.json", change=lambda text: text, **around):
        path = write_trace(tmp_path / name, rows, **around)
        path.write_bytes(change(path.read_bytes()))
        return load_kineto(path)

    return load


def test_rows_are_kept_with_their_links(read):
    trace = read(small_trace(), distributedInfo={"rank": 2, "world_size": 4})

    assert (trace.rank, trace.world_size) == (2, 4)
    assert [trace.name_of(row) for row in range(3)] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert trace.columns.start_ns.tolist() == [10_000, 15_000, 25_000]
    assert trace.columns.duration_ns.tolist() == [20_000, 5_000, 7_500]
    assert trace.columns.correlation.tolist() == [-1, 9, 9]
    assert trace.detail_of(0)["Input Dims"] == [[2, 3], [3, 4]]
    assert trace.detail_of(2)["grid"] == [4, 1, 1]
    assert (trace.report.objects, trace.report.kept) == (5, 3)


def test_gzip_and_plain_and_bare_array_give_the_same_rows(read):
    plain, packed = read(small_trace()), read(small_trace(), "rank0.json.gz")
    bare = read([], change=lambda _: json.dumps(small_trace()).encode())
    for other in (packed, bare):
        assert other.columns.start_ns.tolist() == plain.columns.start_ns.tolist()
        assert other.report.faults == ()


def test_metadata_may_stand_behind_the_rows(read):
    document = {"traceEvents": small_trace(), "distributedInfo": {"rank": 3}}
    trace = read([], change=lambda _: json.dumps(document).encode())
    assert (trace.rank, trace.report.objects, trace.report.faults) == (3, 5, ())


def test_nanosecond_stamps_and_base_time_add_up(read):
    trace = read([kernel(1, 3924272845723.565, 8.192)], baseTimeNanoseconds=10**18)
    # 3924272845723.565 us = 3924272845723565 ns
    assert trace.columns.start_ns[0] == 10**18 + 3924272845723565
    assert trace.columns.duration_ns[0] == 8192


def test_braces_quotes_and_backslashes_in_names_do_not_cut_objects(read):
    names = ['a{b}"c"', "d\\", '\\"}{', "tail]}"]
    trace = read([kernel(i, 10 * i, 1, name=name) for i, name in enumerate(names)])
    assert [trace.name_of(row) for row in range(4)] == names


def test_many_batches_lose_nothing(read):
    rows = [kernel(i, i, 0.5, name=f"k{i % 7}" * 20) for i in range(5000)]
    assert read(rows, "a.json.gz").columns.correlation.tolist() == list(range(5000))


MANY = [kernel(i, i, 0.5, name=f"k{i * i}") for i in range(3000)]


@pytest.mark.parametrize(
    ("rows", "name", "change", "kept", "fault"),
    [
        (small_trace()[:3] * 20, "rank1.json", lambda text: text[:-300], range(51, 60),
         "file ends early"),
        (MANY, "rank1.json.gz", lambda text: text[:-2000], range(1, 3000),
         "compressed file is damaged"),
        (small_trace(), "rank1.json", lambda text: text.replace(b"aten::mm", b"aten::\xff\xfe"),
         [3], "not UTF-8"),
        ([kernel(1, 5, 1, speed=12345), *small_trace()], "rank1.json",
         lambda text: text.replace(b"12345", b"inf"), [4], "inf or nan"),
    ],
)  # fmt: skip
def test_damage_keeps_the_complete_rows_and_is_told(read, rows, name, change, kept, fault):
    trace = read(rows, name, change)
    assert trace.report.kept in kept
    assert any(fault in one for one in trace.report.faults)
    assert trace.rank == 1


def test_integers_beyond_64_bits_are_absent_and_reported(read):
    trace = read([*small_trace(), kernel(2**70, 50, 1), kernel(2**64 - 1, 60, 1)])
    assert trace.columns.correlation.tolist()[-2:] == [-1, -1]
    assert any("64 bits" in fault for fault in trace.report.faults)


def test_a_thread_may_be_called_after_its_stream(read):
    odd = [kernel(9, 50 + place, 1) | {"tid": tid} for place, tid in enumerate(("stream 7", "no"))]
    trace = read([*small_trace(), *odd])
    assert trace.columns.thread.tolist()[-2:] == [7, -1]
    assert len(trace.report.faults) == 1


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
def test_a_faulty_row_is_left_out_and_named(read, change, word):
    trace = read([kernel(i, i, 0.5) for i in range(40)] + [{**kernel(99, 5, 1), **change}])
    assert trace.report.kept == 40
    assert len(trace.report.faults) == 1
    assert word in trace.report.faults[0]


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"{}", b'{"traceEvents": []}', b'{"traceEvents": 5}', b"\x1f\x8bnonsense",
     b'{"traceEvents": [' + b'{"ph": 3},' * 50 + b"]}"],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_path(read, tmp_path, content):
    with pytest.raises(TraceError, match=r"junk\.json"):
        read([], "junk.json", lambda _: content)
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
    trace = load_kineto(shared_data / "traces" / "resnet_ddp_mi300x4" / "rank0.json.gz")
    assert trace.report.faults == ()
    assert trace.report.objects == 40480
    assert trace.columns.is_in(Category.KERNEL).sum() == 3114


def test_columns_are_as_narrow_as_their_numbers_and_widen_when_a_large_one_comes(tmp_path):
    rows = [kernel(number, number, 1) for number in range(5_000)]
    rows += [kernel(2**40, 5_000, 1)]

    columns = load_kineto(write_trace(tmp_path / "a.json", rows)).columns

    assert columns.stream.dtype.itemsize == columns.device.dtype.itemsize == 1
    assert columns.correlation.dtype.itemsize == 8
    assert columns.correlation.tolist() == [*range(5_000), 2**40]
