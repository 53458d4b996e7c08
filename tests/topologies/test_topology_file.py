import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.api import Scenario, predict, price_collective
from perfmodel.base.errors import PerfModelError, TopologyError
from topologies import Link, LinkKind, list_topologies, load_topology
from topologies.link import parse_selection
from topologies.recognising import CATALOG

GOOD = """
name: pair
description: two GPUs
source: made up
date: 2026-01-01
licence: ours
device: a100_sxm_40gb
vertices:
  gpu: 2
  cpu: 1
  nic: 1
links:
  - {between: [gpu:0, gpu:1], kind: nvlink, lanes: 4, bandwidth: 25 GB/s, latency: 700 ns}
  - {between: ["gpu:*", cpu:0], kind: pcie, bandwidth: 16 GB/s, latency: 0.3 us}
  - {between: [nic:0, cpu:0], kind: pcie, bandwidth: 16 GB/s, latency: 0.3 us}
fabric:
  kind: flat
  nic: {lanes: 2, bandwidth: 100 Gbit/s, latency: 1 us}
  leaf: {hosts: 4}
  spine: {oversubscription: 3 to 2, latency: 0 ns}
"""


@pytest.fixture
def write(tmp_path):
    def _write(text, name="machine.yaml"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    return _write


def refusal(path) -> str:
    """What is said of the file at *path*, without the numbers of lines."""
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    return re.sub(r" \(line \d+\)", "", str(caught.value))


def test_a_file_becomes_a_topology(write):
    topology = load_topology(write(GOOD))

    assert topology.gpus_per_host == 2
    # 4 lanes x 25 GB/s.
    assert topology.links[0] == Link("gpu:0", "gpu:1", 100e9, 700.0, LinkKind.NVLINK, lanes=4)
    assert topology.links[1] == Link("gpu:1", "gpu:0", 100e9, 700.0, LinkKind.NVLINK, lanes=4)
    assert topology.fabric is not None
    # 2 lanes x 100 Gbit/s = 200 Gbit/s = 25 GB/s.
    assert topology.fabric.nic_bandwidth_bytes_per_s == 25e9
    assert topology.fabric.oversubscription == 1.5
    assert topology.source == "made up (2026-01-01; ours)"


def test_a_fabric_may_charge_every_call_once_and_need_not_say_who_shares_a_leaf(write):
    assert load_topology(write(GOOD)).fabric.call_latency_ns == 0
    path = write(GOOD + "  call: {latency: 0.4 ms}\n")
    assert load_topology(path).fabric.call_latency_ns == 400_000
    fabric = load_topology(write(GOOD.replace("  leaf: {hosts: 4}\n", ""))).fabric
    assert fabric.hosts_per_leaf == 32


def test_the_catalog_answers_in_any_spelling_and_lists_its_machines_in_order():
    assert load_topology("dgx_h100") == load_topology("dgx_h100.yaml") == load_topology("DGX-H100")
    assert list(list_topologies()) == sorted(list_topologies())


def test_a_file_wins_over_a_name_of_the_catalog(write, monkeypatch):
    path = write(GOOD, "dgx_h100.yaml")
    monkeypatch.chdir(path.parent)

    assert load_topology("dgx_h100.yaml").name == "pair"


def test_one_way_links_have_one_way(write):
    one_way = GOOD.replace("between: [gpu:0, gpu:1]", "from: gpu:0, to: gpu:1")
    topology = load_topology(write(one_way))

    assert topology.gpu_route(0, 1).is_nvlink
    assert topology.gpu_route(1, 0).passes_cpu


@pytest.mark.parametrize(
    ("pattern", "pairs"),
    [
        ("all", {(g, c) for g in range(4) for c in range(2)}),
        ("spread", {(0, 0), (1, 0), (2, 1), (3, 1)}),
    ],
)
def test_patterns_say_who_meets_whom(write, pattern, pairs):
    text = GOOD.replace("gpu: 2", "gpu: 4").replace("cpu: 1", "cpu: 2")
    text = text.replace(
        '["gpu:*", cpu:0], kind', f'["gpu:*", "cpu:*"], pattern: {pattern}, kind'
    ).replace(
        "  - {between: [nic",
        "  - {mesh: cpu:*, kind: cpu, bandwidth: 9 GB/s, latency: 0 ns}\n  - {between: [nic",
    )
    links = load_topology(write(text)).links

    assert {
        (int(link.source[4:]), int(link.target[4:]))
        for link in links
        if link.source.startswith("gpu") and link.target.startswith("cpu")
    } == pairs


FAULTS = [
    ("gpu: 2", "gpu: 2\n  gpus: 3", "vertices.gpus: unknown key; did you mean 'gpu'?"),
    ("name: pair", "name: pair\ncolour: red", "colour: unknown key"),
    ("lanes: 4", "lane: 4", "links[0].lane: unknown key; did you mean 'lanes'?"),
    ("25 GB/s", "25", "links[0].bandwidth: quantity: must carry its unit"),
    ("25 GB/s", "25 GB", "links[0].bandwidth: quantity '25 GB': unknown unit"),
    ("25 GB/s", "-25 GB/s", "links[0].bandwidth: must be above zero, got '-25 GB/s'"),
    ("700 ns", "-1 ns", "links[0].latency: must be zero or more, got '-1 ns'"),
    ("gpu:0, gpu:1]", "gpu:0, gpu:7]", "links[0].between[1]: 'gpu:7' dangles: there is no gpu:7"),
    ("gpu:0, gpu:1]", "gpu:0, gpu:0]", "links[0]: must join different vertices"),
    ("gpu:0, gpu:1]", "gpu:0]", "links[0].between: must have 2 entries or more"),
    ("between: [gpu:0, gpu:1], ", "", "links[0]: must name its ends once"),
    ("between: [gpu:0, gpu:1]", "from: gpu:0", "links[0]: must name its ends once"),
    ("kind: nvlink", "kind: string", "links[0].kind: must be one of nvlink, nvlink_c2c, pcie, cpu"),
    ("kind: nvlink", "kind: fabric", "links[0].kind: must be one of nvlink, nvlink_c2c, pcie, cpu"),
    ("lanes: 4", "lanes: 0", "links[0].lanes: must be at least 1, got 0"),
    ("gpu: 2", "gpu: true", "vertices.gpu: must be a whole number or must be a mapping of keys"),
    ("gpu: 2", "gpu: 99999", "vertices.gpu: must be at most 1024, got 99999"),
    ("cpu: 1", "cpu: {reduces: true}", "vertices.cpu.reduces: only an nvswitch can reduce"),
    (
        "device: a100_sxm_40gb",
        "device: a100",
        "device: device 'a100': no such file, and nothing shipped",
    ),
    ("device: a100_sxm_40gb", "", "device: must be given, but is missing"),
    ("source: made up", "source: ''", "source: must be text"),
    ("kind: flat", "kind: round", "fabric.kind: must be one of rail_optimised, flat"),
    ("3 to 2", "1 to 2", "fabric.spine.oversubscription: must look like `2 to 1`"),
    ("3 to 2", "'2:1'", "fabric.spine.oversubscription: must look like `2 to 1`"),
    ("{hosts: 4}", "4", "fabric.leaf: must be a mapping of keys, got 4"),
    ("links:", "links: none\nlines:", "links: must be a list, got 'none'"),
    ("nic: 1", "nic: 1\npeer_to_peer: maybe", "peer_to_peer: must be true or false, got 'maybe'"),
    ("nic: 1", "nic: 1\nnotes: hello", "notes: must be a list, got 'hello'"),
]


@pytest.mark.parametrize(("good", "bad", "complaint"), FAULTS)
def test_a_fault_is_named_with_its_place(write, good, bad, complaint):
    assert good in GOOD
    message = refusal(write(GOOD.replace(good, bad, 1)))

    assert complaint in message
    assert "machine.yaml" in message


def test_gpus_out_of_reach_are_named_with_the_file(write):
    text = GOOD.replace("gpu: 2", "gpu: 3").replace('"gpu:*"', "gpu:0-1")
    message = refusal(write(text))

    assert "machine.yaml" in message
    assert "gpu:2" in message


@pytest.mark.parametrize("name", ["nowhere", "no/such/file.yaml", "", "x" * 5000, "a\0b"])
def test_a_name_that_means_nothing_is_refused(name):
    assert "no such file, and nothing shipped has that name" in refusal(name)


def test_a_directory_is_refused_and_a_near_name_suggested(tmp_path):
    assert "it is a directory" in refusal(tmp_path)
    assert "dgx_h100" in refusal("dgx-h10")


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.floats())
places = st.sampled_from(["name", "device", "vertices", "links", "fabric", "trays", "notes", "cpu"])


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "machine.yaml"


