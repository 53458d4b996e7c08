"""Kernels that a user timed: worked by hand, read from tables, and what they move."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfmodel import api
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.costs.models import price_ops
from perfmodel.extensions.measurements.calibration import own_kernels
from perfmodel.extensions.measurements.calibration.kernel_rows import read_tables
from perfmodel.extensions.measurements.calibration.own_kernels import (
    COMMON,
    NOISE,
    OCTAVES,
    SIGMA,
    Learning,
    name_kernel,
    op_of,
    row_of,
    spot_of,
)
from perfmodel.graph.ops import Attention, Gemm, GroupedGemm, MemoryBound, Pass
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

SMALL, LARGE = Gemm(1023, 1023, 1023, DType.BF16), Gemm(8191, 1023, 1023, DType.BF16)


def test_a_timed_kernel_moves_its_own_price_most_and_those_of_its_kind_less():
    found = Learning((spot_of(SMALL),), (0.1,))

    logs, left = found.answer([spot_of(SMALL), spot_of(LARGE), spot_of(MEMORY)])

    # Of itself SIGMA^2 is known but for the noise of one measurement; eight times m is three
    # doublings away; another kind of kernel is not touched.
    whole = SIGMA**2 + NOISE**2
    near = COMMON + (1 - COMMON) * math.exp(-(3**2) / (2 * OCTAVES**2))
    assert logs == pytest.approx([0.1 * SIGMA**2 / whole, 0.1 * near * SIGMA**2 / whole, 0.0])
    assert left == pytest.approx([NOISE**2 / whole, 1 - near**2 * SIGMA**2 / whole, 1.0])


MEMORY = MemoryBound("swiglu", 2**20, 2**19, DType.BF16)
OPS = (
    SMALL,
    MEMORY,
    GroupedGemm(8, 64, 128, 256, DType.BF16),
    Attention(
        batch=1, query_length=128, key_length=128, heads=4, kv_heads=2, head_dim=64,
        dtype=DType.BF16, is_causal=True, direction=Pass.BACKWARD,
    ),
)  # fmt: skip


def test_attention_by_another_kernel_says_only_what_kinds_have_in_common():
    device, stack = load_device("b200_sxm"), load_stack("nemo")
    job, named = OPS[-1], replace(OPS[-1], kernel="flash2")
    spots = [spot_of(name_kernel(op, device, stack)) for op in (job, named)]

    assert name_kernel(job, device, stack).kernel == "cudnn"
    logs, _ = Learning((spots[1],), (0.1,)).answer(spots)
    assert logs[0] == pytest.approx(COMMON * logs[1])


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_cells_of_a_table_give_back_the_op(op):
    kind = next(word for word, known in own_kernels.KINDS.items() if known is type(op))

    # As a CSV file holds them.
    assert op_of(kind, {name: str(value) for name, value in row_of(op).items()}) == op


def write(path, rows, under_load=1):
    """A table of GEMMs: m, n, k and milliseconds of each of *rows*."""
    lines = [f"b200_sxm,bf16,{under_load},{m},{n},{k},{ms}" for m, n, k, ms in rows]
    path.write_text("device,dtype,under_load,m,n,k,latency_ms\n" + "\n".join(lines) + "\n")
    return path


SHAPES = ((4096, 8192, 8192), (4096, 28672, 8192), (8192, 8192, 4096))


def prices_ms(*, is_alone):
    """What perfmodel has for SHAPES, under load or alone."""
    ops = [Gemm(*one, DType.BF16) for one in SHAPES]
    device, stack = load_device("b200_sxm"), load_stack("kernel_benchmark")
    return price_ops(ops, device=device, stack=stack, is_alone=is_alone).duration_ns / 1e6


@pytest.mark.parametrize("is_alone", [False, True], ids=["under load", "in a burst"])
def test_a_time_that_is_as_predicted_changes_nothing_however_it_was_timed(tmp_path, is_alone):
    rows = [(*one, ms) for one, ms in zip(SHAPES, prices_ms(is_alone=is_alone), strict=True)]
    table = write(tmp_path / "t.csv", rows, under_load=int(not is_alone))
    api.calibrate_kernels([table], tmp_path / "k.yaml")
    device = replace(load_device("b200_sxm"), calibrations=(str(tmp_path / "k.yaml"),))
    ops = [Gemm(*one, DType.BF16) for one in SHAPES]

    found = price_ops(ops, device=device, stack=load_stack("megatron"))
    shipped = price_ops(ops, device=load_device("b200_sxm"), stack=load_stack("megatron"))

    # The slowdown of a long run counts once. Weights of a benchmark are in the cache, so near.
    assert found.duration_ns == pytest.approx(shipped.duration_ns, rel=0.05)
    assert np.all(found.relative_sigma < shipped.relative_sigma)


def test_a_table_in_another_unit_is_refused(tmp_path):
    rows = [(*one, 1e3 * ms) for one, ms in zip(SHAPES, prices_ms(is_alone=False), strict=True)]

    with pytest.raises(MeasurementError, match="unit"):
        api.calibrate_kernels([write(tmp_path / "t.csv", rows)], tmp_path / "k.yaml")


def test_rows_that_cannot_be_read_are_named(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(
        "kind,device,m,n,k,latency_ms,under_load\n"
        "gemm,b200_sxm,4096,8192,8192,0.5,1\n"
        "gemm,some_gpu,4096,8192,8192,0.5,1\n"
        "gemm,b200_sxm,4096,8192,-1,0.5,1\n"
        "dance,b200_sxm,4096,8192,8192,0.5,1\n"
        "gemm,b200_sxm,4096,8192,8192,0.5,2\n"
    )

    found, _ = read_tables([table], None)

    assert len(found.kernels) == 1
    reasons = [one.reason for one in found.unsupported]
    for reason, word in zip(reasons, ("device", "below 0", "kind", "under_load"), strict=True):
        assert word in reason


def test_gradients_stated_by_the_sizes_of_the_forward_product_are_put_in_order(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(
        "op,stage,device,groups,m_per_group,n,k,latency_ms,under_load\n"
        "group_matmul,wgrad,b200_sxm,20,1232,3072,5120,1.05,1\n"
    )

    [kernel] = read_tables([table], None)[0].kernels

    # The gradient of a weight of 3,072 x 5,120 sums over 1,232 tokens.
    assert kernel.op == GroupedGemm(20, 3072, 5120, 1232, DType.BF16)


def test_rates_of_attention_count_all_pairs_and_five_products_backward(tmp_path):
    header = "device,op,under_load,latency_ms,batch,seq_len,num_heads,num_key_value_heads,"
    header += "qk_head_dim,v_head_dim,tflops"
    rows = [f"b200_sxm,{word},1,,1,4096,64,8,192,128,1000" for word in ("sdp_fwd", "sdp_bwd")]
    table = tmp_path / "sdp.csv"
    table.write_text("\n".join([header, *rows]) + "\n")

    forward, backward = read_tables([table], None)[0].kernels

    # 2 x 4096^2 pairs x 64 heads x (192 + 128) = 0.687e12 operations at 1e15 a second.
    assert forward.measured_ns == pytest.approx(687.2e3, rel=1e-3)
    assert backward.measured_ns == pytest.approx(2.5 * forward.measured_ns)
    assert (forward.op.head_dim, forward.op.kv_heads, forward.op.is_causal) == (160, 8, True)
    assert backward.op.direction is Pass.BACKWARD
