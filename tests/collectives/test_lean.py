"""Exchanges by a framework's own kernels: one crossing, and wires that are busy from the start."""

from __future__ import annotations

import pytest

from collectives.collective import Collective, CollectiveKind
from collectives.uneven import CALL_NS, MESSAGE_NS, WIRE_RATIO, price_lean
from perfmodel.base.errors import InputError
from tests.collectives.machines import build_host
from topologies import build_cluster


def _cluster(hosts: int):
    return build_cluster(build_host(gpus=4, nics=4, nic_gb_per_s=25), hosts=hosts)


def test_a_rail_exchange_keeps_its_nics_busy():
    cluster = _cluster(2)
    matrix = ((0, 1_000_000), (1_000_000, 0))
    call = Collective(CollectiveKind.ALL_TO_ALL, 1_000_000, byte_matrix=matrix)
    cost = price_lean(call, cluster=cluster, ranks=(0, 4))
    # 1 MB over 25 GB/s is 40 us.
    wire_ns = 40_000 / WIRE_RATIO
    assert cost.nic_busy_ns == pytest.approx(wire_ns)
    assert cost.duration_ns == pytest.approx(wire_ns + cost.latency_ns + MESSAGE_NS)
    assert cost.latency_ns >= CALL_NS


def test_an_all_reduce_goes_through_hosts_and_along_rails():
    call = Collective(CollectiveKind.ALL_REDUCE, 8_000_000)
    near, far = (
        price_lean(call, cluster=_cluster(hosts), ranks=range(4 * hosts)) for hosts in (1, 2)
    )
    # Twice half of 8 MB over the four NICs of a host, 100 GB/s.
    assert near.nic_busy_ns == 0
    assert far.nic_busy_ns == pytest.approx(80_000 / WIRE_RATIO)
    assert far.gpu_busy_ns == near.gpu_busy_ns
    assert far.duration_ns > near.duration_ns


def test_one_rank_exchanges_nothing_and_other_collectives_are_refused():
    call = Collective(CollectiveKind.ALL_REDUCE, 1000)
    assert price_lean(call, cluster=_cluster(1), ranks=(0,)).duration_ns == 0
    with pytest.raises(InputError, match="broadcast: lean kernels support"):
        price_lean(Collective(CollectiveKind.BROADCAST, 1000), cluster=_cluster(1), ranks=range(4))


def test_every_further_host_is_one_more_message():
    nothing = Collective(CollectiveKind.ALL_TO_ALL, 0, byte_matrix=((0,) * 4,) * 4)
    reduced = Collective(CollectiveKind.ALL_REDUCE, 0)
    two, four = (
        price_lean(reduced, cluster=_cluster(hosts), ranks=range(4 * hosts)) for hosts in (2, 4)
    )
    # Two more hosts, out and back.
    assert four.duration_ns - two.duration_ns == pytest.approx(4 * MESSAGE_NS)
    rail = price_lean(nothing, cluster=_cluster(4), ranks=(0, 4, 8, 12))
    assert rail.duration_ns == pytest.approx(rail.latency_ns + 3 * MESSAGE_NS)


def test_a_reduce_scatter_and_an_all_gather_are_the_halves_of_an_all_reduce():
    cluster, ranks = _cluster(2), range(8)
    kinds = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
    first, second, both = (
        price_lean(Collective(kind, 8_000_000), cluster=cluster, ranks=ranks) for kind in kinds
    )
    assert first.nic_busy_ns == second.nic_busy_ns == both.nic_busy_ns / 2
    # Each half is one kernel inside the host and one along the rails; they share one in between.
    assert first.duration_ns + second.duration_ns - both.duration_ns == pytest.approx(
        first.latency_ns
    )
