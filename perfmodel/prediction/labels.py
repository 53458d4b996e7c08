"""Labels: one name for tasks that differ only in a number, `layer */ffn/up forward`."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\b\d+\b")


def merge_numbers(label: str) -> str:
    """*label* with every whole number in it replaced by a star."""
    return _NUMBER.sub("*", label)
