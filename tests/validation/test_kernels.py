import pytest

from perfmodel.validation.kernels import validate_table


def limits(board, words: str) -> float:
    scores = [score for name, score in board.groups.items() if words in name]
    return max(score.mape_pct for score in scores)


def test_a_device_nobody_knows_is_listed_and_the_others_are_scored(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        "device,m,n,k,latency_ms\nNVIDIA H200,4096,4096,4096,0.2\nWarp9,64,64,64,0.01\n"
        "NVIDIA B300 SXM6 AC,8192,8192,8192,0.7\nl4,4096,4096,4096,1.6\n"
    )
    board = validate_table("gemm", path)
    assert [one.row for one in board.deviations] == ["0", "2", "3"]
    assert [one.row for one in board.unsupported] == ["1"]


@pytest.mark.parametrize(("table", "limit"), [("elem", 4), ("ln", 5), ("softmax", 5)])
def test_fp32_operators_are_within_their_limit(shared_data, table, limit):
    assert (
        limits(validate_table("memory", shared_data / f"memory/fp32_{table}.csv.gz"), "fp32")
        < limit
    )


@pytest.mark.parametrize("table", ["linear", "bmm"])
def test_fp32_products_are_within_eight_per_cent(shared_data, table):
    assert limits(validate_table("gemm", shared_data / f"memory/fp32_{table}.csv.gz"), table) < 8


def test_products_on_l40s_are_within_eight_per_cent(shared_data):
    assert limits(validate_table("gemm", shared_data / "gemm/l40s.csv.gz"), "trtllm") < 8


def test_attention_backward_is_within_ten_per_cent(shared_data):
    board = validate_table("attention", shared_data / "attention/forward_backward_h200.csv")
    assert limits(board, "bf16 NVIDIA H200 cudnn/backward") < 10
