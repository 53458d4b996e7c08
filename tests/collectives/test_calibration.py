import os
from dataclasses import replace

import pytest
import yaml

from collectives.calibration import (
    CALIBRATIONS,
    OTHER_LIBRARY_SIGMA,
    UNKNOWN_PEER_SIGMA,
    calibration_for,
    generations_apart,
    load_calibration,
    load_default_calibration,
    regime_of,
)
from collectives.collective import FREE, CollectiveKind
from collectives.constants import FabricEntry, HostEntry, MeasuredSpan
from collectives.measurements import wiring_of_run
from perfmodel.base.errors import CalibrationError
from perfmodel.base.forms import read_mapping, to_plain
from perfmodel.base.provenance import Provenance
from topologies import load_device


def shipped():
    return yaml.safe_load((CALIBRATIONS / "nccl.yaml").read_text(encoding="utf-8"))


def write(tmp_path, content):
    path = tmp_path / "nccl.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_the_shipped_calibration_says_where_it_is_from_and_is_read_as_written(tmp_path):
    about = load_default_calibration().about
    for key in ("source", "hardware", "software", "date", "licence", "command"):
        assert about[key]
    assert load_calibration(write(tmp_path, shipped())) == load_default_calibration()


def test_a_machine_takes_the_entry_of_its_generation():
    calibration = load_default_calibration()
    entries = {
        "hgx_h200": "hopper_nvswitch", "dgx_b200": "blackwell_nvswitch",
        "dgx_b300": "blackwell_nvswitch", "polaris": "ampere_nvswitch", "l40s_pcie": "l40s_pcie",
    }  # fmt: skip
    for name, entry in entries.items():
        assert calibration.host_entry(wiring_of_run(name, 1, 4)).name == entry
    # The odd host lends nothing to other PCIe machines.
    for name in ("a100_pcie", "rtx_pro_6000_pcie"):
        assert calibration.constants(wiring_of_run(name, 1, 8)).host.crowding == 0


def test_the_odd_host_lends_nothing_to_machines_of_its_name_but_its_own_table():
    calibration = load_default_calibration()
    of_table = wiring_of_run("l40s_pcie", 1, 8)
    asked_about = replace(of_table, is_of_table=False)
    call = (CollectiveKind.ALL_REDUCE, 1 << 26)
    assert calibration.host_entry(of_table).is_odd
    assert calibration.host_entry(asked_about).name == "pcie_peer"
    assert calibration.provenance(of_table, *call) is Provenance.INTERPOLATED
    assert calibration.provenance(asked_about, *call) is Provenance.ANALYTIC
    assert calibration.relative_sigma(of_table, *call, 0.01) < 0.1
    assert calibration.relative_sigma(asked_about, *call, 0.01) >= UNKNOWN_PEER_SIGMA


def test_a_file_of_another_schema_is_refused(tmp_path):
    with pytest.raises(CalibrationError, match="schema_version must be 2"):
        load_calibration(write(tmp_path, {**shipped(), "schema_version": 99}))


NO_PROTOCOL = r"protocols\[0\] .*: must be one of ll, ll128, simple, got \'fast\'"


@pytest.mark.parametrize(
    ("block", "key", "value", "fault"),
    [
        ("hosts", "machines", "dgx_h100", "machines .*: must be a list, got 'dgx_h100'"),
        ("hosts", "machine", ["dgx_h100"], "machine .*: unknown key; did you mean 'machines'"),
        ("fabrics", "protocols", ["fast"], NO_PROTOCOL),
        ("fabrics", "pair_ll_bytes", [], r"fabrics\[0\].pair_ll_bytes .*: must be a whole number"),
        ("hosts", "launch_ns", float("nan"), "launch_ns .*: must be a finite number, got nan"),
    ],
)
def test_an_entry_says_what_is_wrong_with_it(tmp_path, block, key, value, fault):
    content = shipped()
    entry = content[block][0]
    (entry["constants"] if key in entry["constants"] else entry)[key] = value
    with pytest.raises(CalibrationError, match=fault):
        load_calibration(write(tmp_path, content))


