"""Calls of operators become ops with the right shapes, without torch."""

from __future__ import annotations

from math import prod

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.extensions.recordings.operators.calls import OperatorCall, Tensor
from perfmodel.extensions.recordings.operators.works import emulated_works, works_of_call
from perfmodel.graph.ops import (
    Attention,
    Convolution,
    Copy,
    CopyRoute,
    EmbeddingOp,
    Gemm,
    MemoryBound,
    Pass,
)


def tensor(name, shape, dtype="bf16"):
    return [name, list(shape), dtype, prod(shape) * DType(dtype).size_bytes]


def works(
    operator, inputs=(), outputs=(), *, converts=False, written=(), tf32=False, seen=None, **more
):
    words = {
        "operator": operator, "inputs": [tensor(*one) for one in inputs],
        "outputs": [tensor("", *one) for one in outputs], "written": written, "arguments": more,
        "allows_tf32": tf32, "observed": seen, "converts_layout": converts,
    }  # fmt: skip
    return emulated_works(words)


def recorded(name, *shapes, values=(), results=None):
    """The works of a recorded call with one fp32 tensor per argument."""
    tensors = [Tensor(shape, DType.FP32, 4 * prod(shape)) for shape in shapes]
    arguments = tuple((one,) for one in tensors)
    made = results and tuple(Tensor(shape, DType.FP32, 4 * prod(shape)) for shape in results)
    return works_of_call(OperatorCall(name, arguments, dict(enumerate(values)), made))


@pytest.mark.parametrize(
    ("operator", "inputs", "found"),
    [
        # The kernel includes the bias; an output that is given is no operand.
        ("aten.addmm.default", [("self", [8]), ("mat1", [4, 6]), ("mat2", [6, 8])], (4, 8, 6, 1)),
        ("aten.bmm.out", [("self", [2, 3, 4]), ("mat2", [2, 4, 5]), ("out", [2, 3, 5])],
         (3, 5, 4, 2)),
        ("aten.addmv.default", [("self", [3]), ("mat", [3, 4]), ("vec", [4])], (3, 1, 4, 1)),
        ("aten.dot.default", [("self", [4]), ("tensor", [4])], (1, 1, 4, 1)),
    ],
)  # fmt: skip
def test_products_are_gemms(operator, inputs, found):
    rows, columns, depth, batch = found
    assert works(operator, inputs) == (Gemm(rows, columns, depth, DType.BF16, batch),)


def test_fp32_products_run_in_tf32_where_the_script_allows_it():
    inputs = [("self", [4, 6], "fp32"), ("mat2", [6, 8], "fp32")]
    dtypes = [works("aten.mm.default", inputs, tf32=tf32)[0].dtype for tf32 in (False, True)]
    assert dtypes == [DType.FP32, DType.TF32]


def test_attention_takes_the_kernel_of_its_operator():
    inputs = [(name, [2, 3, 16, 64]) for name in ("query", "key", "value")]
    names = [f"aten._scaled_dot_product_{word}_attention.default" for word in ("cudnn", "flash")]
    found = [works(name, inputs, is_causal=True)[0] for name in names]
    assert [op.kernel for op in found] == ["cudnn", "flash2"]
    [older] = works(names[1], inputs, is_causal=True, seen={"kernel": "flash1"})
    assert older.kernel == "flash1"
    assert found[0] == Attention(2, 16, 16, 3, 3, 64, DType.BF16, is_causal=True, kernel="cudnn")
    # Two products of 16 x 16 scores over 64 numbers, 6 heads, halved by the mask.
    assert found[0].flops == 2 * 2 * 16 * 16 * 64 * 6 // 2


def test_packed_sequences_have_as_many_keys_as_a_query_sees():
    inputs = [(name, [64, 4, 32]) for name in ("query", "key", "value")]
    # Sequences of 16, 16 and 32: each query sees those of its own.
    seen = {"pairs": 16 * 16 + 16 * 16 + 32 * 32}
    [op] = works("perfmodel.attention.default", inputs, seen=seen, is_causal=True, kernel="flash3")
    assert op == Attention(1, 64, 24, 4, 4, 32, DType.BF16, is_causal=False, kernel="flash3")


IMAGE = [("input", [2, 4, 10, 10]), ("weight", [8, 4, 3, 3])]


