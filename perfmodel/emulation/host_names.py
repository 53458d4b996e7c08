"""Host names: what the host issues when a script calls an operator.

Host times of a stack are by the operator that the script calls (`linear`), not by the
kernels inside it (`addmm`). The operator is named after its most telling kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

_TELLING = {
    "addmm": "linear", "mm": "linear", "_addmm_activation": "linear", "bmm": "bmm",
    "baddbmm": "bmm", "convolution": "conv2d", "native_batch_norm": "batch_norm",
    "cudnn_batch_norm": "batch_norm", "_native_batch_norm_legit": "batch_norm",
    "native_layer_norm": "layer_norm", "_fused_rms_norm": "rms_norm",
    "native_dropout": "dropout", "_embedding_bag": "LookupFunction", "embedding": "embedding",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "nll_loss_forward": "cross_entropy_loss", "_log_softmax": "log_softmax",
    "binary_cross_entropy": "binary_cross_entropy", "mse_loss": "mse_loss",
}  # fmt: skip
_PLAIN = {
    "host_to_device": "to", "device_to_host": "item", "copy": "to", "as_strided": "view",
    "_softmax": "softmax", "t": "transpose",
}  # fmt: skip


def aten_name(operator: str) -> str:
    """`aten.add_.Tensor` is `add_`; names without a namespace stay."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def host_operator(names: Sequence[str]) -> str:
    """The operator that launches kernels, or looks at views, called *names*."""
    for name in names:
        if name in _TELLING:
            return _TELLING[name]
    first = names[0]
    return _PLAIN.get(first, first)
