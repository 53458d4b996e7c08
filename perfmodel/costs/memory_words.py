"""Memory words: which measured operator stands for an operator word.

A word nobody measured under its own name takes the curve of the operator it
resembles; a word nobody knows takes the plain curve and is tagged assumed.
"""

from __future__ import annotations

from perfmodel.costs.stacks import Fusion, SoftwareStack

PLAIN = "add"

RESEMBLES = {
    "add": "add", "residual_add": "add", "add_": "add", "sub": "add", "mul": "mul", "div": "div",
    "pow": "pow", "relu": "relu", "gelu": "gelu", "silu": "gelu", "tanh": "tanh",
    "sigmoid": "tanh", "swiglu": "mul", "geglu": "mul", "bias_gelu": "gelu", "bias_add": "add",
    "scale": "mul_scalar", "cast": "relu", "copy": "relu", "fill": "relu", "zero": "relu",
    "zero_": "relu", "dropout": "mul", "dropout_residual": "add", "bias_dropout_add": "add",
    "transpose": "relu", "concat": "relu", "cat": "relu", "split": "relu", "slice": "relu",
    "gather": "relu", "rotary": "mul", "rope": "mul", "mask": "mul", "scale_mask": "mul",
    "accumulate": "add", "gradient_accumulation": "add", "interaction": "relu", "index": "relu",
    "mse_loss": "add", "binary_cross_entropy": "add", "sum": "relu", "reduction": "relu",
    "gradient_norm": "relu", "l2_norm": "relu", "gradient_clip": "mul_scalar",
    "sgd": "add", "momentum": "add", "adagrad": "add", "adam": "add", "adamw": "add",
    "lamb": "add", "master_weights": "add",
    "layer_norm": "layer_norm", "rms_norm": "layer_norm", "batch_norm": "layer_norm",
    "softmax": "softmax", "log_softmax": "softmax", "scale_mask_softmax": "softmax",
    "cross_entropy": "softmax", "embedding": "relu", "conv": "relu",
}  # fmt: skip
"""Word -> measured operator. `_forward` and `_backward` behind a word do not change its curve."""

SUFFIXES = ("_forward", "_backward", "_fused", "_foreach", "_plain", "_fwd", "_bwd")


def measured_word(operator: str) -> str | None:
    """The measured operator that stands for *operator*, or None if nobody knows the word."""
    word = operator.rsplit("::", 1)[-1]
    if "/" in word or word.endswith("_scalar"):
        return word
    while True:
        if word in RESEMBLES:
            return RESEMBLES[word]
        suffix = next((one for one in SUFFIXES if word.endswith(one)), None)
        if suffix is None:
            return None
        word = word.removesuffix(suffix)


def stand_ins(word: str) -> tuple[str, ...]:
    """*word*, then the measured operators that may stand in for it, best first.

    The two norms make the same passes, so one implementation's curve of the one
    serves for the other.
    """
    if word.startswith("layer_norm/"):
        return word, word.replace("layer_norm/", "rms_norm/")
    if word.startswith("rms_norm/"):
        return word, word.replace("rms_norm/", "layer_norm/")
    return (word,)


def implementation_word(operator: str, stack: SoftwareStack) -> str:
    """The implementation that *stack* runs for *operator*, where we know several."""
    word = operator.rsplit("::", 1)[-1]
    kind = next((name for name in ("layer_norm", "rms_norm") if word.startswith(name)), None)
    if kind is None or "/" in word or not stack.fuses(Fusion.NORM):
        return operator
    direction = "backward" if word.endswith(("_backward", "_bwd")) else "forward"
    return f"rms_norm/cudnn/{direction}"
