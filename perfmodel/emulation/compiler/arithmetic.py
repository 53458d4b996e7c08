"""Arithmetic of generated kernels: how many instructions an element costs, read from the source.

Inductor writes one value a line, after common ones were joined. Most are one instruction of a lane;
functions of the special units, of which a multiprocessor has an eighth as many, cost more. This
decides where a kernel is bound by instructions and not by memory, such as the exponentials of a
softmax over a vocabulary. A looped kernel counts its loops, the others all of their lines.

Leaves out: addresses and masks, which are shared by the elements of a vector.
"""

from __future__ import annotations

import re

_VALUE = re.compile(r"^(?P<indent> +)(?:_?tmp\d+(?:_\w+)?(?:, _?tmp\d+\w*)*) = (?P<text>.+)$", re.M)
_LOOP_INDENT = 8
_CALLED = re.compile(
    r"(?:tl|tl_math|libdevice|triton_helpers)\.(?P<name>\w+)\(|(?P<quotient> / )", re.M
)
_SPECIAL = 8
"""Lanes of a multiprocessor over its special units: instructions that one of theirs costs."""
_INSTRUCTIONS = {
    "exp": _SPECIAL + 2, "exp2": _SPECIAL, "log": _SPECIAL + 2, "log2": _SPECIAL,
    "rsqrt": _SPECIAL + 2, "sqrt": _SPECIAL + 2, "sqrt_rn": _SPECIAL + 6, "div_rn": _SPECIAL + 8,
    "sigmoid": 2 * _SPECIAL + 4, "tanh": 2 * _SPECIAL + 8, "erf": _SPECIAL + 18,
    "sin": 30, "cos": 30, "pow": 2 * _SPECIAL + 24, "online_softmax_combine": 2 * _SPECIAL + 12,
    "full": 0, "broadcast_to": 0, "reshape": 0,
}  # fmt: skip
"""Instructions of the functions that do not cost one; divisions are `/`."""
_QUOTIENT = _SPECIAL + 2


def count_instructions(source: str) -> int:
    """Instructions per element of the kernel in *source*."""
    values = [(len(found["indent"]), found["text"]) for found in _VALUE.finditer(source)]
    if "for r0_offset in" in source:
        values = [value for value in values if value[0] >= _LOOP_INDENT]
    return sum(_of_value(text) for _, text in values)


def _of_value(text: str) -> int:
    counts = [
        _QUOTIENT if found["quotient"] else _INSTRUCTIONS.get(found["name"], 1)
        for found in _CALLED.finditer(text)
    ]
    return max(counts, default=1)