def test_a_convolution_is_its_implicit_product():
    [op] = works("aten.convolution.default", IMAGE, [([2, 8, 8, 8],)], groups=1, transposed=False)
    # 2 images of 8 x 8 positions, 8 channels, windows of 9 x 4; two bytes per number.
    bytes_moved = (2 * (800 + 288), 2 * 1024)
    assert op == Convolution(128, 8, 36, DType.BF16, 1, *bytes_moved)
    assert op.flops == 2 * 128 * 8 * 36


def test_tensor_cores_convert_images_whose_channels_are_not_last():
    outputs, more = [([2, 8, 8, 8],)], {"groups": 1, "transposed": False}
    before, op, after = works("aten.convolution.default", IMAGE, outputs, converts=True, **more)
    assert (before.operator, before.read_bytes, before.write_bytes) == ("transpose", 2176, 2176)
    assert (after.read_bytes, after.write_bytes) == (op.write_bytes, op.write_bytes)
    depthwise = [("input", [2, 4, 10, 10]), ("weight", [4, 1, 3, 3])]
    more["groups"] = 4
    [op] = works("aten.convolution.default", depthwise, [([2, 4, 8, 8],)], converts=True, **more)
    assert op.is_depthwise


def test_a_norm_over_channels_reads_its_input_twice_in_training_only():
    inputs = [("input", [2, 4, 10, 10])]
    reads = [
        works("aten.native_batch_norm.default", inputs, inputs and [([2, 4, 10, 10],)], training=on)
        for on in (True, False)
    ]
    assert [one[0].read_bytes for one in reads] == [2 * 1600, 1600]


def test_the_backward_pass_of_a_convolution_is_two_of_the_same_flops_and_a_sum():
    inputs = [("grad_output", [2, 8, 8, 8]), *IMAGE]
    name, masks = "aten.convolution_backward.default", [True, True, True]
    for_input, for_weight, for_bias = works(
        name, inputs, groups=1, transposed=False, output_mask=masks
    )
    assert for_input.flops == for_weight.flops == 2 * 128 * 8 * 36
    assert (for_input.direction, for_bias.operator) == (Pass.BACKWARD, "reduction")
    assert (for_input.write_bytes, for_weight.write_bytes) == (2 * 800, 2 * 288)


def test_a_lookup_knows_its_rows():
    inputs = [("weight", [10, 4], "fp32"), ("indices", [4], "int64")]
    seen = {"times": [2.0, 1.0], "rows_seen": [1, 2]}
    [op] = works("aten.embedding.default", inputs, [([4, 4], "fp32")], seen=seen)
    assert isinstance(op, EmbeddingOp)
    assert op.lookup.batch_size == 4
    assert op.lookup.tables[0].distribution.rows_seen == (1, 2)


OPTIMIZER = ("self", "grads", "exp_avgs", "exp_avg_sqs")


@pytest.mark.parametrize(
    ("operator", "inputs", "more", "found"),
    [
        ("aten.add_.Tensor", [("self", [4], "fp32"), ("other", [4], "fp32")],
         {"written": ["self"]}, MemoryBound("add", 32, 16, DType.FP32)),
        # Eight tensors of 32 bytes are read, the six that are no gradients written.
        ("aten._fused_adamw_.default", [(name, [8], "fp32") for name in OPTIMIZER * 2],
         {"written": OPTIMIZER}, MemoryBound("adamw", 8 * 32, 6 * 32, DType.FP32)),
        ("host_to_device", [("", [4], "int64")], {"outputs": [([4], "int64")], "pinned": True},
         Copy(CopyRoute.HOST_TO_DEVICE, 32, is_pinned=True)),
        # Rows of 8 bytes at two places of 8 are read and written; at one place, added to a target.
        ("aten.index_select.default", [("self", [9, 2], "fp32"), ("index", [2], "int64")],
         {"outputs": [([2, 2], "fp32")]}, MemoryBound("gather", 16 + 16, 16, DType.FP32)),
        ("aten.index_add_.default", [("self", [9, 2], "fp32"), ("index", [1], "int64"),
         ("source", [1, 2], "fp32")], {"written": ["self"]},
         MemoryBound("gather", 2 * 16, 16, DType.FP32)),
        ("aten.sum.dim_IntList", [("self", [4, 6], "fp32")], {"outputs": [([4], "fp32")]},
         MemoryBound("reduction", 96, 16, DType.FP32, row_length=6)),
        ("aten._softmax.default", [("self", [4, 6], "fp32")],
         {"outputs": [([4, 6], "fp32")], "dim": 0},
         MemoryBound("softmax", 96, 96, DType.FP32, row_length=4)),
        ("aten.fill_.Scalar", [("self", [4], "fp32")], {"written": ["self"]},
         MemoryBound("scale", 0, 16, DType.FP32)),
        # Nobody knows this one.
        ("aten.some_new_thing.default", [("self", [4])], {"outputs": [([4],)]},
         MemoryBound("some_new_thing", 8, 8, DType.BF16)),
    ],
)  # fmt: skip
def test_what_computes_little_is_priced_by_what_it_moves(operator, inputs, more, found):
    assert works(operator, inputs, **more) == (found,)


