"""What nccl-tests prints and writes as JSON becomes rows of a table."""

from __future__ import annotations

import json

import pytest

from collectives.collective import CollectiveKind
from collectives.measurements import RunPlace, load_measurements
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.extensions.formats.nccl_tests import dotted_version, read_foreign
from perfmodel.extensions.measurements.checking import check_tables

HEADING = """\
# nccl-tests version 2.17.4 nccl-headers=22705 nccl-library=22705
# Collective test starting: alltoall_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 4(factor) warmup iters: 1 iters: 20
# Using devices
"""
COLUMNS = """\
#       size         count      type   redop    root     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
"""
LINES = """\
           0             0      half    none      -1     1.25    0.00    0.00       0
        1024           512      half    none      -1    13.12    0.08    0.07       0
        4096          2048      half    none      -1    14.25    0.29    0.25     N/A
# Out of bounds values : 0 OK
"""
PLACE = RunPlace("dgx_a100")


def ranks(count, per_host=8):
    return "".join(
        f"#  Rank {rank:2} Group  0 Pid {rank} on node{rank // per_host} device "
        f"{rank % per_host} [0000:07:00] NVIDIA A100-SXM4-80GB\n"
        for rank in range(count)
    )


def load(tmp_path, text, place=PLACE, name="run.log"):
    path = tmp_path / name
    path.write_text(text)
    return load_measurements([path], place=place)


def test_a_print_says_sizes_times_ranks_hosts_and_release(tmp_path):
    rows = load(tmp_path, HEADING + ranks(16) + COLUMNS + LINES)

    assert [(row.size_bytes, row.duration_ns) for row in rows] == [(1024, 13_120), (4096, 14_250)]
    assert {(row.hosts, row.ranks, row.kind) for row in rows} == {
        (2, 16, CollectiveKind.ALL_TO_ALL)
    }
    assert rows[0].nccl_version == (2, 27, 5)
    assert rows[0].dtype is DType.FP16


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "0: ", " 0: ", "2026-03-01T10:00:00.123Z ", "[2026-03-01 10:00:00] ",
     "Sun Mar  1 10:00:00 2026[1,0]<stdout>: "],
)  # fmt: skip
def test_what_a_launcher_puts_before_every_line_changes_nothing(tmp_path, prefix):
    text = HEADING + ranks(16) + COLUMNS + LINES
    tagged = "".join(prefix + line for line in text.splitlines(keepends=True))
    tagged += "[1,3]<stderr>:node0:1883:1950 [3] NCCL INFO comm 0x55 rank 3 nranks 16 nNodes 2 up\n"
    assert load(tmp_path, tagged) == load(tmp_path, text)


def test_a_single_byte_is_a_size(tmp_path):
    lines = LINES.replace("        1024 ", "           1 ")
    rows = load(tmp_path, HEADING + ranks(8) + COLUMNS + lines)
    assert [row.size_bytes for row in rows] == [1, 4096]


def test_an_older_print_takes_the_collective_from_its_command_or_its_file(tmp_path):
    line = "        1024           512     float     sum    13.12    0.08    0.07   0e+00\n"
    body = "# nThread 1 nGpus 8\n" + ranks(8) + COLUMNS.replace(" root ", "") + line
    [row] = load(tmp_path, "$ mpirun ./build/all_gather_perf -b 8\n" + body)
    assert row.kind is CollectiveKind.ALL_GATHER
    [row] = load(tmp_path, body, name="reduce_scatter_perf.txt")
    assert row.kind is CollectiveKind.REDUCE_SCATTER
    with pytest.raises(MeasurementError, match="--kind"):
        load(tmp_path, body)


@pytest.mark.parametrize(
    ("name", "busbw", "kind"),
    [
        ("allreduce.log", "175.00", CollectiveKind.ALL_REDUCE),
        ("alltoall-1x8.txt", "none", CollectiveKind.ALL_TO_ALL),
        ("AllGather 8 GPUs.log", "none", CollectiveKind.ALL_GATHER),
    ],
)
def test_a_print_without_its_command_tells_the_collective_by_name(tmp_path, name, busbw, kind):
    line = "  4194304  1048576  float  sum  -1  41.90  100.00  175.00  0\n"
    if busbw == "none":
        line = line.replace("sum", "none")
    text = "# nThread 1 nGpus 8\n" + ranks(8) + COLUMNS + line.replace("175.00", busbw)
    [row] = load(tmp_path, text.replace(" none  0\n", " 87.50  0\n"), name=name)
    assert row.kind is kind


