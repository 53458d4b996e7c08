"""Taking measurements on the machine that this runs on.

Only what it found is here; the modules need torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FamilyError:
    """How far the fitted device is from the measurements of one family."""

    count: int
    median_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """Files that were written, what the fit leaves, and how noisy the machine was.

    *lost_ratio* is the share of time in which others had our core, *spread_ratio* the median
    distance between low and high samples.
    """

    topology: Path
    device: Path
    stack: str
    errors: Mapping[str, FamilyError]
    lost_ratio: float
    spread_ratio: float
