import pytest


def test_a_product_is_answered_with_time_rate_bound_and_interval(typed):
    words = "kernel gemm --device h100_sxm --m 4096 --n 4096 --k 4096 --dtype bf16 --json -"
    answer = typed(words).document
    assert answer["schema_version"] == 1
    low, high = answer["interval_ms"]
    assert low < answer["time_ms"] < high
    # 2 x 4096^3 operations over the time; never beyond the datasheet's 989.4 TFLOP/s.
    assert answer["tflops"] == pytest.approx(2 * 4096**3 / answer["time_ms"] / 1e9, rel=1e-6)
    assert 500 < answer["tflops"] < 989.4
    assert answer["bound"] == "compute"
    assert answer["provenance"] == "interpolated"


@pytest.mark.parametrize(
    ("words", "op"),
    [
        ("gemm --m 64 --n 8 --k 16 --batch 3", {"m": 64, "n": 8, "k": 16, "batch": 3}),
        ("attention --length 512 --heads 8", {"heads": 8, "kv_heads": 8, "query_length": 512}),
        ("attention --length 512 --heads 8 --kv-heads 2 --full --backward --dtype fp16",
         {"kv_heads": 2, "is_causal": False, "direction": "backward", "dtype": "fp16"}),
        ("memory --operator gelu --read 1MiB --write 2MiB --row-length 5",
         {"operator": "gelu", "read_bytes": 2**20, "write_bytes": 2**21, "row_length": 5}),
        ("memory --operator fill --read 0B --write 2MiB", {"read_bytes": 0, "write_bytes": 2**21}),
    ],
)  # fmt: skip
def test_the_options_are_the_shape_of_the_kernel(typed, monkeypatch, words, op):
    asked = []
    monkeypatch.setattr("perfmodel.api.price_kernel", lambda op, **_: asked.append(op) or 1 / 0)
    typed(f"kernel {words} --device h100_sxm", code=1)
    for name, value in op.items():
        found = getattr(asked[0], name)
        assert getattr(found, "value", found) == value


def test_people_get_sentences(typed):
    told = typed("kernel attention --device a100_sxm_80gb --length 2048 --heads 16 --causal").out
    assert "limited by" in told
    assert "90 %" in told


def test_an_unknown_device_is_refused(typed):
    assert "warp9" in typed("kernel gemm --device warp9 --m 1 --n 1 --k 1", code=1).said


def test_calibration_says_what_it_needs(typed, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("op,device,latency_ms,B,H\nadd,NVIDIA A100 80GB PCIe,1,10,10\n")
    assert "--out" in typed("calibrate kernels", table, code=2).said
