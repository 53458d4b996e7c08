"""The compiler's self-test: kernels and bytes of one small function are known.

The front half of the compiler is reached through names that are private to one version of torch. A
wrong one may fail, or may silently count other bytes, so both are compared before anything of the
script is compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import tracing
from torch.utils._python_dispatch import _disable_current_modes

from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.rank_record import CallType

ROWS, COLUMNS, PICKED = 64, 512, 16
_FLOAT, _LONG = 4, 8
EXPECTED = (
    # The sum is kept besides its mean over rows; a dimension that is broadcast is read once.
    ("persistent_reduction", (ROWS + 1) * COLUMNS * _FLOAT, (ROWS * COLUMNS + ROWS) * _FLOAT),
    # Of the table only as much is read as is looked up.
    ("pointwise", PICKED * (COLUMNS * _FLOAT + _LONG), PICKED * COLUMNS * _FLOAT),
)
"""Kind, bytes read and bytes written of the kernels of `small_function`."""


def small_function(matrix: Any, bias: Any, places: Any) -> tuple[Any, Any, Any]:
    """A sum that is kept, the mean of its rows, and a lookup in it."""
    total = torch.relu(matrix + bias)
    return total, total.mean(-1), torch.sin(total[places])


def prove_compiler(gpu: Gpu) -> None:
    """Compile `small_function` and compare; a difference is an error.

    The first region of a script may be compiled inside of others' modes, which end here.
    """
    with (
        _disable_current_modes(),
        tracing(None),
        torch.no_grad(),
        torch.autocast("cuda", enabled=False),
    ):
        found = _compile(gpu)
    if found != EXPECTED:
        raise RuntimeError(f"the compiler's self-test gave the kernels {found}, not {EXPECTED}")


def _compile(gpu: Gpu) -> tuple[tuple[str, int, int], ...]:
    """Kind, bytes read and bytes written of every kernel of `small_function`."""
    from torch._inductor.compile_fx import compile_fx

    tensors = (
        torch.empty(ROWS, COLUMNS, device="cuda"),
        torch.empty(COLUMNS, device="cuda"),
        torch.empty(PICKED, dtype=torch.int64, device="cuda"),
    )
    compiled: Any = compile_fx(torch.fx.symbolic_trace(small_function), list(tensors))
    recorder = gpu.recorder
    was_on, recorder.is_on = recorder.is_on, True
    start = len(recorder.calls)
    try:
        compiled(*tensors)
        kinds = [
            recorder.kinds[call[1]] for call in recorder.calls[start:] if call[0] == CallType.KERNEL
        ]
    finally:
        recorder.is_on = was_on
        del recorder.calls[start:]
    return tuple(
        (str(words["arguments"].get("kind")), _bytes(words["inputs"]), _bytes(words["outputs"]))
        for words in kinds
    )


def _bytes(rows: Any) -> int:
    return sum(row[3] for row in rows)
