import pytest

from perfmodel.api import DType, Gemm, price_kernel, sweep_collective
from perfmodel.reports.html import to_page
from perfmodel.reports.op_prices import report_sizes
from perfmodel.reports.terminal import to_text


def test_a_sweep_is_a_table_with_switches_and_a_curve_on_a_page():
    found = sweep_collective("all_reduce", topology="dgx_h100")
    text = to_text(report_sizes(found))
    assert "512 B" in text
    assert "<- NCCL switches here" in text
    # One point for each power of two from 512 B to 1 GiB.
    assert to_page(report_sizes(found)).count("<circle") == 22


@pytest.mark.parametrize(
    ("dtype", "operand_bytes", "result_bytes"),
    [(DType.FP8, 1, 2), (DType.BF16, 2, 2), (DType.FP32, 4, 4)],
)
def test_the_result_of_a_narrow_product_is_in_half_precision(dtype, operand_bytes, result_bytes):
    found = price_kernel(Gemm(m=256, n=512, k=1024, dtype=dtype), device="h100_sxm")

    moved = operand_bytes * (256 + 512) * 1024 + result_bytes * 256 * 512
    assert found.gigabytes_per_s * found.time_ms == pytest.approx(moved / 1e6, rel=1e-3)
