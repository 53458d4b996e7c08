import pytest

from perfmodel.base.errors import TopologyError
from tests.topologies.machines import build_fabric
from topologies import FabricKind


def test_a_rail_optimised_leaf_serves_one_nic_of_each_host():
    fabric = build_fabric()

    assert fabric.leaf_of(host=0, nic=1) == fabric.leaf_of(host=1, nic=1)
    assert fabric.leaf_of(host=0, nic=0) != fabric.leaf_of(host=0, nic=1)
    assert fabric.leaf_of(host=2, nic=1) != fabric.leaf_of(host=1, nic=1)  # 2 hosts a leaf
    # 2 hosts x 1 NIC x 12.5 GB/s down, half of it up: 12.5 GB/s.
    assert fabric.uplink_bandwidth_bytes_per_s(nics_per_host=4) == 12.5e9


def test_a_flat_leaf_serves_all_nics_of_its_hosts():
    fabric = build_fabric(kind=FabricKind.FLAT)

    assert fabric.leaf_of(host=0, nic=0) == fabric.leaf_of(host=1, nic=3)
    # 2 hosts x 4 NICs x 12.5 GB/s down, half of it up: 50 GB/s.
    assert fabric.uplink_bandwidth_bytes_per_s(nics_per_host=4) == 50e9


def test_a_fabric_cannot_pass_up_more_than_comes_in():
    with pytest.raises(TopologyError, match="oversubscription must be 1 or more"):
        build_fabric(oversubscription=0.5)
