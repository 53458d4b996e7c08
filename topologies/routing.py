"""Routing: which links a transfer inside one host takes.

A route of NVLinks alone wins over any other; it passes other GPUs only if the machine's GPUs
forward. Among routes of the same sort: fewest links, then the highest bandwidth of the slowest
link, then of the last link, as NCCL finds them (it searches from the target, wide links first),
then the order of links in the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from topologies.link import Link, LinkKind, Route, Vertex, VertexKind


@dataclass(frozen=True, slots=True)
class RoutesTo:
    """The best route to *target* from every vertex that has one."""

    target: str
    hops: dict[str, int]
    width: dict[str, float]
    last_width: dict[str, float]
    leaving: dict[str, list[Link]]

    def route(self, source: str) -> Route | None:
        """The best route from *source*, or none."""
        if source not in self.hops or source == self.target:
            return None
        chosen: list[Link] = []
        place = source
        while place != self.target:
            links = [
                link
                for link in self.leaving[place]
                if self.hops.get(link.target) == self.hops[place] - 1
                and min(link.bandwidth_bytes_per_s, self.width[link.target]) >= self.width[source]
            ]
            # Of equals max takes the first.
            link = max(links, key=self._last_width)
            chosen.append(link)
            place = link.target
        return Route(tuple(chosen))

    def _last_width(self, link: Link) -> float:
        """The last link of the best route over *link*."""
        is_last = link.target == self.target
        return link.bandwidth_bytes_per_s if is_last else self.last_width[link.target]


def build_routes_to(
    target: str, links: Sequence[Link], *, may_pass: Callable[[str], bool]
) -> RoutesTo:
    """Find the routes to *target* over *links* that pass only where *may_pass* allows."""
    leaving: dict[str, list[Link]] = {}
    arriving: dict[str, list[Link]] = {}
    for link in links:
        if link.target == target or may_pass(link.target):
            leaving.setdefault(link.source, []).append(link)
            arriving.setdefault(link.target, []).append(link)
    hops = {target: 0}
    width = {target: float("inf")}
    last_width = {target: 0.0}
    waiting = deque([target])
    while waiting:
        place = waiting.popleft()
        for link in arriving.get(place, ()):
            before = link.source
            if before not in hops:
                hops[before] = hops[place] + 1
                width[before] = 0.0
                waiting.append(before)
            if hops[before] == hops[place] + 1:
                through = min(link.bandwidth_bytes_per_s, width[place])
                last = last_width[place] if hops[place] else link.bandwidth_bytes_per_s
                if (through, last) > (width[before], last_width.get(before, 0.0)):
                    width[before], last_width[before] = through, last
    return RoutesTo(target, hops, width, last_width, leaving)


@dataclass(frozen=True, slots=True)
class Router:
    """Finds the routes of one host and remembers them."""

    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]
    peer_to_peer: bool | None
    gpus_forward: bool
    _kinds: dict[str, VertexKind] = field(init=False, repr=False)
    _tables: dict[tuple[str, str], RoutesTo] = field(default_factory=dict, init=False, repr=False)
    _routes: dict[tuple[str, str], Route | None] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        kinds = {vertex.name: vertex.kind for vertex in self.vertices}
        object.__setattr__(self, "_kinds", kinds)

    def route(self, source: str, target: str) -> Route | None:
        """The route from *source* to *target*, or none."""
        key = (source, target)
        if key not in self._routes:
            found = (route for route in self._candidates(source, target) if route is not None)
            self._routes[key] = next(found, None)
        return self._routes[key]

    def has_vertex(self, name: str) -> bool:
        """Whether the host has a vertex of this *name*."""
        return name in self._kinds

    def table(self, target: str) -> RoutesTo:
        """The routes to *target* over all links, passing neither GPUs nor NICs."""
        return self._table("any", target)

    def _candidates(self, source: str, target: str) -> Iterator[Route | None]:
        yield self._table("nvlink", target).route(source)
        if self.gpus_forward:
            yield self._table("nvlink through gpus", target).route(source)
        ends = (self._kinds[source], self._kinds[target])
        is_between_gpus = ends == (VertexKind.GPU, VertexKind.GPU) and source != target
        if is_between_gpus and not self.peer_to_peer:
            yield self._through_cpu(source, target)
        if not is_between_gpus or self.peer_to_peer is not False:
            yield self._table("any", target).route(source)

    def _through_cpu(self, source: str, target: str) -> Route | None:
        found = []
        for vertex in self.vertices:
            if vertex.kind is VertexKind.CPU:
                up = self._table("any", vertex.name).route(source)
                down = self._table("any", target).route(vertex.name)
                if up is not None and down is not None:
                    found.append(Route(up.links + down.links))
        return min(
            found,
            key=lambda route: (len(route.links), -route.bandwidth_bytes_per_s),
            default=None,
        )

    def _table(self, sort: str, target: str) -> RoutesTo:
        key = (sort, target)
        if key not in self._tables:
            links = self.links
            if sort != "any":
                links = tuple(link for link in links if link.kind is LinkKind.NVLINK)
            closed = {VertexKind.NIC} if "through" in sort else {VertexKind.NIC, VertexKind.GPU}
            self._tables[key] = build_routes_to(
                target, links, may_pass=lambda name: self._kinds[name] not in closed
            )
        return self._tables[key]
