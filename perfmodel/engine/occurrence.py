"""Occurrence: one task of one rank in one iteration."""

from __future__ import annotations

from typing import NamedTuple


class Occurrence(NamedTuple):
    """A task of a rank in one iteration."""

    iteration: int
    rank: int
    task: int
