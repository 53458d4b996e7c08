"""Every operator of the table with tensors of plausible shapes, as recorded."""

from __future__ import annotations

from math import prod
from typing import Any

from perfmodel.base.dtypes import DType
from perfmodel.extensions.recordings.operators.calls import OperatorCall, Tensor
from perfmodel.extensions.recordings.operators.works import (
    emulated_works,
    operator_table,
    works_of_call,
)
from tests import recorded

SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "matrices": ((6, 10), (10, 14), (6, 14)),
    "with a bias": ((14,), (6, 10), (10, 14)),
    "batched": ((3, 6, 10), (3, 10, 14), (3, 6, 14)),
    "images": ((4, 8, 16, 16), (12, 8, 3, 3), (12,)),
    "gradients of images": ((4, 12, 16, 16), (4, 8, 16, 16), (12, 8, 3, 3)),
    "heads": ((2, 4, 32, 64), (2, 4, 48, 64), (2, 4, 48, 64)),
    "rows": ((1000, 16), (60,), (20,)),
}
NAMES = ("self", "mat2", "weight")
ATTENTION = ("query", "key", "value")
RECORDED = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::dot",
    "aten::convolution", "aten::cudnn_convolution", "aten::convolution_backward",
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
    "aten::embedding", "aten::add_", "aten::copy_", "aten::native_layer_norm", "aten::_softmax",
    "fbgemm::split_embedding_codegen_lookup_sgd_function",
)  # fmt: skip


KINDS = {
    "gemm": "matrices", "convolution": "images", "convolution_backward": "images",
    "attention": "heads", "lookup": "rows", "host_copy": "matrices", "device_copy": "matrices",
    "norm_backward": "matrices",
}  # fmt: skip
"""Tensors that go with a form, where an operator has none of its own."""
OWN_KINDS = {
    "convolution_backward": "gradients of images",
    "bmm": "batched", "baddbmm": "batched", "addbmm": "batched", "addmm": "with a bias",
    "_addmm_activation": "with a bias", "addmv": "with a bias", "dot": "with a bias",
}  # fmt: skip
UNNAMED = ("attention", "attention_backward")
"""A script states their kernel."""


def emulated() -> dict[str, Any]:
    """Names and tensors as an emulated script gives them."""
    found = {}
    for form, kind in KINDS.items():
        for operator in operator_table()["forms"][form]["emulated"]:
            if operator not in UNNAMED:
                found[operator] = _emulated(operator, SHAPES[OWN_KINDS.get(operator, kind)])
    for operator in ("add", "native_layer_norm", "gelu", "_softmax"):
        found[operator] = _emulated(operator, SHAPES["matrices"])
    return found


def _emulated(operator: str, shapes: tuple[tuple[int, ...], ...]) -> list[str]:
    names = ATTENTION if "attention" in operator else NAMES
    tensors = [
        [name, list(shape), "bf16", 2 * prod(shape)]
        for name, shape in zip(names, shapes, strict=True)
    ]
    words = {
        "operator": f"aten.{operator}.default", "inputs": tensors, "outputs": tensors[:1],
        "written": (), "arguments": {"is_causal": True, "groups": 1, "num_weights": 500},
        "allows_tf32": False, "observed": None, "converts_layout": False,
    }  # fmt: skip
    return [repr(work) for work in emulated_works(words)]


def named() -> dict[str, Any]:
    """Names and tensors as a recording gives them."""
    found = {}
    for name in RECORDED:
        for kind, shapes in SHAPES.items():
            tensors = [Tensor(shape, DType.FP32, 4 * prod(shape)) for shape in shapes]
            call = OperatorCall(name, tuple((one,) for one in tensors), {}, None)
            found[f"{name}, {kind}"] = [repr(work) for work in works_of_call(call)]
    return found


def values() -> dict[str, Any]:
    """All grids."""
    return {**emulated(), **named()}


def test_operators_are_as_recorded():
    recorded.check(__file__, values())
