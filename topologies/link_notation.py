"""Link notation: how a few lines of a file become all links of a host.

`between: [A, B]` makes both directions, `from: A` with `to: B` only one, `mesh: A`
joins every two of a selection. The pattern says who of A meets whom of B.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from itertools import combinations, product

from perfmodel.base.errors import TopologyError
from perfmodel.base.units import parse_bandwidth, parse_duration_ns
from topologies.link import HOST_KINDS, HOST_LINK_KINDS, Link, LinkKind
from topologies.reading import Section

# `gpu:*` is every GPU, `gpu:0-3` a range with both ends, `gpu:0,5` two of them.


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


Pairs = list[tuple[str, str]]


class Pattern(Enum):
    """Who meets whom; the value is the word used in files."""

    ALL = "all"
    IN_ORDER = "in_order"
    SPREAD = "spread"


def read_links(entry: Section, counts: Mapping[str, int]) -> list[Link]:
    """The links one entry of `links:` stands for; faults are noted in its list."""
    before = len(entry.faults.faults)
    pairs = _read_pairs(entry, counts)
    kind = entry.word("kind", LinkKind, allowed=HOST_LINK_KINDS)
    lanes = entry.integer("lanes", default=1)
    bandwidth = entry.quantity("bandwidth", parse_bandwidth)
    latency = entry.quantity("latency", parse_duration_ns, zero=True)
    entry.refuse_unknown()
    if len(entry.faults.faults) > before:
        return []
    return [
        Link(
            source=source,
            target=target,
            bandwidth_bytes_per_s=bandwidth * lanes,
            latency_ns=latency,
            kind=kind,
            lanes=lanes,
        )
        for source, target in pairs
    ]


def _read_pairs(entry: Section, counts: Mapping[str, int]) -> Pairs:
    ways = [key for key in ("between", "mesh", "from") if entry.has(key)]
    if len(ways) != 1:
        rule = "must name its ends once: `between: [A, B]`, `mesh: A`, or `from: A` with `to: B`"
        entry.faults.add(entry.place, f"{rule}, got {ways or 'none'}")
        entry.read.update(("to", "pattern"))
        return []
    if ways == ["mesh"]:
        members = _read_selection(entry, "mesh", entry.raw("mesh"), counts)
        return _both_ways(list(combinations(members, 2)))
    if ways == ["between"]:
        ends = entry.raw("between")
        if not (isinstance(ends, list) and len(ends) == 2):
            entry.fault("between", f"must be a list of two ends, got {ends!r}")
            return []
        left = _read_selection(entry, "between[0]", ends[0], counts)
        right = _read_selection(entry, "between[1]", ends[1], counts)
        return _both_ways(_pair_up(entry, left, right))
    left = _read_selection(entry, "from", entry.raw("from"), counts)
    right = _read_selection(entry, "to", entry.raw("to"), counts) if entry.has("to") else ()
    if not entry.has("to"):
        entry.fault("to", "must be given with `from`, but is missing")
    return _pair_up(entry, left, right)


def _both_ways(pairs: Pairs) -> Pairs:
    return [way for a, b in pairs for way in ((a, b), (b, a))]


def _read_selection(
    entry: Section, key: str, text: object, counts: Mapping[str, int]
) -> tuple[str, ...]:
    try:
        return parse_selection(text, counts)
    except TopologyError as fault:
        entry.fault(key, str(fault))
        return ()


def _pair_up(entry: Section, left: tuple[str, ...], right: tuple[str, ...]) -> Pairs:
    pattern = entry.word("pattern", Pattern) if entry.has("pattern") else Pattern.ALL
    if not left or not right:
        return []
    pairs: Pairs
    if pattern is Pattern.ALL:
        pairs = list(product(left, right))
    elif pattern is Pattern.IN_ORDER:
        if len(left) != len(right):
            entry.fault("pattern", f"in_order needs equal ends, got {len(left)} and {len(right)}")
        pairs = list(zip(left, right, strict=False))
    else:
        if len(left) % len(right):
            entry.fault("pattern", f"spread cannot deal {len(left)} evenly to {len(right)}")
        share = max(1, len(left) // len(right))
        pairs = [
            (name, right[position // share % len(right)]) for position, name in enumerate(left)
        ]
    selves = sorted({a for a, b in pairs if a == b})
    if selves:
        entry.faults.add(
            entry.place, f"must join different vertices, joins {', '.join(selves)} to itself"
        )
    return pairs
