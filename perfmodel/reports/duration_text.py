"""Duration text: durations of one table in one unit, so that they can be compared by eye."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.units import NS_PER_MS, NS_PER_S, NS_PER_US

_UNITS = (("s", 10 * NS_PER_S, NS_PER_S), ("ms", NS_PER_MS, NS_PER_MS), ("us", 1, NS_PER_US))
"""Name, the shortest whole that is shown in it, and its length."""
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class DurationScale:
    """A unit and a number of decimals: those that show four digits of the whole."""

    unit: str
    unit_ns: int
    decimals: int

    def text(self, duration_ns: float) -> str:
        """*duration_ns* on this scale."""
        return f"{duration_ns / self.unit_ns:,.{self.decimals}f} {self.unit}"


def build_scale(whole_ns: int) -> DurationScale:
    """The scale for *whole_ns* and its parts."""
    unit, _, unit_ns = next(entry for entry in _UNITS if whole_ns >= entry[1] or entry[0] == "us")
    digits_before = len(str(max(whole_ns, 0) // unit_ns))
    return DurationScale(unit, unit_ns, max(_DIGITS - digits_before, 0))
