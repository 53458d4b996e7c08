"""Units: the only place that knows what giga, gibi, bit and microsecond mean.

Giga is 10**9 and gibi is 2**30. A quantity in a file carries its unit
(`450 GB/s`); a bare number is refused, because every reader would guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from perfmodel.base.errors import UnitError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_HOUR = 3_600 * NS_PER_S
BYTES_PER_GIB = 2**30
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIX = {**_DECIMAL, **_BINARY}
_TIME_NS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
LEAST, MOST = 1e-6, 1e24
"""What a quantity other than zero may be, in bytes, ns and the like; beyond it, sums overflow."""
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*)?\.?\d*(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)\s*")


def parse_size(text: str) -> int:
    """Bytes in *text*, such as `80 GiB` or `25 MB`."""
    value, unit = _split(text, "80 GiB")
    if unit.islower() or unit.isupper():
        # Nobody stores bits, so 64mb means what 64 MB means.
        lower = unit.lower()
        is_binary = lower.endswith("ib")
        prefix = lower.removesuffix("ib" if is_binary else "b").upper()
        unit = f"{prefix}{'iB' if is_binary else 'B'}" if lower.endswith("b") else unit
    return round(_scaled(text, value, _scale(text, unit, ("B",), "80 GiB")))


def parse_bandwidth(text: str) -> float:
    """Bytes per second in *text*, such as `450 GB/s` or `400 Gbit/s`."""
    value, unit = _split(text, "450 GB/s")
    unit = re.sub(r"(?<=[Bb])ps$", "/s", unit)
    if unit.endswith("b/s") and not unit.islower():
        # A small b is a bit in every data sheet of a network.
        unit = f"{unit.removesuffix('b/s')}bit/s"
    is_bit = unit.endswith("bit/s")
    factor = _scale(text, unit, ("bit/s",) if is_bit else ("B/s",), "450 GB/s or 400 Gbit/s")
    return _scaled(text, value, factor / (8 if is_bit else 1))


def parse_duration_ns(text: str) -> float:
    """Nanoseconds in *text*, such as `1.5 us`."""
    value, unit = _split(text, "1.5 us")
    if unit not in _TIME_NS:
        raise _wrong_unit(text, unit, "1.5 us")
    return _scaled(text, value, _TIME_NS[unit])


_LONG_NS = {
    **_TIME_NS,
    "min": 60 * NS_PER_S,
    "h": NS_PER_HOUR,
    "d": 24 * NS_PER_HOUR,
    "w": 168 * NS_PER_HOUR,
}


def parse_long_duration_ns(text: str) -> float:
    """Nanoseconds in *text*, such as `30 d`, `12 h` or `10 min`."""
    value, unit = _split(text, "30 d")
    unit = unit if unit in _LONG_NS else unit.removesuffix("ays").removesuffix("ours")
    if unit not in _LONG_NS:
        raise _wrong_unit(text, unit, "30 d")
    return _scaled(text, value, _LONG_NS[unit])


_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def parse_count(text: str) -> float:
    """The number in *text*, such as `300B`, `1.5T` or `2e12`; ValueError for anything else."""
    found = re.fullmatch(r"([\d_,]*\.?\d+(?:[eE]\+?\d+)?)\s*([kKMBGT]?)", text.strip())
    value = float(re.sub("[_,]", "", found[1])) * _COUNTS[found[2].upper()] if found else 0.0
    if not 0 < value <= MOST:
        raise ValueError(f"must be a number above zero like 300B or 1.5T, got {text!r}")
    return value


def parse_rate_flops(text: str) -> float:
    """Operations per second in *text*, such as `989 TFLOP/s`."""
    return _parse(text, ("FLOP/s", "OP/s"), "989 TFLOP/s")


def parse_frequency_hz(text: str) -> float:
    """Hertz in *text*, such as `1.98 GHz`."""
    return _parse(text, ("Hz",), "1.98 GHz")


def parse_power_w(text: str) -> float:
    """Watts in *text*, such as `700 W`."""
    return _parse(text, ("W",), "700 W")


def _parse(text: str, bases: tuple[str, ...], example: str) -> float:
    value, unit = _split(text, example)
    return _scaled(text, value, _scale(text, unit, bases, example))


def format_size(size_bytes: float) -> str:
    """*size_bytes* for people: `64 MiB`."""
    return _format(size_bytes, {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1})


def format_duration(duration_ns: float) -> str:
    """*duration_ns* for people: `12.3 ms`."""
    return _format(duration_ns, {"s": NS_PER_S, "ms": NS_PER_MS, "us": NS_PER_US, "ns": 1})


def format_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """*bandwidth_bytes_per_s* for people: `450 GB/s`."""
    steps = {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1}
    return _format(bandwidth_bytes_per_s, steps)


def _format(value: float, units: Mapping[str, float]) -> str:
    """*value* in the largest of *units* that it reaches, or in the last."""
    unit = next((unit for unit, factor in units.items() if abs(value) >= factor), [*units][-1])
    return f"{value / units[unit]:.4g} {unit}"


def _split(text: str, example: str) -> tuple[float, str]:
    if not isinstance(text, str):
        raise _fault(f"must carry its unit, got {text!r} of type {type(text).__name__}", example)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _fault(f"must carry its unit, got {text!r}", example)
    try:
        value = float(match[1])
    except ValueError:
        raise _fault(f"must start with a number, got {text!r}", example) from None
    if not math.isfinite(value):
        raise _fault(f"must be finite, got {text!r}", example)
    return value, match[2]


def _fault(rule: str, example: str) -> UnitError:
    return UnitError(f"quantity: {rule}. Write it like {example!r}.")


def _scale(text: str, unit: str, bases: tuple[str, ...], example: str) -> float:
    for base in bases:
        prefix = unit.removesuffix(base)
        if unit.endswith(base) and prefix in _PREFIX:
            return _PREFIX[prefix]
    raise _wrong_unit(text, unit, example)


def _scaled(text: str, value: float, factor: float) -> float:
    scaled = value * factor
    if scaled != 0 and not LEAST <= abs(scaled) <= MOST:
        raise UnitError(f"quantity {text!r}: is too small or too large to be real.")
    return scaled


def _wrong_unit(text: str, unit: str, example: str) -> UnitError:
    return UnitError(f"quantity {text!r}: unknown unit {unit!r}. Write it like {example!r}.")


def is_number(text: str) -> bool:
    """Whether *text* is written as a number, without a unit."""
    try:
        float(text)
    except ValueError:
        return False
    return True