@pytest.mark.parametrize("block", ["hosts", "fabrics"])
def test_nothing_of_an_entry_may_be_missing(tmp_path, block):
    for key in set(shipped()[block][0]) - {"is_odd"}:
        content = shipped()
        del content[block][0][key]
        with pytest.raises(CalibrationError, match=rf"{key} \(line \d+\): must be given"):
            load_calibration(write(tmp_path, content))


def test_groups_that_were_not_measured_are_less_certain():
    sigma, call = load_default_calibration().relative_sigma, (CollectiveKind.ALL_TO_ALL, 1 << 30)
    measured, new, foreign = (
        sigma(wiring_of_run(*group), *call, 0.01)
        for group in (("dgx_h100", 10, 10), ("dgx_h100", 4, 32), ("dgx_b200", 4, 32))
    )
    assert measured < new < foreign


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    # One that is not in the row of generations is as far from all others as can be.
    [("volta", "volta", 0), ("volta", "ampere", 1), ("blackwell", "pascal", 5),
     ("ada", "hopper", 1), ("cdna3", "cdna3", 0), ("cdna3", "hopper", 6), ("hopper", "cdna3", 6)],
)  # fmt: skip
def test_generations_are_apart_by_their_places(first, second, apart):
    assert generations_apart(first, second) == apart


def test_a_device_takes_its_own_constants_as_they_are_now(tmp_path):
    device = load_device("h100_sxm")
    content = shipped()
    path = write(tmp_path, content)
    own = replace(device, calibrations=("kernels.json", str(path)))
    assert calibration_for(replace(device, calibrations=("kernels.json",))) is (
        load_default_calibration()
    )
    before = calibration_for(own)
    assert calibration_for(own) is before
    content["hosts"][0]["constants"]["launch_ns"] += 1.0
    write(tmp_path, content)
    os.utime(path, ns=(1, 1))
    after = calibration_for(own)
    assert after.hosts[0].constants.launch_ns == before.hosts[0].constants.launch_ns + 1.0


def test_kernels_and_collectives_are_told_apart_by_content(tmp_path):
    device = load_device("h100_sxm")
    kernels = tmp_path / "kernels.yaml"
    kernels.write_text('{"entries": []}')
    own = replace(device, calibrations=(str(kernels),))
    assert calibration_for(own) is load_default_calibration()


def test_of_several_files_each_counts_where_it_was_measured(tmp_path):
    device, shipped_hosts = load_device("h100_sxm"), load_default_calibration().hosts
    paths = []
    for number in (0, 1):
        content = shipped()
        content["hosts"][number]["constants"]["launch_ns"] += 1000.0
        paths.append(tmp_path / f"{number}.yaml")
        write(tmp_path, content).rename(paths[-1])
    both = calibration_for(replace(device, calibrations=tuple(map(str, paths))))
    # The second file repeats the shipped constants of the first machine: those are not its own.
    own = [one for one in both.hosts if one not in shipped_hosts]
    assert [one.machines for one in own] == [shipped_hosts[1].machines, shipped_hosts[0].machines]
    assert set(both.hosts) >= set(shipped_hosts[2:])


def test_what_rules_a_call_is_told_by_the_share_of_latency():
    assert [regime_of(share) for share in (0.1, 0.11, 0.5, 0.51)] == [
        "bandwidth", "middle", "middle", "latency",
    ]  # fmt: skip


def test_where_latency_has_no_time_to_be_a_share_of_it_is_all():
    assert replace(FREE, latency_ns=3.0, duration_ns=12.0).latency_ratio == 0.25
    assert replace(FREE, latency_ns=3.0, duration_ns=0.5).latency_ratio == 6
    assert FREE.latency_ratio == 1.0


