"""Groups that share a NIC are found, and pay for it."""

from __future__ import annotations

import pytest

from collectives import Collective, CollectiveKind
from perfmodel.costs.pricing import find_rivals, price_job
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import LaneKind
from perfmodel.stacks.profiles import load_stack
from topologies import build_cluster, load_topology


def one_all_reduce(groups: list[list[int]]) -> JobGraph:
    builder = JobBuilder()
    program = builder.new_program()
    lane = program.add_lane("communication", LaneKind.COMMUNICATION)
    call = Communication(Collective(CollectiveKind.ALL_REDUCE, 2**28))
    program.add_rendezvous(lane, call, label="all-reduce", slot=0)
    number = builder.add_program(program.build())
    for _ in range(sum(len(group) for group in groups)):
        builder.add_rank(number)
    for place, group in enumerate(groups):
        builder.add_group(f"data {place}", group, slot=0)
    return builder.build(JobFacts("one all-reduce"))


def across_two_hosts(ranks_per_host: int) -> JobGraph:
    """One group for each place in the host: ranks 0 and 4, 1 and 5, ..."""
    return one_all_reduce([[place, place + ranks_per_host] for place in range(ranks_per_host)])


def test_neighbours_on_one_nic_are_rivals():
    # Polaris: GPUs 0 and 1 share a NIC, and so do 2 and 3.
    cluster = build_cluster(load_topology("polaris"), hosts=2)
    nics = cluster.topology.nic_of_gpu
    rivals = find_rivals(across_two_hosts(4), cluster)
    for place in range(4):
        expected = [other for other in range(4) if other != place and nics[other] == nics[place]]
        assert list(rivals[place]) == expected
    assert any(rivals)


def test_a_nic_of_its_own_has_no_rivals():
    cluster = build_cluster(load_topology("dgx_h100"), hosts=2)
    assert not any(find_rivals(across_two_hosts(8), cluster))


def test_groups_inside_a_host_use_no_nic():
    cluster = build_cluster(load_topology("polaris"), hosts=2)
    job = one_all_reduce([[0, 1], [2, 3], [4, 5], [6, 7]])
    assert not any(find_rivals(job, cluster))


def test_two_groups_on_one_nic_take_nearly_twice_as_long():
    cluster = build_cluster(load_topology("polaris"), hosts=2)
    stack = load_stack("pytorch_eager")
    both = price_job(across_two_hosts(4), cluster=cluster, stack=stack).float_ns[0]
    lone_cluster = build_cluster(load_topology("polaris"), hosts=2, ranks_per_host=1)
    alone = price_job(one_all_reduce([[0, 1]]), cluster=lone_cluster, stack=stack).float_ns[0]
    # 256 MiB are nearly all wire time, and two share the wire.
    assert both / alone == pytest.approx(2.0, rel=0.1)
