import numpy as np
import pytest

from experiments.fitting.kernels.attention import fit_attention_entry
from experiments.fitting.kernels.constants import alone_ns
from perfmodel.base.dtypes import DType
from perfmodel.costs.attention import AttentionModel, attention_shapes, forward_constants
from perfmodel.costs.attention_kernels import variant_of
from perfmodel.costs.attention_physics import (
    AttentionConstants,
    BackwardConstants,
    predict_backward_ns,
    predict_forward_times,
)
from perfmodel.costs.gemm_features import machine_rates
from perfmodel.extensions.measurements.measured_kernels import KernelTable, MeasuredKernel
from perfmodel.graph.ops import Attention, Pass
from perfmodel.stacks.profiles import load_stack
from tests.costs.devices import load_device

DEVICE = "h100_sxm"
TRUTH = AttentionConstants(
    floor_ns=9000, compute_ratio=0.8, pair_clocks=0.04, query_tile=192, wide_query_tile=128,
    tile_clocks=300, tail_ratio=0.9, balance=3.0, traffic_bytes_per_clock=10.0,
    sustained_loss=0.05, sustained_after_ns=1e6,
)  # fmt: skip
RELATION = BackwardConstants(backward_forwards=2.9, backward_passes=1.5)


def table(lengths, kernel: str, head_dims=(64, 128), directions=(Pass.FORWARD,)) -> KernelTable:
    ops = [
        Attention(
            batch=batch, query_length=length, key_length=length, heads=heads, kv_heads=heads,
            head_dim=head_dim, dtype=DType.BF16, is_causal=False, direction=direction,
            kernel=kernel,
        )
        for batch in (1, 4) for heads in (5, 16, 32) for length in lengths
        for head_dim in head_dims for direction in directions
    ]  # fmt: skip
    shapes, machine = attention_shapes(ops), machine_rates(load_device(DEVICE), DType.BF16)
    forward_ns = predict_forward_times(shapes, machine, TRUTH).duration_ns
    backward_ns = predict_backward_ns(shapes, machine, RELATION, forward_ns=forward_ns)
    times = np.where(shapes.is_backward, backward_ns, forward_ns)
    return KernelTable(
        tuple(
            MeasuredKernel(str(row), ("c", "gpu", "op"), {}, op, DEVICE, float(time_ns))
            for row, (op, time_ns) in enumerate(zip(ops, times, strict=True))
        ),
        (),
    )


def test_few_rows_tell_efficiency_and_how_backward_follows_forward():
    rows = table((1024, 4096, 16384), "cudnn", (128,), (Pass.FORWARD, Pass.BACKWARD))
    entry = fit_attention_entry(rows, DEVICE)
    assert entry.variant == "cudnn/full"
    assert entry.ordered is None
    assert entry.constants["backward_forwards"] == pytest.approx(2.9, rel=0.05)


def test_many_rows_tell_the_length_of_tiles_and_give_back_their_times():
    rows = table([128 * place for place in range(4, 40, 2)], "made_up")
    entry = fit_attention_entry(rows, DEVICE)
    assert (forward_constants(entry).query_tile, forward_constants(entry).wide_query_tile) == (
        192, 128,
    )  # fmt: skip
    ops = [kernel.op for kernel in rows.kernels]
    stack = load_stack("kernel_benchmark")
    priced = AttentionModel([entry]).price(ops, load_device(DEVICE), stack)
    assert np.mean(np.abs(priced.duration_ns / alone_ns(rows) - 1)) < 0.02


def test_half_precision_needs_no_word_in_a_variant():
    op = table((1024,), "cudnn").kernels[0].op
    assert variant_of(op) == "cudnn/full"
