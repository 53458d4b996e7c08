"""Rank text: many ranks in few words, `0-7`, `0-120 step 8`, `3, 5, 12`.

The text is exact up to a limit of pieces; beyond it says how many are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_PIECES = 4


def format_ranks(ranks: Sequence[int], *, max_pieces: int = MAX_PIECES) -> str:
    """*ranks* as ranges, in ascending order."""
    pieces = _split(sorted(ranks))
    shown = [_format_piece(piece) for piece in pieces[:max_pieces]]
    left_out = sum(len(piece) for piece in pieces[max_pieces:])
    if left_out:
        shown.append(f"and {left_out} more")
    return ", ".join(shown)


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0-7`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"


def _split(ranks: list[int]) -> list[list[int]]:
    """Longest runs with one step each; two ranks make a run only if they are neighbours."""
    pieces: list[list[int]] = []
    start = 0
    while start < len(ranks):
        stop = _run_end(ranks, start)
        step = ranks[start + 1] - ranks[start] if stop - start > 1 else 1
        if step > 1 and stop - start < 3:
            stop = start + 1
        pieces.append(ranks[start:stop])
        start = stop
    return pieces


def _run_end(ranks: list[int], start: int) -> int:
    stop = start + 1
    while stop < len(ranks) and ranks[stop] - ranks[stop - 1] == ranks[start + 1] - ranks[start]:
        stop += 1
    return stop


def _format_piece(piece: list[int]) -> str:
    if len(piece) == 1:
        return str(piece[0])
    step = piece[1] - piece[0]
    text = f"{piece[0]}-{piece[-1]}"
    return text if step == 1 else f"{text} step {step}"