def test_entries_are_written_as_they_are_read():
    calibration = load_default_calibration()
    for entries, kind in ((calibration.hosts, HostEntry), (calibration.fabrics, FabricEntry)):
        for entry in entries:
            assert read_mapping(kind, to_plain(entry), document="entry") == entry
    assert ["is_odd" in to_plain(entry) for entry in calibration.hosts] == [
        entry.is_odd for entry in calibration.hosts
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [({"a/b": 0}, ""), ({"a": 9.9}, ""), ({"a": 10}, "must be below 10"),
     ({"a": -1}, "must be at least 0"), ([], "must be a mapping"),
     ({"a": "x"}, "must be a number")],
)  # fmt: skip
def test_deviations_are_numbers_from_zero_to_ten(tmp_path, content, fault):
    path = write(tmp_path, {**shipped(), "uncertainty": content})
    if not fault:
        assert load_calibration(path).uncertainty == content
        return
    with pytest.raises(CalibrationError, match=fault):
        load_calibration(path)


@pytest.mark.parametrize(
    ("hosts", "ranks", "size", "is_held"),
    [(2, 16, 512, True), (2, 16, 1024, True), (2, 16, 511.9, False), (2, 16, 1024.1, False),
     (1, 16, 600, False), (2, 8, 600, False)],
)  # fmt: skip
def test_a_span_holds_its_group_from_its_first_to_its_last_size(hosts, ranks, size, is_held):
    span = MeasuredSpan("here", CollectiveKind.ALL_REDUCE, 2, 16, 512, 1024)
    assert span.holds(hosts, ranks, size) is is_held


def test_without_hosts_or_fabrics_there_is_no_calibration():
    calibration = load_default_calibration()
    for missing in ("hosts", "fabrics"):
        with pytest.raises(CalibrationError, match="must hold host and fabric entries"):
            replace(calibration, **{missing: ()})


@pytest.mark.parametrize("value", [{}, [5], "hosts", [[]]])
@pytest.mark.parametrize("block", ["hosts", "fabrics"])
def test_entries_stand_in_a_list(tmp_path, block, value):
    with pytest.raises(CalibrationError, match=rf"{block}.*: must be a (list|mapping)"):
        load_calibration(write(tmp_path, {**shipped(), block: value}))


def test_a_library_that_nobody_measured_is_assumed_and_wide():
    calibration, kind = load_default_calibration(), CollectiveKind.ALL_REDUCE
    amd, nvidia = (wiring_of_run(name, 1, 8) for name in ("mi350x_platform", "dgx1_v100"))
    for size in (1e6, 256e6):
        assert calibration.provenance(amd, kind, size) is Provenance.ASSUMED
        assert calibration.provenance(nvidia, kind, size) is not Provenance.ASSUMED
        assert calibration.relative_sigma(amd, kind, size, 0.05) >= OTHER_LIBRARY_SIGMA
        assert calibration.relative_sigma(nvidia, kind, size, 0.05) < OTHER_LIBRARY_SIGMA


def test_intervals_widen_with_every_doubling_of_hosts_beyond_those_measured():
    calibration = load_default_calibration()
    call = (CollectiveKind.ALL_REDUCE, float(1 << 30), 0.0)
    own = calibration.uncertainty["azure_nd_a100_v4/several_hosts/all_reduce/bandwidth"]
    unseen = calibration.uncertainty["unseen/several_hosts/any/bandwidth"]
    assert own < 0.6 * unseen
    # 2 and 8 hosts were measured. Others have 0.6 of what machines left out err by, and 0.1 more
    # for every doubling of 8.
    for hosts, sigma in ((8, own), (4, 0.6 * unseen), (16, 0.7 * unseen), (128, 1.0 * unseen)):
        wiring = wiring_of_run("azure_nd_a100_v4", hosts, 8 * hosts)
        assert calibration.relative_sigma(wiring, *call) == pytest.approx(sigma)
