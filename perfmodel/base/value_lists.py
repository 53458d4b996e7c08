"""Value lists: several values typed as one word, for sweeps.

`4096,8192,16384` names them; `4096:65536:x2` multiplies and `1:9:+4` adds up
to the second number; `0.25..0.5..1` is read as the comma list is.
"""

from __future__ import annotations

from perfmodel.base.errors import InputError

MOST_VALUES = 1000
EXAMPLES = "Write them like 4096,8192 or 4096:65536:x2 or 1:9:+4."


def expand_values(text: str) -> tuple[str, ...]:
    """The values that *text* names, in its order."""
    text = text.strip()
    ends = text.split(":")
    if len(ends) in (2, 3) and _is_number(ends[0]) and _is_number(ends[1]):
        return _range(text, ends)
    if ".." in text and not {",", "/"} & set(text):
        return _named(text, text.split(".."))
    return _named(text, text.split(","))


def _named(text: str, pieces: list[str]) -> tuple[str, ...]:
    values = tuple(piece.strip() for piece in pieces)
    if not all(values):
        raise InputError(f"values {text!r}: one of them is empty. {EXAMPLES}")
    if len(set(values)) < len(values):
        raise InputError(f"values {text!r}: one of them is there twice. {EXAMPLES}")
    return values


def _range(text: str, ends: list[str]) -> tuple[str, ...]:
    first, last = float(ends[0]), float(ends[1])
    step = ends[2].strip() if len(ends) == 3 else "+1"
    sign, number = step[:1], step[1:]
    if sign not in ("x", "+") or not _is_number(number):
        raise InputError(f"values {text!r}: the step must be like x2 or +4, got {step!r}.")
    by = float(number)
    if last < first or by <= (1 if sign == "x" else 0) or (sign == "x" and first <= 0):
        raise InputError(f"values {text!r}: must go up from the first to the second. {EXAMPLES}")
    values = [first]
    while (following := values[-1] * by if sign == "x" else values[-1] + by) <= last * (1 + 1e-12):
        values.append(following)
        if len(values) > MOST_VALUES:
            raise InputError(f"values {text!r}: are more than {MOST_VALUES}. Take a larger step.")
    return tuple(f"{value:.15g}" for value in values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
