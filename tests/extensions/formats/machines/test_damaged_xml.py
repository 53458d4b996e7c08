"""NCCL XML that no host can have written."""

import pytest

from perfmodel.base.errors import TopologyError
from perfmodel.extensions.formats.machines.nccl_xml import parse_xml


def host(buses=("0000:01", "0000:02"), count="12"):
    gpus = "".join(
        f'<pci busid="{bus}" class="0x030200"><gpu sm="80"><nvlink target="{buses[1 - at]}" '
        f'count="{count}" tclass="0x030200"/></gpu></pci>'
        for at, bus in enumerate(buses)
    )
    return f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'


def test_a_sound_host_is_read():
    assert parse_xml(host(), "topo.xml")[0].lanes == {(0, 1): 12}


@pytest.mark.parametrize("count", ["-12", "0", "1200"])
def test_an_impossible_number_of_nvlinks_is_refused(count):
    with pytest.raises(TopologyError, match="nvlink"):
        parse_xml(host(count=count), "topo.xml")


def test_two_gpus_of_one_bus_id_are_refused():
    with pytest.raises(TopologyError, match=r"0000:01.* twice"):
        parse_xml(host(("0000:01", "0000:01")), "topo.xml")
