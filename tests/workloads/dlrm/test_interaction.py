"""Models that add sums to the output of their top layers: kernels and bytes."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import InputError
from perfmodel.graph.audit import check_job
from perfmodel.graph.ops import Gemm, MemoryBound
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import build_job
from perfmodel.workloads.catalog import parse_workload
from perfmodel.workloads.dlrm.spec import DlrmSpec
from tests.workloads.reading import iter_ops

SAMPLES = 10


def _spec(interaction: str, widths: list[int], bottom: list[int]) -> DlrmSpec:
    dense = {"features": 13, "bottom_mlp": bottom, "top_mlp": [32, 1], "interaction": interaction}
    spec = parse_workload(
        {
            "name": "small", "family": "dlrm", "batch": SAMPLES, "dense": dense,
            "embedding": {"rows": [100] * len(widths), "width": widths},
        },
        document="test",
    )  # fmt: skip
    assert isinstance(spec, DlrmSpec)
    return spec


def _kernels(spec: DlrmSpec, word: str, stack: str = "pytorch_eager") -> list[MemoryBound]:
    job = build_job(spec, rank_count=1, ranks_per_host=1, stack=load_stack(stack))
    check_job(job)
    return [op for label, op in iter_ops(job) if word in label and isinstance(op, MemoryBound)]


def _numbers(kernels: list[MemoryBound]) -> list[tuple[int, int]]:
    """Numbers a sample read and written."""
    return [(op.read_bytes // (4 * SAMPLES), op.write_bytes // (4 * SAMPLES)) for op in kernels]


def test_a_wide_part_skips_the_layers_and_joins_their_output():
    spec = _spec("wide_deep", [16, 16, 1, 1], bottom=[])
    # Features as they are, two deep tables; the wide ones are not concatenated.
    assert spec.interaction_inputs == spec.top_inputs == 13 + 32
    assert _numbers(_kernels(spec, "interaction/skipping forward")) == [(2, 1)]
    assert _numbers(_kernels(spec, "interaction/skipping backward")) == [(1, 2)]
    # Deep and wide are added, then squashed; behind that the gradient passes through.
    assert _numbers(_kernels(spec, "interaction/join forward")) == [(2, 1), (1, 1)]
    assert _numbers(_kernels(spec, "interaction/join backward")) == [(2, 1)]
    assert _numbers(_kernels(spec, "interaction/concat forward")) == [(45, 45)]


def test_a_model_without_bottom_layers_feeds_its_features_to_the_top():
    job = build_job(_spec("wide_deep", [16, 1], bottom=[]), rank_count=1, ranks_per_host=1)
    shapes = [(op.m, op.n, op.k) for label, op in iter_ops(job)
              if isinstance(op, Gemm) and label.endswith("forward")]  # fmt: skip
    assert shapes == [(SAMPLES, 32, 29), (SAMPLES, 1, 32)]


def test_a_factorization_machine_passes_over_its_vectors():
    spec = _spec("deep_fm", [16, 16, 16, 1], bottom=[8])
    assert spec.top_inputs == 8 + 48
    # First order, then: sum of vectors, its square, their squares, sum, difference, sum over width.
    assert _numbers(_kernels(spec, "interaction/skipping forward")) == [
        (1, 1), (48, 16), (16, 16), (48, 48), (48, 16), (32, 16), (16, 1),
    ]  # fmt: skip
    assert _numbers(_kernels(spec, "interaction/skipping backward")) == [
        (1, 1), (17, 16), (64, 48), (64, 48), (96, 48),
    ]  # fmt: skip
    # Output of the layers, first order, second order.
    assert len(_kernels(spec, "interaction/join forward")) == 3


def test_a_fused_factorization_machine_reads_every_vector_once():
    spec = _spec("deep_fm", [16, 16, 16], bottom=[8])
    kernels = _kernels(spec, "interaction/skipping forward", stack="hugectr")
    assert _numbers(kernels) == [(48, 1)]


@pytest.mark.parametrize(
    ("interaction", "widths", "fault"),
    [
        ("wide_deep", [16, 16], "needs tables of width 1"),
        ("wide_deep", [1, 1], "needs tables wider than 1"),
        ("deep_fm", [16, 32], "needs tables of one width"),
        ("dot", [16, 16], "that of the last bottom layer"),
    ],
)
def test_tables_that_do_not_suit_an_interaction_are_refused(interaction, widths, fault):
    with pytest.raises(InputError, match=fault):
        _spec(interaction, widths, bottom=[8])
