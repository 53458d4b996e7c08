"""What every kernel model keeps, whatever it prices.

Each role is a pair of ops, the second of which does more of the same work.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance
from perfmodel.costs.models import MODELS
from perfmodel.graph.ops import (
    Attention,
    Convolution,
    Copy,
    CopyRoute,
    EmbeddingOp,
    Fixed,
    Gemm,
    GroupedGemm,
    HostPart,
    HostSpan,
    HostWork,
    MemoryBound,
    Pass,
    Unmeasured,
)
from perfmodel.stacks.profiles import load_stack
from tests.costs.devices import load_device

STACK = load_stack("pytorch_fused")
DEVICES = ("a100_sxm_80gb", "h100_sxm", "l40s", "b200_sxm", "gb300", "v100_sxm2_16gb")
STEP_RATIO = np.exp(2 * 0.03)
"""Products carry a bounded correction that may go against the order, twice at most."""


@dataclass(frozen=True)
class Role:
    """Ops of one type by *scale* of their work; *slack* is how far time may fall with more."""

    name: str
    op: Callable[[int], Any]
    slack: float = 1.0


def lookup(scale: int) -> EmbeddingOp:
    table = EmbeddingTable("t", rows=100_000, width=64, dtype=DType.FP32)
    return EmbeddingOp(Lookup((table,), batch_size=256 * scale))


ROLES = (
    Role("gemm", lambda scale: Gemm(128, 512, 256 * scale, DType.BF16), STEP_RATIO),
    Role("fp32 gemm", lambda scale: Gemm(128 * scale, 512, 4096, DType.FP32)),
    Role("attention", lambda scale: Attention(
        scale, 1024, 1024, 16, 16, 128, DType.BF16, is_causal=True)),
    Role("attention backward", lambda scale: Attention(
        2, 256 * scale, 256 * scale, 16, 4, 64, DType.BF16, is_causal=True,
        direction=Pass.BACKWARD)),
    Role("memory", lambda scale: MemoryBound("add", 100_000 * scale, 50_000 * scale, DType.BF16)),
    Role("norm", lambda scale: MemoryBound(
        "layer_norm", 100_000 * scale, 100_000 * scale, DType.BF16, row_length=1024)),
    Role("unknown word", lambda scale: MemoryBound("frobnicate", 1000 * scale, 0, DType.FP32)),
    Role("convolution", lambda scale: Convolution(
        1_000 * scale, 64, 576, DType.BF16,
        read_bytes=100_000 * scale, write_bytes=128_000 * scale),
        slack=1.06),
    Role("experts", lambda scale: GroupedGemm(8, 16 * scale, 1024, 1024, DType.BF16), slack=1.06),
    Role("unmeasured", lambda scale: Unmeasured(
        "scan", 10**9 * scale, 10**6 * scale, 10**6 * scale, DType.BF16, steps=scale)),
    Role("lookup", lookup),
    Role("copy", lambda scale: Copy(CopyRoute.HOST_TO_DEVICE, 10_000 * scale)),
    Role("host span", lambda scale: HostSpan((HostWork("add", HostPart.LAUNCH),) * scale)),
    Role("fixed", lambda scale: Fixed("recorded", 100 * scale)),
)  # fmt: skip
ALL_ROLES = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
FEW = settings(max_examples=12)
"""Times roles and devices that is enough, and more would be the slowest suite of all."""
scales = st.integers(1, 64)
devices = st.sampled_from(DEVICES)


def price(ops, device: str):
    [kind] = {type(op) for op in ops}
    return MODELS[kind].price(list(ops), load_device(device), STACK)


def test_every_model_has_a_role_here():
    covered = {type(role.op(1)) for role in ROLES} | {HostWork}
    assert covered == set(MODELS)


@ALL_ROLES
@FEW
@given(small=scales, large=scales, device=devices)
def test_more_work_never_takes_less_time(role, small, large, device):
    small, large = sorted((small, large))
    less, more = price([role.op(small), role.op(large)], device).duration_ns
    assert less <= more * role.slack * (1 + 1e-9)


@ALL_ROLES
@FEW
@given(scale=scales, device=devices)
def test_an_estimate_is_positive_finite_and_says_how_it_is_known(role, scale, device):
    [duration_ns], [sigma], [provenance] = (
        getattr(price([role.op(scale)], device), name)
        for name in ("duration_ns", "relative_sigma", "provenance")
    )
    assert 0 < duration_ns < np.inf
    assert Provenance(provenance) in Provenance
    # What was recorded is known; everything else is not certain.
    assert sigma > 0 or provenance == Provenance.RECORDED


@ALL_ROLES
@FEW
@given(many=st.lists(scales, min_size=1, max_size=6), device=devices)
def test_pricing_many_equals_pricing_one_by_one(role, many, device):
    together = price([role.op(scale) for scale in many], device)
    for row, scale in enumerate(many):
        alone = price([role.op(scale)], device)
        assert together.duration_ns[row] == pytest.approx(alone.duration_ns[0], rel=1e-6)
        assert together.relative_sigma[row] == pytest.approx(alone.relative_sigma[0], rel=1e-5)
        assert together.provenance[row] == alone.provenance[0]


@ALL_ROLES
def test_no_ops_have_no_estimates(role):
    kind = type(role.op(1))
    assert len(MODELS[kind].price([], load_device("h100_sxm"), STACK)) == 0


@pytest.mark.parametrize("dtype", [DType.FP8, DType.FP8_BLOCK, DType.MXFP8, DType.NVFP4])
@FEW
@given(scale=scales)
def test_quantised_products_keep_the_same_rules(dtype, scale):
    op = Gemm(128, 512, 256 * scale, dtype)
    priced = price([op, replace(op, n=4096)], "b200_sxm")
    assert 0 < priced.duration_ns[0] <= priced.duration_ns[1] * STEP_RATIO
    assert np.all(priced.relative_sigma > 0)
