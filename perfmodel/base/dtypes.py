"""Number formats that tensors are stored and multiplied in.

TF32 is a way to multiply, not to store: its values take four bytes. NVFP4 is a rate that devices
state: two of its values share a byte, so it has no size a value.
"""

from __future__ import annotations

from enum import Enum

from perfmodel.base.errors import InputError


class DType(Enum):
    """A number format; the value is the word used in files."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"

    @property
    def size_bytes(self) -> int:
        """Bytes that one stored value takes."""
        if self not in _SIZE_BYTES:
            raise InputError(
                f"number format {self.value}: its values take less than a byte, so nothing of "
                "whole bytes can be counted in it. Store in a wider format, and cast."
            )
        return _SIZE_BYTES[self]


_SIZE_BYTES = {
    DType.FP64: 8,
    DType.FP32: 4,
    DType.TF32: 4,
    DType.FP16: 2,
    DType.BF16: 2,
    DType.FP8: 1,
    DType.INT64: 8,
    DType.INT32: 4,
    DType.INT8: 1,
}

_OTHER_WORDS = {
    "double": DType.FP64,
    "float64": DType.FP64,
    "float": DType.FP32,
    "float32": DType.FP32,
    "half": DType.FP16,
    "float16": DType.FP16,
    "bfloat16": DType.BF16,
    "long": DType.INT64,
    "int": DType.INT32,
}


def parse_dtype(text: str) -> DType:
    """Read a number format from *text*, in our words or the frameworks'."""
    word = text.strip().lower().removeprefix("torch.")
    if word in _OTHER_WORDS:
        return _OTHER_WORDS[word]
    try:
        return DType(word)
    except ValueError:
        known = ", ".join(member.value for member in DType)
        raise InputError(
            f"number format: must be one of {known}, got {text!r}. "
            "Write the format the tensors are stored in."
        ) from None
