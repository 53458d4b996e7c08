import pytest

from collectives.collective import CollectiveKind, CollectiveSoftware
from collectives.measurements import load_measurements
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError

HEADING = "topology,hosts,nranks,collective,size_bytes,dtype,nccl_version,time_us,source\n"


def table(tmp_path, *rows, heading=HEADING, name="table.csv"):
    path = tmp_path / name
    path.write_text(heading + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_a_row_is_read_with_its_software(tmp_path):
    path = table(tmp_path, "dgx_a100,2,16,all_gather,4096,half,2.27.3,12.5,somebody")
    [row] = load_measurements([path])
    assert (row.topology, row.hosts, row.ranks) == ("dgx_a100", 2, 16)
    assert row.kind is CollectiveKind.ALL_GATHER
    assert row.dtype is DType.FP16
    assert row.nccl_version == (2, 27, 3)
    assert row.duration_ns == 12_500
    assert row.wiring().host_count == 2
    assert row.software.nccl_version == (2, 27, 3)
    assert row.group == "dgx_a100 2x8 all_gather nccl 2.27.3"


def test_a_row_that_does_not_say_its_release_ran_with_todays(tmp_path):
    [row] = load_measurements([table(tmp_path, "dgx_a100,1,8,all_reduce,8,,,1.0,")])
    assert row.software == CollectiveSoftware()
    assert row.group == "dgx_a100 one host all_reduce nccl ?"


def test_rows_of_several_tables_carry_the_name_of_theirs(tmp_path):
    line = "dgx_a100,1,8,all_reduce,8,,,1.0,"
    paths = [table(tmp_path, line, name="a.csv"), table(tmp_path, line, name="b.csv")]
    assert [row.row for row in load_measurements(paths)] == ["a:0", "b:0"]


def test_missing_columns_and_rows_and_tables_are_named(tmp_path):
    with pytest.raises(MeasurementError, match="time_us"):
        load_measurements([table(tmp_path, heading="topology,hosts\n")])
    with pytest.raises(MeasurementError, match="at least one measurement"):
        load_measurements([table(tmp_path)])
    with pytest.raises(MeasurementError, match=r"nothing\.csv"):
        load_measurements([tmp_path / "nothing.csv"])


@pytest.mark.parametrize(
    ("hosts", "ranks", "size", "time", "fault"),
    [
        (1, 8, 8, "0.001", None), (1, 8, 8, "0.0009", "time_us"), (1, 8, 8, "1e12", None),
        (1, 8, 8, "1.1e12", "time_us"), (1, 8, 8, "", "time_us"), (1, 8, 0, 1, None),
        (1, 8, 2**50, 1, None), (1, 8, 2**50 + 1, 1, "size_bytes"), (1, 8, "", 1, "size_bytes"),
        (2**20, 2**20, 8, 1, None), (1, 2**20 + 1, 8, 1, "1048577 ranks"),
        ("", 8, 8, 1, "over 0 hosts"), (1, "", 8, 1, "0 ranks"), (4, 2, 8, 1, "2 ranks"),
        (3, 8, 8, 1, "over 3 hosts"),
    ],
)  # fmt: skip
def test_numbers_of_a_row_have_bounds(tmp_path, hosts, ranks, size, time, fault):
    path = table(tmp_path, f"dgx_a100,{hosts},{ranks},all_reduce,{size},,,{time},")
    if fault is None:
        assert len(load_measurements([path])) == 1
        return
    with pytest.raises(MeasurementError, match=fault):
        load_measurements([path])


def test_a_row_is_named_by_its_id_or_its_number(tmp_path):
    heading = "id," + HEADING
    path = table(
        tmp_path,
        "first,dgx_a100,1,8,all_reduce,8,,,1.0,",
        ",dgx_a100,1,8,all_reduce,8,,,1.0,",
        heading=heading,
    )
    assert [row.row for row in load_measurements([path])] == ["first", "1"]