def test_json_counts_every_process_and_takes_what_was_timed(tmp_path):
    document = {
        "version": 2,
        "args": ["./all_reduce_perf", "-b", "8"],
        "nccl_version": 21805,
        "config": {
            "nthreads": 1,
            "ngpus": 4,
            "devices": [{"rank": 0, "hostname": "a"}, {"rank": 4, "hostname": "b"}],
        },
        "results": [
            {"size": 1024, "type": "float", "out_of_place": {"time": 9.5}},
            {"size": 2048, "type": "float", "out_of_place": None, "in_place": {"time": 11.0}},
        ],
    }
    rows = load(tmp_path, json.dumps(document), name="run.json")

    assert [row.duration_ns for row in rows] == [9_500, 11_000]
    assert (rows[0].hosts, rows[0].ranks, rows[0].nccl_version) == (2, 8, (2, 18, 5))


@pytest.mark.parametrize(
    ("text", "place", "advice"),
    [
        (HEADING + ranks(8) + COLUMNS + LINES, RunPlace(), "--topology NAME"),
        (HEADING + COLUMNS + LINES, PLACE, "does not list its ranks"),
        (HEADING + COLUMNS + LINES, RunPlace("dgx_a100", hosts=2), "does not list its ranks"),
        ('{"args": [], "config": {}, "results": []}', PLACE, "does not name its collective"),
        ('{"args": 7, "config": {}, "results": []}', PLACE, "does not name its collective"),
        (HEADING + ranks(8) + COLUMNS, PLACE, "no line with a size"),
        (HEADING + ranks(8).split("\n", 1)[1] + COLUMNS + LINES, PLACE, "rank 7 but not rank 0"),
        ('{"config": {}}', PLACE, "not of nccl-tests"),
        ('{"results": []}', PLACE, "not of nccl-tests"),
        ('{"answer": 42}', PLACE, "not of nccl-tests"),
        ("{", PLACE, "not valid JSON"),
    ],
)
def test_what_is_missing_is_said(tmp_path, text, place, advice):
    with pytest.raises(MeasurementError, match=advice):
        load(tmp_path, text, place)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        '{"config": {"devices": 7}, "results": [], "results": []}',
        '{"config": {"devices": 7}, "results": [5]}',
        "# nGpus 1\n#  size count time busbw\n" + "9" * 5000 + " 1 2 3\n",
    ],
)
def test_damaged_output_is_refused_in_a_sentence(tmp_path, text):
    file = tmp_path / "all_reduce_perf.txt"
    file.write_text(text)
    with pytest.raises(MeasurementError):
        load_measurements([file], place=RunPlace("dgx_h100"))


@pytest.mark.parametrize(
    ("code", "version"),
    [(21805, "2.18.5"), (10000, "1.0.0"), (9999, "9.9.99"), (2708, "2.7.8"), (1000, "1.0.0"),
     (999, ""), (1, "")],
)  # fmt: skip
def test_the_number_of_a_release_is_read_as_nccl_writes_it(code, version):
    assert dotted_version(code) == version


@pytest.mark.parametrize(
    ("text", "is_print"),
    [("# nThread 1 nGpus 8\n", True), ("#  size  count  time  busbw\n", True),
     ("#  size  count  cputime  busbw\n", True), ("  {}", True),
     ("size,count,time,busbw\n", False), ("#  size  count  busbw\n", False),
     ("topology,hosts\n", False)],
)  # fmt: skip
def test_output_is_told_from_a_table(text, is_print):
    if not is_print:
        assert read_foreign(text, document="x", place=PLACE) is None
        return
    # Nothing else of a run is there.
    with pytest.raises(MeasurementError):
        read_foreign(text, document="x", place=PLACE)


