"""Words and numbers that several reports use: durations, ranks, memory verdicts, commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from perfmodel.base.options import NO_VALUES, options_of
from perfmodel.base.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_duration, format_size
from perfmodel.reports.blocks import Block, Command, Table

if TYPE_CHECKING:
    from perfmodel.prediction.answer import Interval, MemoryFit

_UNITS = (("s", 10 * NS_PER_S, NS_PER_S), ("ms", NS_PER_MS, NS_PER_MS), ("us", 1, NS_PER_US))
"""Name, the shortest whole that is shown in it, and its length."""
_DIGITS = 4

NEEDS_FORCE = "it replays badly: what-ifs on this job need --force"


def build_scale(whole_ns: int) -> Callable[[float], str]:
    """A function that writes parts of *whole_ns* in one unit, with four digits of the whole."""
    unit, _, unit_ns = next(entry for entry in _UNITS if whole_ns >= entry[1] or entry[0] == "us")
    digits_before = len(str(max(whole_ns, 0) // unit_ns))
    decimals = max(_DIGITS - digits_before, 0)
    return lambda duration_ns: f"{duration_ns / unit_ns:,.{decimals}f} {unit}"


def describe_fit(memory: MemoryFit) -> str:
    """What the fullest ranks need and have, and what to change if it is too much."""
    sizes = f"{format_size(memory.peak_bytes)} of {format_size(memory.capacity_bytes)}"
    if memory.fits:
        return f"fits in memory: {sizes}"
    largest = memory.fullest.memory.largest
    return (
        f"DOES NOT FIT: needs {sizes}, most of it {largest.name} "
        f"({format_size(largest.size_bytes)}). {largest.advice}"
    )


_ADDED_LATER = ("layout_from", "faults")
"""Fields that a document has only where they are set, so that older questions keep their bytes."""


def to_question_document(question: Any) -> dict[str, Any]:
    """*question* as plain values: everything needed to ask again."""
    values = pick(question, *(one.name for one in fields(question)))
    return {
        name: _plain(value) for name, value in values.items() if value or name not in _ADDED_LATER
    }


def pick(value: Any, *names: str) -> dict[str, Any]:
    """Some attributes of *value*, by name."""
    return {name: getattr(value, name) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def to_command(
    verb: str, question: Any, *, only: Sequence[str] = (), run: Any = None, price: Any = None
) -> str:
    """What to type to ask *question* again: its options, or *only* some, that are not defaults.

    *run* is the whole run that was asked for, *price* the price per GPU and hour.
    """
    words = ["perfmodel", verb, *_typed_options(question, only)]
    words += [] if run is None else _typed_options(run)
    return " ".join([*words, *([] if price is None else [f"--price {_typed(price)}"])])


def _typed_options(question: Any, only: Sequence[str] = ()) -> list[str]:
    words: list[str] = []
    defaults = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(question)
    }
    for name, (_, option) in options_of(question.__class__).items():
        value = getattr(question, name)
        is_untypable = option.min is not None and isinstance(value, int) and value < option.min
        if value is None or value == defaults[name] or is_untypable or (only and name not in only):
            continue
        typed = option.name or f"--{name.replace('_', '-')}"
        if option.flag is not None or value is True:
            words.append(typed)
            continue
        values = (value or (NO_VALUES,)) if isinstance(value, tuple) else (value,)
        texts = [_typed(one) for one in values]
        for text in [",".join(texts)] if option.parse is not None else texts:
            words += [typed, shlex.quote(text)]
    return words


def _typed(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(_plain(value))


def ask_again(
    verb: str, question: Any, rows: Sequence[tuple[str, str]] = (), command: str | None = None
) -> list[Block]:
    """The options of *question* that have a value, more *rows*, and what to type to ask again."""
    asked = []
    for name, value in to_question_document(question).items():
        if value not in (None, "", [], 0):
            text = ", ".join(map(_typed, value if isinstance(value, list) else [value]))
            asked.append((name.replace("_", " "), text))
    return [Table((), [*asked, *rows], code=(1,)), Command(command or to_command(verb, question))]


MAX_PIECES = 4
"""Of a list of ranks; the rest is counted."""


def format_ranks(ranks: Sequence[int], *, max_pieces: int = MAX_PIECES) -> str:
    """*ranks* as ranges, in ascending order."""
    pieces = _split(sorted(ranks))
    shown = [_format_piece(piece) for piece in pieces[:max_pieces]]
    left_out = sum(len(piece) for piece in pieces[max_pieces:])
    if left_out:
        shown.append(f"and {left_out} more")
    return ", ".join(shown)


def count_of(number: int, noun: str) -> str:
    """*number* of them, as `1 host` or `1,024 hosts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0-7`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"


def _split(ranks: list[int]) -> list[list[int]]:
    """Longest runs with one step each; two ranks make a run only if they are neighbours."""
    pieces: list[list[int]] = []
    start = 0
    while start < len(ranks):
        stop, step = start + 1, 1
        if stop < len(ranks):
            step = ranks[stop] - ranks[start]
        while stop < len(ranks) and ranks[stop] - ranks[stop - 1] == step:
            stop += 1
        if step > 1 and stop - start < 3:
            stop = start + 1
        pieces.append(ranks[start:stop])
        start = stop
    return pieces


def _format_piece(piece: list[int]) -> str:
    if len(piece) == 1:
        return str(piece[0])
    step = piece[1] - piece[0]
    return f"{piece[0]}-{piece[-1]}{'' if step == 1 else f' step {step}'}"


def describe_interval(interval: Interval) -> str:
    """The *interval* as it is printed after a time."""
    if not interval.is_known:
        return "interval unknown from one step"
    return f"90 % interval {format_range(interval.low_ns, interval.high_ns)}"


def format_range(low_ns: float, high_ns: float) -> str:
    """Two durations with `to` between them."""
    return f"{format_duration(low_ns)} to {format_duration(high_ns)}"


def shorten(names: Sequence[str], most: int) -> str:
    """The first *most* names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
