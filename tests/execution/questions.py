"""Questions that tests fan out; at the top level of a module, as Ray needs them."""

from __future__ import annotations

import os
from pathlib import Path

from perfmodel.base.errors import WorkloadError


def multiply(factor: int, value: int) -> int:
    return factor * value


def refuse_odd(shared: str, value: int) -> int:
    if value % 2:
        raise WorkloadError(f"{shared}: must be even, got {value}.")
    return value


def die_once(folder: str, value: int) -> int:
    """The first process that comes to *value* 3 is killed on the spot."""
    mark = Path(folder) / "killed"
    if value == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return value * value
