"""Plain text: names from traces without what a terminal would obey."""

from __future__ import annotations


def printable(text: str) -> str:
    """*text* without control letters; those of it become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
