import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.attention import AttentionModel, attention_shapes
from perfmodel.costs.calibration_files import load_entries
from perfmodel.graph.ops import Attention, Pass
from perfmodel.stacks.profiles import load_stack
from tests.costs.devices import load_device

STACK = load_stack("pytorch_fused")
SLOW_STACK = load_stack("llm_foundry")
"""Arithmetic takes much longer under its long load, which must not upset the order."""
CALL = Attention(
    batch=2, query_length=4096, key_length=4096, heads=32, kv_heads=8, head_dim=128,
    dtype=DType.BF16, is_causal=True,
)  # fmt: skip


def price(*ops: Attention, device: str = "h100_sxm"):
    return AttentionModel().price(list(ops), load_device(device), STACK)


def duration_ns(op: Attention, device: str = "h100_sxm") -> float:
    return float(price(op, device=device).duration_ns[0])


def test_a_causal_tile_row_passes_over_half_the_keys_and_its_diagonal():
    # 4096 / 128 = 32 tiles of queries; the first sees 2 of 64 keys, the last 64: on average 33.
    assert attention_shapes([CALL]).key_tiles(128)[0] == pytest.approx(33)
    assert attention_shapes([replace(CALL, is_causal=False)]).key_tiles(128)[0] == 64
    # 256 queries of 320: tiles of 192 see the 64 earlier keys and 192, then all: 4 and 5.
    late = replace(CALL, query_length=256, key_length=320)
    assert attention_shapes([late]).key_tiles(192)[0] == pytest.approx(4.5)


@pytest.mark.parametrize("device", ["a100_sxm_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l40s"])
def test_backward_takes_two_to_five_forwards(device):
    forward = duration_ns(CALL, device)
    backward = duration_ns(replace(CALL, direction=Pass.BACKWARD), device)
    assert 2.0 < backward / forward < 5.0


def test_no_kernel_beats_the_datasheet():
    # 4 x 2 x 32 x 4096^2 x 128 / 2 operations at 989.4 TFLOP/s take 278 us.
    assert duration_ns(CALL) > 278_000


def test_flash2_runs_on_hopper_at_the_rate_of_amperes_instructions():
    # Published for H100, 16384 tokens, 16 heads of 128, length 4096, causal: 319 TFLOP/s by
    # flash-attention 2 and 579 by 3 (arXiv 2407.08608): 4 x 4 x 16 x 4096^2 x 128 / 2 operations.
    operations = 4 * 4 * 16 * 4096**2 * 128 / 2
    for kernel, tflops in (("flash2", 319), ("flash3", 579)):
        call = replace(CALL, batch=4, heads=16, kv_heads=16, kernel=kernel)
        assert operations / duration_ns(call) / 1e3 == pytest.approx(tflops, rel=0.15)


@pytest.mark.parametrize(("kernel", "tflops"), [("flash2", 310), ("flash3", 542), ("cudnn", 499)])
def test_backward_follows_its_own_forward(kernel, tflops):
    # Published backward rates on H100 for the same shape without a mask: ten operations a pair.
    call = replace(
        CALL, batch=4, heads=16, kv_heads=16, is_causal=False, direction=Pass.BACKWARD,
        kernel=kernel,
    )  # fmt: skip
    operations = 10 * 4 * 16 * 4096**2 * 128
    assert operations / duration_ns(call) / 1e3 == pytest.approx(tflops, rel=0.15)


def test_only_benchmarks_of_serving_write_a_cache():
    assert duration_ns(replace(CALL, kernel="fa3")) > duration_ns(replace(CALL, kernel="flash3"))


def test_what_was_not_measured_is_extrapolated_and_less_sure():
    flash2 = replace(CALL, kernel="flash2")
    own, carried = price(flash2, device="a100_sxm_80gb"), price(flash2)
    assert own.provenance[0] == Provenance.INTERPOLATED
    assert carried.provenance[0] == Provenance.EXTRAPOLATED
    assert carried.relative_sigma[0] > own.relative_sigma[0]


def test_a_few_rows_of_one_head_size_say_little_about_others():
    ops = [replace(CALL, kernel="cudnn", head_dim=size) for size in (128, 64)]
    priced = price(*ops, device="h200_sxm")
    assert priced.provenance.tolist() == [Provenance.INTERPOLATED, Provenance.EXTRAPOLATED]
    assert priced.relative_sigma[1] > 2 * priced.relative_sigma[0]


def test_flash1_is_assumed_to_take_twice_as_long_as_flash2():
    ops = [replace(CALL, kernel=name) for name in ("flash1", "flash2")]
    priced = price(*ops, device="a100_sxm_80gb")
    assert priced.duration_ns[0] == pytest.approx(2 * priced.duration_ns[1])
    assert priced.provenance[0] == Provenance.ASSUMED


def test_the_kernel_used_is_told():
    words = AttentionModel().describe(CALL, load_device("h100_sxm"), STACK)
    assert words == "flash3: fa3/causal measured on h100_sxm without its cache write"


def test_unfused_attention_pays_for_its_scores():
    assert duration_ns(replace(CALL, kernel="unfused")) > 3 * duration_ns(CALL)


@pytest.mark.parametrize(
    ("device", "kernel"),
    [
        ("a100_sxm_80gb", "flash2"), ("h100_sxm", "flash2"), ("h100_sxm", "flash3"),
        ("h100_sxm", "fa3"), ("h200_sxm", "flash3"), ("h200_sxm", "cudnn"),
        ("h200_sxm", "flash_attention_v3"), ("l40s", "flash2"), ("b200_sxm", "cudnn"),
    ],
)  # fmt: skip
@given(
    sizes=st.fixed_dictionaries(
        {
            "batch": st.integers(1, 300),
            "length": st.integers(16, 40_000),
            "heads": st.integers(1, 128),
            "head_dim": st.integers(16, 256),
        }
    ),
    grown=st.sampled_from(["batch", "length", "heads", "head_dim"]),
    factor=st.floats(1.0, 4.0),
    is_causal=st.booleans(),
    direction=st.sampled_from(Pass),
    is_grouped=st.booleans(),
)
def test_more_work_never_takes_less_time(device, kernel, sizes, grown, factor, **call):
    is_grouped = call.pop("is_grouped")
    ops = [
        Attention(
            batch=shape["batch"], query_length=shape["length"], key_length=shape["length"],
            heads=shape["heads"], kv_heads=1 if is_grouped else shape["heads"],
            head_dim=shape["head_dim"], dtype=DType.BF16, kernel=kernel, **call,
        )
        for shape in (sizes, {**sizes, grown: math.ceil(factor * sizes[grown])})
    ]  # fmt: skip
    small, large = AttentionModel().price(ops, load_device(device), SLOW_STACK).duration_ns
    assert large >= small * (1 - 1e-12)


def test_a_measured_kernel_beyond_its_chips_is_priced_as_its_generation():
    # Nobody measured `flash_attention` on an L40S; another of its generation was.
    entries = [entry for entry in load_entries("attention") if entry.device == "l40s"]
    model = AttentionModel(entries)
    words = model.describe(replace(CALL, kernel="flash_attention"), load_device("l40s"), STACK)
    assert "vllm_flash_attn_fa2/causal" in words


def test_an_unknown_kernel_is_refused_by_name():
    with pytest.raises(CalibrationError, match="flash9"):
        duration_ns(replace(CALL, kernel="flash9"))


def test_order_is_kept_when_kernels_are_mixed():
    ops = [replace(CALL, kernel="unfused"), CALL, replace(CALL, direction=Pass.BACKWARD)]
    assert price(*ops).duration_ns.tolist() == [duration_ns(op) for op in ops]
