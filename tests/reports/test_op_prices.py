from perfmodel.api import sweep_collective
from perfmodel.reports.op_prices import report_sizes
from perfmodel.reports.terminal import to_text


def test_a_sweep_is_a_table_with_switches_and_a_picture(tmp_path):
    found = sweep_collective("all_reduce", topology="dgx_h100")
    path = tmp_path / "sizes.png"
    found.plot(path)

    assert path.read_bytes()[:4] == b"\x89PNG"
    text = to_text(report_sizes(found))
    assert "512 B" in text
    assert "<- NCCL switches here" in text
