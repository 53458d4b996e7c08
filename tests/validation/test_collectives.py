import pytest

from collectives.measurements import load_measurements
from perfmodel.validation.collectives import validate_collectives

HEADING = "topology,hosts,nranks,collective,size_bytes,dtype,nccl_version,time_us,source\n"


def test_rows_that_cannot_be_predicted_are_listed_with_their_reason(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        HEADING
        + "dgx_h100,1,8,all_reduce,1048576,half,2.27.3,25.0,x\n"
        + "dgx_z900,1,8,all_reduce,1048576,half,2.27.3,25.0,x\n"
        + "dgx_h100,1,1,all_reduce,1048576,half,2.27.3,25.0,x\n"
        + "dgx_h100,1,16,all_reduce,1048576,half,2.27.3,25.0,x\n",
        encoding="utf-8",
    )
    board = validate_collectives(load_measurements([path]))
    assert len(board.deviations) == 1
    assert [one.row for one in board.unsupported] == ["1", "3", "2"]
    assert "dgx_z900" in board.unsupported[0].reason


def _tables(shared_data):
    return sorted((shared_data / "collectives").glob("*.csv"))


@pytest.fixture(scope="module")
def board(shared_data):
    return validate_collectives(load_measurements(_tables(shared_data)))


def test_every_measured_row_is_predicted(board):
    assert not board.unsupported


def test_the_shipped_constants_meet_the_measured_tables(board):
    assert board.overall.mape_pct < 6
    assert 85 <= board.overall.inside_interval_pct <= 95


@pytest.mark.parametrize(
    ("group", "limit_pct"),
    [
        ("dgx_a100 one host all_reduce nccl 2.27.3", 7),
        ("dgx_a100 one host all_to_all nccl 2.27.3", 7),
        ("dgx_h100 one host all_gather nccl 2.27.3", 7),
        ("dgx_h100 one host all_reduce nccl 2.27.3", 7),
        ("dgx_h100 one host all_to_all nccl 2.27.3", 7),
        ("dgx1_v100 one host all_reduce nccl ?", 4),
        ("aws_p4d 2x8 all_reduce nccl ?", 15),
        ("dgx_a100 2x8 all_reduce nccl ?", 15),
    ],
)
def test_each_group_stays_within_its_limit(board, group, limit_pct):
    assert board.groups[group].mape_pct <= limit_pct
