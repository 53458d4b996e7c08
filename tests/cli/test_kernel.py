import json

import pytest

from perfmodel.cli import main


def run(capsys, *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    code = stop.value.code
    captured = capsys.readouterr()
    return (code if isinstance(code, int) else 0), captured.out + captured.err


def test_a_product_is_answered_with_time_rate_bound_and_interval(capsys):
    words = "kernel --device h100_sxm gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --json -"
    code, text = run(capsys, *words.split())
    answer = json.loads(text)
    assert code == 0
    assert answer["schema_version"] == 1
    low, high = answer["interval_ms"]
    assert low < answer["time_ms"] < high
    # 2 x 4096^3 operations over the time; never beyond the datasheet's 989.4 TFLOP/s.
    assert answer["tflops"] == pytest.approx(2 * 4096**3 / answer["time_ms"] / 1e9, rel=1e-6)
    assert 500 < answer["tflops"] < 989.4
    assert answer["bound"] == "compute"
    assert answer["provenance"] == "interpolated"


def test_people_get_sentences(capsys):
    words = "kernel --device a100_sxm_80gb attention --length 2048 --heads 16 --causal"
    code, text = run(capsys, *words.split())
    assert code == 0
    assert "bound by" in text
    assert "90 %" in text


def test_an_unknown_device_is_refused(capsys):
    words = "kernel --device warp9 gemm --m 1 --n 1 --k 1"
    code, text = run(capsys, *words.split())
    assert code == 1
    assert "warp9" in text


def test_calibration_says_what_it_needs(capsys, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("op,device,latency_ms,B,H\nadd,NVIDIA A100 80GB PCIe,1,10,10\n")
    code, text = run(capsys, "calibrate", "memory", str(table))
    assert code == 1
    assert "--out" in text
