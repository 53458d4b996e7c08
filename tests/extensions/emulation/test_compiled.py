"""Compiled code is recorded as the compiler makes it, and eager code around it stays eager."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest

from perfmodel.extensions.emulation.compiler.kernels import count_instructions
from perfmodel.graph.ops import Attention, Gemm, HostSpan, MemoryBound, Pass

BATCH, TOKENS, WIDTH, INNER, WORDS = 4, 64, 128, 256, 512
ROWS = BATCH * TOKENS
HALF, SINGLE, LONG = 2, 4, 8


def kernels(run, region):
    """Names and ops of the kernels whose labels begin with *region*."""
    program = run.job.program_of(0)
    labels = [run.job.labels[label] for label in program.label]
    return [
        (label.partition("/")[2], op)
        for label, op in zip(labels, run.ops(), strict=True)
        if label.startswith(region) and not isinstance(op, HostSpan)
    ]


def test_a_compiled_model_runs_the_kernels_of_the_compiler(emulated):
    forward = kernels(emulated("compiled"), "compiled forward 6")
    names = Counter(name.rstrip("0123456789") for name, op in forward)
    assert sum(names.values()) == 25
    # Weights are cast in every iteration, because autocast is on.
    assert names["triton_poi_fused__to_copy_t_"] == 7
    assert names["triton_poi_fused__unsafe_view_gelu_"] == names["mm"] - 5 == 2
    assert not any("layer_norm" in name for name in names if not name.startswith("triton_per"))
    backward = kernels(emulated("compiled"), "compiled backward 7")
    assert len(backward) == 40
    assert sum(isinstance(op, Gemm) for _, op in backward) == 2 * names["mm"]


def test_bytes_of_fused_kernels_are_those_they_touch(emulated):
    ops = dict(kernels(emulated("compiled"), "compiled "))
    found = {name: op for name, op in ops.items() if isinstance(op, MemoryBound)}

    def one(part):
        return next(op for name, op in found.items() if part in name)

    lookup = one("embedding_native_layer_norm_0")
    # Looked up rows, tokens, weight and bias of the norm; then rows, statistics and their norm.
    assert lookup.read_bytes == ROWS * (WIDTH * SINGLE + LONG) + 2 * WIDTH * SINGLE
    assert lookup.write_bytes == ROWS * (WIDTH * (SINGLE + HALF) + 2 * SINGLE)
    assert (lookup.operator, lookup.row_length) == ("fused_persistent_reduction", WIDTH)
    gelu = one("view_gelu_4")
    assert (gelu.read_bytes, gelu.write_bytes) == (ROWS * INNER * HALF,) * 2
    assert (gelu.operator, gelu.row_length) == ("fused_pointwise", 0)
    # The logarithms of a softmax are never written: forward keeps two numbers a row.
    loss = one("prepare_softmax_online")
    assert (loss.read_bytes, loss.write_bytes) == (ROWS * WORDS * HALF, ROWS * 2 * SINGLE)
    gradient = one("log_softmax_backward_data")
    assert gradient.write_bytes == ROWS * WORDS * HALF
    assert gradient.read_bytes - ROWS * WORDS * HALF == ROWS * (LONG + 2 * SINGLE) + 2 * SINGLE


def test_a_captured_region_is_one_launch(emulated):
    run = emulated("compiled")
    program = run.job.program_of(0)
    labels = [run.job.labels[label] for label in program.label]
    captured = [
        op
        for label, op in zip(labels, run.ops(), strict=True)
        if label.startswith("compiled forward 8")
    ]
    assert len(captured) == 4
    assert not any(isinstance(op, HostSpan) for op in captured)
    assert labels.count("graph/launch") == 1


def test_eager_code_and_regions_that_cannot_be_compiled_stay_eager(emulated):
    run = emulated("compiled")
    labels = {run.job.labels[label] for label in run.job.program_of(0).label}
    assert {"mul", "exp", "add", "tan", "_fused_sgd_"} <= labels
    assert not any("erf" in label for label in labels)
    assert run.job.facts.stack == "pytorch_fused"
    told = " ".join(run.job.facts.assumptions)
    assert "(regions: 8)" in told
    assert "compiled.py:131 runs as eager code" in told
    # A part of a replica that DDP splits, too.
    assert "compiled.py:120 runs as eager code" in told
    assert "NotImplementedError: no such pass" in told
    # Dynamo gives it up at its decorator, on line 65.
    assert "compiled.py:65) runs as eager code" in told


def test_a_long_scan_is_one_kernel_of_the_compiler(emulated):
    [(_, scan)] = [
        (name, op) for name, op in kernels(emulated("compiled"), "compiled ") if "cumsum" in name
    ]
    assert scan.read_bytes >= 8 * 2**18
    assert scan.write_bytes >= 8 * 2**18


def test_one_rank_compiles_and_the_others_do_the_same(emulated):
    run = emulated("compiled")
    assert run.ops(0) == run.ops(1)


def test_parts_of_a_graph_that_is_split_at_buckets_are_compiled_once(emulated):
    loaded = [line for line in emulated("compiled").stdout.splitlines() if "parts" in line]
    # Either rank may come first to a part; the other one loads it.
    assert sum(int(line.rpartition(" ")[2]) for line in loaded) == 3


def test_what_a_few_ranks_compiled_all_ranks_load(emulated):
    run = emulated("uneven")
    assert "every rank is run" in run.stderr
    # Of the first three ranks one compiles; then all four are run.
    assert sorted(run.stdout.split()) == ["0", *6 * ["1"], *7 * ["loaded"]]


def test_a_compiled_region_that_is_run_again_backward_runs_attention_twice(emulated):
    ops = [op for _, op in kernels(emulated("compiled"), "compiled ") if isinstance(op, Attention)]
    again = [op.direction for op in ops if op.query_length == op.key_length == 1024]
    assert again == [Pass.FORWARD, Pass.FORWARD, Pass.BACKWARD]


def test_attention_with_a_mask_of_blocks_computes_the_blocks_that_it_keeps(emulated):
    run = emulated("compiled")
    ops = [op for _, op in kernels(run, "compiled ") if isinstance(op, Attention)]
    masked = [op for op in ops if op.kernel == "flash2"]
    assert [op.direction for op in masked] == [Pass.FORWARD, Pass.BACKWARD]
    # Of 8 x 8 blocks four documents keep three each, and a query sees 3 / 16 of the keys.
    assert {(op.query_length, op.key_length, op.heads) for op in masked} == {(1024, 192, 2)}


def count_blocks(length, side, window):
    """Blocks with a pair of one document and window: short documents, then long ones."""
    documents = list(accumulate(p % (300 if p < length // 2 else 3000) == 0 for p in range(length)))
    return sum(
        first == last
        or (documents[first] == documents[last + side - 1] and first - last - side + 1 < window)
        for first in range(0, length, side)
        for last in range(0, first + 1, side)
    )


def test_masks_of_many_pairs_and_of_other_regions_keep_the_blocks_of_their_function(emulated):
    run = emulated("masks")
    masked = [op for op in run.ops() if isinstance(op, Attention)]
    assert [op.direction for op in masked] == [Pass.FORWARD, Pass.BACKWARD, *2 * [Pass.FORWARD]]
    kept = count_blocks(8192, 128, 1024) / 64**2
    assert all(op.key_length == pytest.approx(8192 * kept, rel=0.01) for op in masked)
    assert "blocks that a mask leaves out" not in run.stderr


LOOPED = """
def kernel(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        tmp0 = tl.load(in_ptr0 + (r0_1 + 512*x0), r0_mask, other=0.0).to(tl.float32)
        tmp1 = tl.full([1, 1], 0.5, tl.float32)
        tmp2 = tmp0 * tmp1
        tmp3 = libdevice.exp(tmp2)
        _tmp5 = tl.where(r0_mask, _tmp5 + tmp3, _tmp5)
    tmp5 = tl.sum(_tmp5, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp5, None)
"""


def test_arithmetic_counts_what_every_element_costs():
    # A load, a product, an exponential of ten, a selection; constants and rows cost nothing.
    assert count_instructions(LOOPED) == 1 + 1 + 10 + 1
    assert count_instructions("\n    tmp1 = tmp0 / tmp2\n    tmp3 = tmp1 + tmp0\n") == 10 + 1


def test_arithmetic_of_a_softmax_is_more_than_its_bytes(emulated):
    ops = dict(kernels(emulated("compiled"), "compiled "))
    loss = next(op for name, op in ops.items() if "prepare_softmax_online" in name)
    cast = next(op for name, op in ops.items() if "to_copy_t" in name)
    assert loss.flops / loss.read_bytes > 5 * cast.flops / cast.read_bytes > 0


def test_functions_cost_the_instructions_of_the_units_that_run_them():
    cost = {
        "exp": 10, "exp2": 8, "log": 10, "log2": 8, "rsqrt": 10, "sqrt": 10, "sqrt_rn": 14,
        "div_rn": 16, "sigmoid": 20, "tanh": 24, "erf": 26, "sin": 30, "cos": 30, "pow": 40,
        "online_softmax_combine": 28, "full": 0, "broadcast_to": 0, "reshape": 0, "maximum": 1,
    }  # fmt: skip
    assert {name: count_instructions(f"    tmp0 = tl_math.{name}(tmp1)") for name in cost} == cost
    assert count_instructions("    tmp0 = tmp1 / tmp2") == 10