@given(place=places, value=st.recursive(scalars, lambda inner: st.lists(inner, max_size=2)))
def test_any_value_in_any_place_gives_a_topology_or_a_clear_error(fuzzed, place, value):
    fuzzed.write_text(yaml.safe_dump({**yaml.safe_load(GOOD), place: value}))
    message = ""
    try:
        load_topology(fuzzed)
    except PerfModelError as fault:
        message = str(fault)
    assert not message or "machine.yaml" in message


def test_a_device_file_may_lie_beside_the_topology(write):
    from topologies.device import DEVICES

    write((DEVICES / "l40s.yaml").read_text().replace("name: l40s", "name: mine"), "my_gpu.yaml")
    topology = load_topology(write(GOOD.replace("a100_sxm_40gb", "my_gpu.yaml")))

    assert topology.device.name == "mine"


COUNTS = {"gpu": 8, "cpu": 2}


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("gpu:3", [3]),
        ("gpu:0-2", [0, 1, 2]),
        ("gpu:0,5", [0, 5]),
        ("gpu:0-1, 6-7", [0, 1, 6, 7]),
        ("gpu:*", list(range(8))),
    ],
)
def test_a_selection_names_vertices(text, indices):
    assert parse_selection(text, COUNTS) == tuple(f"gpu:{index}" for index in indices)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpu:8", "dangles: there is no gpu:8, only gpu:0 to gpu:7"),
        ("tpu:0", "names no vertex kind"),
        ("gpu:3-1", "runs backwards"),
        ("gpu", "must look like"),
        ("gpu:-1", "must look like"),
        ("gpu:99999999999", "too large"),
    ],
)
def test_a_wrong_selection_says_what_is_wrong(text, complaint):
    with pytest.raises(TopologyError, match=complaint):
        parse_selection(text, COUNTS)


