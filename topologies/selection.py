"""Selections: the short way files name several vertices at once.

`gpu:*` is every GPU, `gpu:0-3` a range with both ends, `gpu:0,5` two of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfmodel.base.errors import TopologyError
from topologies.vertex import HOST_KINDS

_SELECTION = re.compile(r"([a-z_]+):(\*|\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")
_MAX_DIGITS = 6


def parse_selection(text: object, counts: Mapping[str, int]) -> tuple[str, ...]:
    """The vertex names *text* stands for, given how many there are of each kind."""
    match = _SELECTION.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    if match is None:
        raise TopologyError(f"must look like gpu:0, gpu:0-3, gpu:0,2 or gpu:*, got {text!r}")
    kind, places = match.groups()
    if kind not in counts:
        known = ", ".join(counts) or ", ".join(member.value for member in HOST_KINDS)
        raise TopologyError(f"{text!r} names no vertex kind of this file; it has {known}")
    if places == "*":
        return tuple(f"{kind}:{index}" for index in range(counts[kind]))
    names: list[str] = []
    for part in places.split(","):
        first, _, last = part.partition("-")
        if max(len(first), len(last)) > _MAX_DIGITS:
            raise TopologyError(f"{text!r} has a number too large to be a vertex")
        low, high = int(first), int(last or first)
        if high < low:
            raise TopologyError(f"{text!r} has a range that runs backwards; write {high}-{low}")
        if high >= counts[kind]:
            raise TopologyError(
                f"{text!r} dangles: there is no {kind}:{high}, only {kind}:0 to "
                f"{kind}:{counts[kind] - 1}"
            )
        names += [f"{kind}:{index}" for index in range(low, high + 1)]
    return tuple(names)
