from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import TopologyError
from tests.topologies.machines import both_ways, build_pcie_host, build_topology, wire
from topologies import LinkKind, Route
from topologies.routing import build_routes_to

NVLINK = LinkKind.NVLINK


def stops(topology, a, b):
    return topology.gpu_route(a, b).stops


def test_a_route_is_as_fast_as_its_slowest_link_and_pays_every_latency():
    route = Route((wire("gpu:0", "cpu:0", 32.0), wire("cpu:0", "gpu:1", 16.0)))

    assert route.bandwidth_bytes_per_s == 16e9
    assert route.latency_ns == 200


def test_links_of_a_route_must_follow_each_other():
    with pytest.raises(TopologyError, match="links must follow each other"):
        Route((wire("gpu:0", "cpu:0"), wire("cpu:1", "gpu:1")))
    with pytest.raises(TopologyError, match="at least one link"):
        Route(())


SHORT = [*both_ways("gpu:0", "cpu:0", 1.0), *both_ways("gpu:1", "cpu:0", 1.0)]
LONG = [
    *both_ways("gpu:0", "pcie_switch:0", 99.0),
    *both_ways("pcie_switch:0", "pcie_switch:1", 99.0),
    *both_ways("gpu:1", "pcie_switch:1", 99.0),
]
UNEVEN = [*both_ways("gpu:0", "cpu:0", 99.0), *both_ways("gpu:1", "cpu:0", 1.0)]
EVEN = [*both_ways("gpu:0", "cpu:1", 2.0), *both_ways("gpu:1", "cpu:1", 2.0)]
WIDE = [*both_ways("gpu:0", "cpu:0", 999), *both_ways("gpu:1", "cpu:0", 999)]
SWITCHED = [
    *both_ways("gpu:0", "nvswitch:0", 10, NVLINK), *both_ways("gpu:1", "nvswitch:0", 10, NVLINK),
]  # fmt: skip


@pytest.mark.parametrize(
    ("links", "counts", "wanted"),
    [
        (SHORT + LONG, {"gpu": 2, "pcie_switch": 2, "cpu": 1}, "cpu:0"),
        (UNEVEN + EVEN, {"gpu": 2, "cpu": 2}, "cpu:1"),
        (WIDE + SWITCHED, {"gpu": 2, "nvswitch": 1, "cpu": 1}, "nvswitch:0"),
    ],
    ids=["fewest links win over more bandwidth", "the faster slowest link wins", "nvlink wins"],
)
def test_of_two_routes_one_wins(links, counts, wanted):
    assert stops(build_topology(links, counts=counts), 0, 1) == (wanted,)


def test_of_equal_routes_the_first_written_wins():
    pair = [*both_ways("gpu:0", "cpu:1"), *both_ways("gpu:1", "cpu:1")]
    other = [*both_ways("gpu:0", "cpu:0"), *both_ways("gpu:1", "cpu:0")]

    for links, first in ((pair + other, "cpu:1"), (other + pair, "cpu:0")):
        host = build_topology(links, counts={"gpu": 2, "cpu": 2}, peer_to_peer=True)
        assert stops(host, 0, 1) == (first,)


def chain(**changes):
    """gpu:0 - gpu:1 - gpu:2 by NVLink, and all three on one socket."""
    links = [*both_ways("gpu:0", "gpu:1", 50, NVLINK), *both_ways("gpu:1", "gpu:2", 25, NVLINK)]
    for gpu in range(3):
        links += both_ways(f"gpu:{gpu}", "cpu:0")
    return build_topology(links, counts={"gpu": 3, "cpu": 1}, **changes)


def test_a_gpu_is_passed_only_where_the_machine_says_its_gpus_forward():
    assert stops(chain(), 0, 2) == ("cpu:0",)

    route = chain(gpus_forward=True).gpu_route(0, 2)
    assert route.stops == ("gpu:1",)
    assert route.passes_gpu
    assert route.bandwidth_bytes_per_s == 25e9


def test_a_host_that_does_not_say_sends_through_the_socket_where_there_is_one():
    assert build_pcie_host(peer_to_peer=None).gpu_route(0, 1).links == (
        build_pcie_host(peer_to_peer=False).gpu_route(0, 1).links
    )
    alone = build_topology(both_ways("gpu:0", "gpu:1"), counts={"gpu": 2})
    assert stops(alone, 0, 1) == ()


def test_without_peer_to_peer_traffic_climbs_to_the_socket_and_back():
    assert stops(build_pcie_host(), 0, 1) == ("pcie_switch:0",)

    route = build_pcie_host(peer_to_peer=False).gpu_route(0, 1)
    assert route.stops == ("pcie_switch:0", "cpu:0", "pcie_switch:0")
    assert route.bandwidth_bytes_per_s == 16e9
    assert route.passes_cpu
    # NVLink still works.
    assert stops(chain(peer_to_peer=False), 0, 1) == ()


names = st.sampled_from([f"cpu:{index}" for index in range(6)])
random_links = st.lists(
    st.tuples(names, names, st.integers(1, 3)).filter(lambda link: link[0] != link[1]),
    max_size=16,
    unique_by=lambda link: link[:2],
)


def all_simple_routes(links, source, target, so_far=()):
    if source == target:
        yield so_far
        return
    visited = {index for link in so_far for index in (link[1].source, link[1].target)}
    for index, link in enumerate(links):
        if link.source == source and link.target not in visited:
            yield from all_simple_routes(links, link.target, target, (*so_far, (index, link)))


@given(drawn=random_links, closed=st.sets(names, max_size=2))
def test_routes_are_the_best_of_all_by_the_written_rule(drawn, closed):
    links = [wire(source, target, speed) for source, target, speed in drawn]
    source, target = "cpu:0", "cpu:5"

    found = build_routes_to(target, links, may_pass=lambda name: name not in closed).route(source)

    allowed = [
        route
        for route in all_simple_routes(links, source, target)
        if not any(link.target in closed for _, link in route[:-1])
    ]
    best = min(
        allowed,
        key=lambda route: (
            len(route),
            -min(link.bandwidth_bytes_per_s for _, link in route),
            [index for index, _ in route],
        ),
        default=None,
    )
    assert (found and found.links) == (best and tuple(link for _, link in best))


@given(drawn=random_links)
def test_routes_are_joined_end_to_end(drawn):
    links = [wire(source, target, speed) for source, target, speed in drawn]
    route = build_routes_to("cpu:5", links, may_pass=lambda _: True).route("cpu:0")
    if route is not None:
        assert (route.source, route.target) == ("cpu:0", "cpu:5")
        assert all(a.target == b.source for a, b in pairwise(route.links))
