"""Operator names: the names of torch's operators in cost models and stacks.

The name of a kernel decides how well it uses memory. Operators that are not listed keep their own
name, which the cost model prices with its plain curve and tags as assumed. Host times of a stack
are by the operator that the script calls (`linear`), not by the kernels inside it (`addmm`): it
is recognised by its most characteristic kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

_UNARY = (
    "abs", "acos", "asin", "atan", "bernoulli_", "bitwise_not", "ceil", "clamp", "clamp_max",
    "clamp_min", "cos", "cumsum", "elu", "erf", "erfinv_", "exp", "exp_", "expm1", "exponential_",
    "fill", "floor", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p", "log2",
    "log_sigmoid_forward", "logical_not", "logit", "masked_fill", "mish", "neg", "normal",
    "normal_", "rad2deg", "random_", "reciprocal", "relu6", "round", "rsqrt", "sgn", "sigmoid",
    "sign", "sin", "softplus", "sqrt", "tan", "trunc", "uniform_", "where", "isnan", "isfinite",
    "isinf", "nan_to_num", "tril", "triu", "pad", "constant_pad_nd", "flip", "roll", "repeat",
    "maximum_scalar", "hardtanh_backward", "leaky_relu_backward", "elu_backward",
)  # fmt: skip
_BINARY = (
    "add", "sub", "mul", "div", "addcdiv", "addcmul", "lerp", "maximum", "minimum", "fmod",
    "remainder", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or",
    "logical_xor", "eq", "ne", "lt", "le", "gt", "ge", "rsub", "hypot", "floor_divide",
    "true_divide", "copysign", "xlogy", "lerp_scalar", "sigmoid_backward", "tanh_backward",
    "silu_backward", "hardswish_backward", "softplus_backward", "mse_loss", "mse_loss_backward",
    "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward",
    "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits",
)  # fmt: skip
_MOVING = (
    "clone", "contiguous", "cat", "stack", "concat", "split", "slice", "select", "index_select",
    "gather", "index", "take", "embedding_renorm_", "masked_select", "scatter", "scatter_add",
    "index_add", "index_copy", "index_put", "_index_put_impl_", "scatter_reduce",
    "upsample_nearest2d", "upsample_nearest2d_backward", "upsample_bilinear2d",
    "upsample_bilinear2d_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
    "avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    "nll_loss_forward", "nll_loss2d_forward", "arange", "linspace", "nonzero", "_unique2",
    "unique_dim", "bincount", "as_strided_copy", "reflection_pad2d", "_fused_dropout",
)  # fmt: skip
_REDUCING = (
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "norm",
    "linalg_vector_norm", "var", "std", "var_mean", "all", "any", "logsumexp", "cumprod",
    "count_nonzero", "nansum",
)  # fmt: skip
_OWN = {
    "relu": "relu", "threshold_backward": "relu_backward", "gelu": "gelu",
    "gelu_backward": "gelu_backward", "silu": "silu", "tanh": "tanh", "pow": "pow",
    "native_layer_norm": "layer_norm", "native_layer_norm_backward": "layer_norm_backward",
    "_fused_rms_norm": "rms_norm", "_fused_rms_norm_backward": "rms_norm_backward",
    "native_group_norm": "layer_norm", "native_group_norm_backward": "layer_norm_backward",
    "native_batch_norm": "batch_norm", "native_batch_norm_backward": "batch_norm_backward",
    "cudnn_batch_norm": "batch_norm", "cudnn_batch_norm_backward": "batch_norm_backward",
    "_native_batch_norm_legit": "batch_norm", "_batch_norm_with_update": "batch_norm",
    "batch_norm_backward": "batch_norm_backward", "batch_norm_stats": "batch_norm",
    "batch_norm_elemt": "batch_norm", "batch_norm_backward_elemt": "batch_norm_backward",
    "batch_norm_backward_reduce": "batch_norm_backward",
    "batch_norm_gather_stats_with_counts": "reduction", "batch_norm_gather_stats": "reduction",
    "_softmax": "softmax", "_softmax_backward_data": "softmax_backward",
    "_log_softmax": "log_softmax", "_log_softmax_backward_data": "log_softmax_backward",
    "_safe_softmax": "softmax",
    "native_dropout": "dropout", "native_dropout_backward": "dropout_backward",
    "zero": "zero", "nll_loss_backward": "zero", "nll_loss2d_backward": "zero",
    "_fused_adamw": "adamw", "_fused_adam": "adam", "_fused_sgd": "sgd",
    "_fused_adagrad": "adagrad", "copy": "copy", "cast": "cast",
    "_amp_foreach_non_finite_check_and_unscale": "scale", "_amp_update_scale": "scale",
}  # fmt: skip

KERNEL_NAMES: dict[str, str] = {
    **dict.fromkeys(_UNARY, "scale"),
    **dict.fromkeys(_BINARY, "add"),
    **dict.fromkeys(_MOVING, "gather"),
    **dict.fromkeys(_REDUCING, "reduction"),
    **_OWN,
}
"""Operator, without namespace, overload and the underscore of in-place variants -> kernel."""

GATHERING = frozenset({"index_select", "gather", "index", "take", "nll_loss_forward",
                       "nll_loss2d_forward"})  # fmt: skip
"""Operators that read as much of their source as they write."""

SCATTERING = frozenset({"scatter", "scatter_add", "index_add", "index_copy", "index_put",
                        "_index_put_impl_", "_index_put_impl"})  # fmt: skip
"""Operators that touch only as much of their target as they write."""

SPARSE = "sparse_"
"""How names of operators on sparse tensors begin."""

SOFTMAXES = frozenset({"_softmax", "_softmax_backward_data", "_log_softmax",
                       "_log_softmax_backward_data", "_safe_softmax"})  # fmt: skip


def base_name(operator: str) -> str:
    """`aten._foreach_add_.Scalar` is `add`."""
    parts = operator.split(".")
    name = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[0]
    name = name.removeprefix("_foreach_")
    # Names that end in an underscore of their own are listed with it.
    return name if name in KERNEL_NAMES or name in SCATTERING else name.removesuffix("_")


def kernel_name(name: str) -> str:
    """The kernel of a base name; the name itself where none is known."""
    if name.startswith(SPARSE):
        return "gather"
    return KERNEL_NAMES.get(name, name)


_BY_KERNEL = {
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
    """The operator that launches kernels, or makes views, called *names*."""
    for name in names:
        if name in _BY_KERNEL:
            return _BY_KERNEL[name]
    first = names[0]
    return _PLAIN.get(first, first)