def test_a_print_may_say_the_release_in_words_and_times_of_the_processor(tmp_path):
    text = (
        "# all_reduce_perf nGpus 8\nNCCL version 2.19.3+cuda12.2\n"
        + ranks(8)
        + "#  size  count  redop  cputime  algbw  busbw\n"
        + "  2048  512  sum  9.50  0  0\n"
        # Too short, no time, an endless and a negative one: none of them is a measurement.
        + "  4096  512  sum  9.50\n  4096 1 sum N/A 0 0\n  4096 1 sum inf 0 0\n"
        + "  4096  1  sum  -2.0  0  0\n  4096  1  sum  0.0  0  0\n"
    )
    row, *others = load(tmp_path, text)
    assert all(one.fault for one in others)
    assert (row.size_bytes, row.duration_ns, row.nccl_version) == (2048, 9_500, (2, 19, 3))
    assert row.dtype is DType.FP32
    assert row.kind is CollectiveKind.ALL_REDUCE


def test_who_ran_it_may_say_hosts_and_collective(tmp_path):
    text = HEADING + ranks(16) + COLUMNS + LINES
    rows = load(tmp_path, text, RunPlace("dgx_a100", hosts=4, kind="all_gather"))
    assert {(row.hosts, row.kind) for row in rows} == {(4, CollectiveKind.ALL_GATHER)}


def test_json_without_numbers_of_threads_and_release_has_one_thread_and_no_release(tmp_path):
    document = {
        "args": ["all_reduce_perf"],
        "config": {"nthreads": 0, "devices": [{"hostname": "a"}, {"hostname": "a"}, 5]},
        "results": [
            {"size": 1, "type": "half", "out_of_place": {"cpu_time": 3.0}},
            {"size": 0, "out_of_place": {"time": 3.0}},
            {"out_of_place": {"time": 3.0}},
            {"size": 64, "out_of_place": {"time": 0}, "in_place": {"time": 4.0}},
            {"size": 128, "out_of_place": {}, "in_place": {"time": "x"}},
            7,
        ],
    }
    rows = load(tmp_path, json.dumps(document), name="run.json")
    found = [(row.size_bytes, row.duration_ns) for row in rows if not row.fault]
    assert found == [(1, 3_000), (64, 4_000)]
    assert (rows[0].hosts, rows[0].ranks, rows[0].nccl_version) == (1, 2, None)
    assert rows[0].dtype is DType.FP16


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        ((("9.90", "17.33"), ("40.56", "70.98")), 8),
        ((("118.87", "222.88"),), 16),
        ((("0.50", "0.94"),), "does not list its ranks"),
        ((("12.00", "24.00"),), "busbw must be 1.75 times"),
        ((("12.00", "12.00"),), "does not list its ranks"),
    ],
)
def test_without_its_ranks_a_print_is_of_all_gpus_if_its_bandwidths_agree(tmp_path, rows, ranks):
    path = tmp_path / "all_reduce.log"
    heading = "# size count type redop root time algbw busbw #wrong\n"
    lines = [f"1048576 262144 float sum -1 105.9 {plain} {bus} 0" for plain, bus in rows]
    path.write_text(heading + "\n".join(lines))
    place = RunPlace("dgx_h100", hosts=1 if ranks != 16 else 2)
    if isinstance(ranks, str):
        with pytest.raises(MeasurementError, match=ranks):
            read_foreign(path.read_text(), document=str(path), place=place)
    else:
        found = read_foreign(path.read_text(), document=str(path), place=place)
        assert {row["nranks"] for row in found} == {str(ranks)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # Of 8 ranks an all-reduce has 2 x 7/8, an all-gather 7/8.
        (("all_reduce_perf", "all_gather_perf"), "0.875 times algbw in all_gather of 8 ranks"),
        (("350.00", "2800.00"), "busbw must be 1.75 times algbw"),
        (("NVIDIA H100", "NVIDIA A100"), "measured on h100_sxm, as dgx_h100 has, got NVIDIA A100"),
        (("float", "flaot"), "no row of 3 can be used: type flaot is not known"),
    ],
)
def test_a_print_of_another_place_or_collective_is_refused(tmp_path, change, words):
    lines = "".join(
        f"#  Rank {rank} Group 0 Pid 1 on host0 device {rank} [0x0{rank}] NVIDIA H100 80GB HBM3\n"
        for rank in range(8)
    )
    text = "# Collective test starting: all_reduce_perf\n# nGpus 8\n" + lines
    text += "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
    # 64 MB in 320 us are 200 GB/s.
    row = "  64000000  16000000  float  sum  -1  320.0  200.00  350.00  0\n"
    path = tmp_path / "run.log"
    path.write_text((text + row * 3).replace(*change))
    with pytest.raises(MeasurementError, match=words):
        check_tables([path], RunPlace("dgx_h100"))