def copy_of(name, *changes):
    text = (CATALOG / f"{name}.yaml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


RENAMED = ("name: dgx_h100", "name: ours")
UNSTATED = ("measured: dgx_h100\n", "")
FASTER = ("lanes: 18, bandwidth: 25 GB/s", "lanes: 18, bandwidth: 50 GB/s")


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ([], "dgx_h100"),
        ([RENAMED], "dgx_h100"),
        ([UNSTATED], "dgx_h100"),
        ([RENAMED, UNSTATED], "ours"),
        ([FASTER], "dgx_h100, changed"),
        ([RENAMED, FASTER], "ours, changed"),
    ],
)
def test_a_copy_keeps_its_constants_and_a_changed_one_loses_them(write, changes, measured):
    found = load_topology(write(copy_of("dgx_h100", *changes)))
    assert found.measured == measured
    assert bool(found.lost_constants) == measured.endswith("changed")


def test_links_in_another_order_keep_the_constants(write):
    head, _, rest = copy_of("dgx_a100").partition("links:\n")
    links, _, fabric = rest.partition("\nfabric:")
    turned = "\n".join(links.splitlines()[::-1])
    assert not load_topology(write(f"{head}links:\n{turned}\n\nfabric:{fabric}")).lost_constants


def test_a_renamed_machine_has_the_same_prices_and_a_changed_one_says_what_it_lost(write):
    renamed = str(write(copy_of("dgx_h100", RENAMED)))
    prices = [
        price_collective("all_reduce", "64MiB", topology=one) for one in ("dgx_h100", renamed)
    ]
    assert prices[0].duration_ns == prices[1].duration_ns
    assert prices[0].relative_sigma == prices[1].relative_sigma
    faster = write(copy_of("dgx_h100", RENAMED, FASTER))
    answer = predict(Scenario(topology=str(faster), workload="gpt2_124m", samples=0))
    [lost] = [one for one in answer.assumptions if "constants of collectives" in one]
    assert lost.startswith("ours is wired differently from the shipped dgx_h100: constants")


def test_constants_of_a_machine_that_nobody_knows_are_refused(write):
    text = copy_of("dgx_h100", ("measured: dgx_h100", "measured: dgx_h1000"))
    with pytest.raises(TopologyError, match="measured: must be a machine of the catalog"):
        load_topology(write(text))


def test_a_device_file_beside_the_machine_is_found_by_its_name(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\nlike: h100_sxm\n", encoding="utf-8")
    text = (CATALOG / "dgx_h100.yaml").read_text(encoding="utf-8")
    text = text.replace("device: h100_sxm", "device: mine").replace("name: dgx", "name: my_dgx")
    (tmp_path / "host.yaml").write_text(text, encoding="utf-8")
    assert load_topology(tmp_path / "host.yaml").device.name == "mine"
