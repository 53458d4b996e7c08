"""Recorded calls become ops with the right shapes, without torch."""

from __future__ import annotations

from perfmodel.base.dtypes import DType
from perfmodel.emulation.op_translation import ops_of_call
from perfmodel.graph.ops import Attention, Convolution, Copy, EmbeddingOp, Gemm, MemoryBound, Pass


def tensor(name, shape, dtype="bf16", size=None):
    count = 1
    for length in shape:
        count *= length
    return [name, list(shape), dtype, count * DType(dtype).size_bytes if size is None else size]


def call(operator, inputs=(), outputs=(), written=(), allows_tf32=False, observed=None, **more):
    return {
        "operator": operator, "inputs": list(inputs), "outputs": list(outputs),
        "written": list(written), "arguments": more, "allows_tf32": allows_tf32,
        "observed": observed,
    }  # fmt: skip


def works(words, major=9):
    return ops_of_call(words, major_capability=major)


def test_a_product_with_a_bias_is_one_gemm():
    words = call("aten.addmm.default", [tensor("self", [8]), tensor("mat1", [4, 6]),
                                        tensor("mat2", [6, 8])], [tensor("", [4, 8])])  # fmt: skip
    assert works(words) == (Gemm(m=4, n=8, k=6, dtype=DType.BF16),)


def test_a_product_written_to_out_takes_its_operands_by_name():
    words = call("aten.bmm.out", [tensor("self", [2, 3, 4]), tensor("mat2", [2, 4, 5]),
                                  tensor("out", [2, 3, 5])], written=["out"])  # fmt: skip
    assert works(words) == (Gemm(m=3, n=5, k=4, dtype=DType.BF16, batch=2),)


def test_fp32_products_run_in_tf32_where_the_script_allows_it():
    inputs = [tensor("self", [4, 6], "fp32"), tensor("mat2", [6, 8], "fp32")]
    [strict] = works(call("aten.mm.default", inputs))
    [relaxed] = works(call("aten.mm.default", inputs, allows_tf32=True))
    assert (strict.dtype, relaxed.dtype) == (DType.FP32, DType.TF32)


def test_attention_takes_the_kernel_of_its_device():
    inputs = [tensor(name, [2, 3, 16, 64]) for name in ("query", "key", "value")]
    words = call("aten._scaled_dot_product_flash_attention.default", inputs, is_causal=True)
    [on_hopper], [on_ampere] = works(words), works(words, major=8)
    assert (on_hopper.kernel, on_ampere.kernel) == ("cudnn", "flash2")
    assert isinstance(on_hopper, Attention)
    assert (on_hopper.batch, on_hopper.heads, on_hopper.query_length) == (2, 3, 16)
    assert (on_hopper.head_dim, on_hopper.is_causal) == (64, True)
    # Two products of 16 x 16 scores over 64 numbers, 6 heads, halved by the mask.
    assert on_hopper.flops == 2 * 2 * 16 * 16 * 64 * 6 // 2


def test_a_convolution_is_its_implicit_product():
    words = call(
        "aten.convolution.default",
        [tensor("input", [2, 4, 10, 10]), tensor("weight", [8, 4, 3, 3])],
        [tensor("", [2, 8, 8, 8])], groups=1, transposed=False,
    )  # fmt: skip
    [op] = works(words)
    assert isinstance(op, Convolution)
    # 2 images of 8 x 8 positions, 8 channels, windows of 9 x 4.
    assert (op.m, op.n, op.k) == (128, 8, 36)
    assert op.flops == 2 * 128 * 8 * 36


def test_the_backward_pass_of_a_convolution_is_two_of_the_same_flops_and_a_sum():
    words = call(
        "aten.convolution_backward.default",
        [tensor("grad_output", [2, 8, 8, 8]), tensor("input", [2, 4, 10, 10]),
         tensor("weight", [8, 4, 3, 3])],
        groups=1, transposed=False, output_mask=[True, True, True],
    )  # fmt: skip
    for_input, for_weight, for_bias = works(words)
    assert for_input.flops == for_weight.flops == 2 * 128 * 8 * 36
    assert (for_input.direction, for_bias.operator) == (Pass.BACKWARD, "reduction")


def test_a_lookup_knows_its_rows():
    seen = {"times": [2.0, 1.0], "rows_seen": [1, 2]}
    words = call("aten.embedding.default", [tensor("weight", [10, 4], "fp32"),
                 tensor("indices", [4], "int64")], [tensor("", [4, 4], "fp32")],
                 observed=seen)  # fmt: skip
    [op] = works(words)
    assert isinstance(op, EmbeddingOp)
    assert op.lookup.batch_size == 4
    assert op.lookup.tables[0].distribution.rows_seen == (1, 2)


def test_a_write_in_place_reads_and_writes_its_target():
    words = call("aten.add_.Tensor", [tensor("self", [4], "fp32"), tensor("other", [4], "fp32")],
                 written=["self"])  # fmt: skip
    assert works(words) == (MemoryBound("add", 32, 16, DType.FP32),)


def test_a_fused_optimizer_is_one_kernel_that_only_reads_gradients():
    names = ("self", "grads", "exp_avgs", "exp_avg_sqs")
    inputs = [tensor(name, [8], "fp32") for name in names for _ in range(2)]
    words = call("aten._fused_adamw_.default", inputs, written=names)
    # Eight tensors of 32 bytes are read, the six that are no gradients written.
    assert works(words) == (MemoryBound("adamw", 8 * 32, 6 * 32, DType.FP32),)


def test_copies_to_the_device_say_whether_they_were_pinned():
    source = tensor("", [4], "int64")
    words = call("host_to_device", [source], [source], pinned=True)
    [op] = works(words)
    assert isinstance(op, Copy)
    assert (op.size_bytes, op.is_pinned) == (32, True)


def test_an_operator_nobody_knows_is_priced_by_its_traffic():
    words = call("aten.some_new_thing.default", [tensor("self", [4])], [tensor("", [4])])
    assert works(words) == (MemoryBound("some_new_thing", 8, 8, DType.BF16),)
