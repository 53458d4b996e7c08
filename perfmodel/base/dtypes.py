"""Number formats that tensors are stored and multiplied in.

TF32 is a way to multiply, not to store: its values take four bytes. The 8-bit formats differ in
their scales: FP8 has one a tensor, FP8_BLOCK one a block of 128 values, MXFP8 one of a byte for 32
values. Two values of NVFP4 and MXFP4 share a byte, with a scale of a byte for 16 and 32.
"""

from __future__ import annotations

import math
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
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"

    # Members are single, so identity will do; it is asked for with every table of a plan.
    __hash__ = object.__hash__

    @property
    def size_bytes(self) -> int:
        """Bytes that one stored value takes, scales left out."""
        size_bytes = _SIZE_BYTES.get(self)
        if size_bytes is None:
            raise InputError(
                f"number format {self.value}: its values take less than a byte, so they have no "
                "whole number of bytes each. Store in a wider format; a model computes in it with "
                f"training.compute={self.value}."
            )
        return size_bytes

    @property
    def size_bits(self) -> int:
        """Bits that one stored value takes, scales left out."""
        return _SIZE_BITS[self]

    @property
    def is_quantised(self) -> bool:
        """Whether values are cast to it just to be multiplied, and carry scales."""
        return self in _SCALE_BITS

    def bytes_of(self, count: int) -> int:
        """Bytes that *count* values take in memory, their scales included."""
        return math.ceil(count * (self.size_bits + _SCALE_BITS.get(self, 0.0)) / BITS_PER_BYTE)


BITS_PER_BYTE = 8

_SIZE_BITS = {
    DType.FP64: 64,
    DType.FP32: 32,
    DType.TF32: 32,
    DType.FP16: 16,
    DType.BF16: 16,
    DType.FP8: 8,
    DType.FP8_BLOCK: 8,
    DType.MXFP8: 8,
    DType.NVFP4: 4,
    DType.MXFP4: 4,
    DType.INT64: 64,
    DType.INT32: 32,
    DType.INT8: 8,
}
_SIZE_BYTES = {
    dtype: bits // BITS_PER_BYTE for dtype, bits in _SIZE_BITS.items() if bits % BITS_PER_BYTE == 0
}

_SCALE_BITS = {
    DType.FP8: 0.0,
    DType.FP8_BLOCK: 32 / 128,
    DType.MXFP8: 8 / 32,
    DType.NVFP4: 8 / 16,
    DType.MXFP4: 8 / 32,
}
"""Bits of scales that one value carries; binary fractions, so counting is exact."""

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