@pytest.mark.parametrize(
    ("name", "shapes", "results", "found"),
    [
        ("aten::add", [(4,), (4,)], None, ("add", 32, 16, 0)),
        ("aten::add", [(4,), (4,)], [(4, 2)], ("add", 32, 32, 0)),
        ("aten::mul_", [(4,), (8,)], None, ("mul", 48, 16, 0)),
        ("aten::sum", [(8,)], None, ("sum", 32, 0, 0)),
        ("aten::fill_", [(4,)], None, ("fill", 0, 16, 0)),
        ("aten::copy_", [(4,), (4,)], None, ("copy", 16, 16, 0)),
        # The arguments of a generated kernel include its output.
        ("triton_poi_fused_0", [(4,), (4,)], None, ("triton_poi_fused_0", 16, 16, 0)),
        ("aten::native_layer_norm_backward", [(2, 8)], None, ("layer_norm_backward", 64, 64, 8)),
    ],
)
def test_unknown_outputs_of_a_recorded_call_are_as_large_as_its_largest_input(
    name, shapes, results, found
):
    operator, read_bytes, write_bytes, row_length = found
    traffic = MemoryBound(operator, read_bytes, write_bytes, DType.FP32, row_length=row_length)
    assert recorded(name, *shapes, results=results) == (traffic,)


def test_the_two_sources_of_calls_differ_where_the_table_says():
    # The window of a gradient is part of the depth, and both gradients move the same bytes.
    shapes = [(2, 8, 8, 8), (2, 4, 10, 10), (8, 4, 3, 3)]
    for_input, for_weight = recorded("aten::convolution_backward", *shapes)
    assert (for_input.m, for_input.n, for_input.k) == (128, 4, 72)
    assert (for_weight.m, for_weight.n, for_weight.k) == (72, 4, 128)
    assert for_input.read_bytes == for_weight.read_bytes == 4 * (1024 + 288)
    # Rows of a vocabulary are traffic; a mask is causal unless every flag denies it.
    [rows] = recorded("aten::embedding", (10, 4), (3,))
    assert rows == MemoryBound("embedding", 3 * 16 + 3 * 4, 3 * 16, DType.FP32)
    name, query = "aten::_scaled_dot_product_flash_attention", (2, 3, 16, 64)
    flags = [recorded(name, query, query, values=given)[0].is_causal
             for given in ((), ("False",), ("False", "True"))]  # fmt: skip
    assert flags == [True, False, True]


def test_a_recorded_call_whose_shapes_do_not_fit_has_no_work():
    assert recorded("aten::mm", (4, 6), (5, 8)) == ()
    assert recorded("aten::mm", (4, 6)) == ()
    assert recorded("aten::mm", (4, 6), (6, 8)) == (Gemm(4, 8, 6, DType.FP32),)


def test_a_scatter_reads_what_it_adds_to_and_writes_its_result():
    (work,) = works(
        "aten.scatter_add.default",
        [("self", [100, 4]), ("index", [10, 4], "int64"), ("src", [10, 4])],
        [([100, 4],)],
    )
    # 40 indices of 8 bytes and 40 values of 2, each read and added; 400 values of 2 come out.
    given_bytes = 40 * 8 + 40 * 2
    assert (work.read_bytes, work.write_bytes) == (2 * given_bytes, given_bytes + 800)


def test_products_outside_tensor_cores_stay_there_unless_tf32_is_allowed():
    words = {"operator": "aten.mm.default", "inputs": [tensor("self", [4, 6], "fp32"),
             tensor("mat2", [6, 8], "fp32")], "outputs": []}  # fmt: skip
    (exact,) = emulated_works(words)
    (rounded,) = emulated_works(words | {"allows_tf32": True})
    assert (exact.dtype, rounded.dtype) == (DType.FP32, DType.TF32)
