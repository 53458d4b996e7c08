"""Provenance: how we know a duration, best first."""

from __future__ import annotations

from enum import IntEnum


class Provenance(IntEnum):
    """How a duration is known. A larger value is weaker knowledge."""

    RECORDED = 0
    MEASURED = 1
    INTERPOLATED = 2
    EXTRAPOLATED = 3
    ANALYTIC = 4
    ASSUMED = 5
    # Enum hashes names, and in Python; ops of a recording are hashed a hundred thousand times.
    __hash__ = int.__hash__

    @property
    def word(self) -> str:
        """The word used in reports and files."""
        return self.name.lower()
