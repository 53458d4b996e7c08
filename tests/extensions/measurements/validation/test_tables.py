import pytest

from collectives.measurements import load_measurements
from perfmodel.extensions.measurements.validation.tables import (
    validate_collectives,
    validate_kernels,
)


def test_a_device_nobody_knows_is_listed_and_the_others_are_scored(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        "device,m,n,k,latency_ms\nNVIDIA H200,4096,4096,4096,0.2\nWarp9,64,64,64,0.01\n"
        "NVIDIA B300 SXM6 AC,8192,8192,8192,0.7\nl4,4096,4096,4096,1.6\n"
    )
    board = validate_kernels("gemm", path)
    assert [one.row for one in board.deviations] == ["0", "2", "3"]
    assert [one.row for one in board.unsupported] == ["1"]


@pytest.mark.parametrize(
    ("kind", "table", "words", "limit"),
    [
        ("memory", "memory/fp32_elem.csv.gz", "fp32", 4),
        ("memory", "memory/fp32_ln.csv.gz", "fp32", 5),
        ("memory", "memory/fp32_softmax.csv.gz", "fp32", 5),
        ("gemm", "memory/fp32_linear.csv.gz", "linear", 8),
        ("gemm", "memory/fp32_bmm.csv.gz", "bmm", 8),
        ("gemm", "gemm/l40s.csv.gz", "trtllm", 8),
        ("attention", "attention/forward_backward_h200.csv", "bf16 NVIDIA H200 cudnn/backward", 10),
    ],
)
def test_kernels_are_within_their_limit(shared_data, kind, table, words, limit):
    board = validate_kernels(kind, shared_data / table)
    scores = [score for name, score in board.groups.items() if words in name]
    assert max(score.mape_pct for score in scores) < limit


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


@pytest.fixture(scope="module")
def board(shared_data):
    tables = sorted((shared_data / "collectives").glob("*.csv"))
    return validate_collectives(load_measurements(tables))


def test_the_shipped_constants_meet_every_row_of_the_measured_tables(board):
    assert not board.unsupported
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
