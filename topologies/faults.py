"""Faults: what is broken on which host of a machine.

A fault is one line, such as `host:1 gpu:3 nvlink`: hosts, then a vertex or a link, then what
happened to it. `nvlink`: a GPU lost all of its NVLink; `down`: the link, NIC or switch is gone;
`bandwidth=0.5`: that share of it is left; `speed=0.9`: the GPU computes at that share of its speed.
Without hosts host 0 is meant; `host:*` are all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from perfmodel.base.errors import TopologyError
from perfmodel.base.reading import quote
from topologies.link import Fabric, Link, LinkKind, Vertex, VertexKind, parse_selection

EXAMPLES = (
    "Write it like `host:1 gpu:3 nvlink`, `host:0 nic:2 down`, `gpu:0-nvswitch:0 bandwidth=0.5` "
    "or `host:* gpu:5 speed=0.9`."
)
_MOST_HOSTS = 2**20


class Change(Enum):
    """What happened; the value is the word used in files."""

    NVLINK = "nvlink"
    DOWN = "down"
    BANDWIDTH = "bandwidth"
    SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened to the vertices *place*, or to the links between them and *other*.

    *ratio* is the share of bandwidth or speed that is left. *hosts* of None are all.
    """

    hosts: tuple[int, ...] | None
    place: str
    other: str
    change: Change
    ratio: float

    @property
    def where(self) -> str:
        """The vertices or links, as they are written."""
        return f"{self.place}-{self.other}" if self.other else self.place

    def is_on(self, host: int | None) -> bool:
        """Whether *host* has it; None is a host that no fault names."""
        return self.hosts is None or host in self.hosts

    def slowed_gpus(self, vertices: Sequence[Vertex]) -> frozenset[int]:
        """The GPUs that compute more slowly."""
        if self.change is not Change.SPEED:
            return frozenset()
        names = parse_selection(self.place, _counts(vertices))
        return frozenset(int(name.partition(":")[2]) for name in names)

    def apply_to(
        self, links: Sequence[Link], vertices: Sequence[Vertex], fabric: Fabric | None
    ) -> list[Link]:
        """What it leaves of *links*."""
        counts = _counts(vertices)
        places = parse_selection(self.place, counts)
        others = parse_selection(self.other, counts) if self.other else ()
        if self.change is Change.SPEED:
            return list(links)
        left, is_hit = [], False
        for link in links:
            ends = (link.source, link.target)
            is_meant = any(
                a in places and (not others or b in others) for a, b in (ends, ends[::-1])
            ) and (self.change is not Change.NVLINK or link.kind is LinkKind.NVLINK)
            is_hit |= is_meant
            if not is_meant:
                left.append(link)
            elif self.change is Change.BANDWIDTH:
                # The port of a NIC is as fast as its fabric says, its wires may be faster.
                is_port = not others and self.place.startswith("nic:") and fabric is not None
                port = fabric.nic_bandwidth_bytes_per_s if is_port and fabric else math.inf
                rate = self.ratio * min(link.bandwidth_bytes_per_s, port)
                left.append(replace(link, bandwidth_bytes_per_s=rate))
        if not is_hit:
            what = "NVLink there" if self.change is Change.NVLINK else "such link"
            raise TopologyError(
                f"fault at {self.where}: the machine has no {what}. "
                "`perfmodel topology show` lists what is wired to what."
            )
        return left

    def describe(self) -> str:
        """What happened and what follows, without the hosts."""
        if self.change is Change.NVLINK:
            return f"{self.place} lost NVLink: groups with it go over PCIe"
        if self.change is Change.DOWN:
            rest = ": its GPUs share the other NICs" if self.place.startswith("nic:") else ""
            return f"{self.where} is down{'' if self.other else rest}"
        if self.change is Change.BANDWIDTH:
            return f"{self.where} has {self.ratio:g} of its bandwidth"
        return (
            f"{self.place} computes at {self.ratio:g} of its speed (kernels, not copies, host work "
            "or collectives)"
        )


def parse_fault(text: object) -> Fault:
    """The fault that *text* states."""
    if not isinstance(text, str):
        raise TopologyError(f"a fault must be a text, got {quote(text)}. {EXAMPLES}")
    words = text.split()
    hosts: tuple[int, ...] | None = (0,)
    if words and words[0].startswith("host:"):
        named = words.pop(0)
        found = () if named == "host:*" else parse_selection(named, {"host": _MOST_HOSTS})
        hosts = tuple(int(name.partition(":")[2]) for name in found) or None
    if len(words) != 2:
        raise TopologyError(
            f"fault {text!r}: must name a place and what happened there. {EXAMPLES}"
        )
    place, *others = re.split(r"-(?=[a-z])", words[0])
    word, sign, number = words[1].partition("=")
    changes = {change.value: change for change in Change}
    change = changes.get(word)
    needs_ratio = change in (Change.BANDWIDTH, Change.SPEED)
    if change is None or len(others) > 1 or needs_ratio != bool(sign):
        raise TopologyError(
            f"fault {text!r}: must end with nvlink, down, bandwidth=RATIO or speed=RATIO. "
            f"{EXAMPLES}"
        )
    kind = place.partition(":")[0]
    of_gpu = change in (Change.NVLINK, Change.SPEED)
    if of_gpu != (kind == VertexKind.GPU.value and not others):
        rule = (
            "is about a GPU, such as gpu:3"
            if of_gpu
            else "is about a link, a NIC or a switch. A GPU that is gone runs no rank: use fewer "
            "ranks per host"
        )
        raise TopologyError(f"fault {text!r}: {word} {rule}. {EXAMPLES}")
    return Fault(hosts, place, "".join(others), change, _parse_ratio(text, number) if sign else 1.0)


def _parse_ratio(text: str, number: str) -> float:
    try:
        ratio = float(number)
    except ValueError:
        ratio = math.nan
    if not 0 < ratio <= 1:
        raise TopologyError(
            f"fault {text!r}: must say which share is left, above 0 and at most 1, got {number!r}."
        )
    return ratio


def _counts(vertices: Sequence[Vertex]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for vertex in vertices:
        counts[vertex.kind.value] = counts.get(vertex.kind.value, 0) + 1
    return counts
