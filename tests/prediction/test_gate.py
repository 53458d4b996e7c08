"""The gate: what no machine can do is a warning of the answer, and an error under --strict."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from perfmodel import api
from perfmodel.base.cautions import Cautions, Warned, join_cautions
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, ScenarioError
from perfmodel.cli import main
from perfmodel.graph.ops import Gemm, MemoryBound
from perfmodel.prediction.gate import check_machine, check_op
from topologies import LinkKind, load_device, load_topology
from topologies.recognising import CATALOG

GEMM = Gemm(8192, 8192, 8192, DType.BF16)


def test_a_kernel_beyond_the_peak_of_its_chip_is_a_warning():
    device = load_device("h100_sxm")
    # 2 x 8192^3 = 1.1 PFLOP, at 989 TFLOP/s 1.11 ms.
    assert not check_op(GEMM, device, 1.2e6)
    [warned] = check_op(GEMM, device, 1.11e4).warnings
    assert warned.rule == "beyond the peak"
    assert warned.found == pytest.approx(100, rel=0.01)
    assert warned.limit == 1.05


def test_copies_that_a_cache_may_hold_are_exempt():
    device = load_device("h100_sxm")
    small, large = (MemoryBound("copy", size, size, DType.BF16) for size in (2**20, 2**32))
    assert not check_op(small, device, 1.0)
    assert check_op(large, device, 1e3).warnings[0].rule == "beyond the memory"


@pytest.mark.parametrize("factor", [1000, 1e-3])
@pytest.mark.parametrize(
    "field", ["clock_hz", "memory_bytes", "l2_bytes", "power_w", "memory_bandwidth_bytes_per_s"]
)
def test_a_value_that_is_a_thousandfold_wrong_is_implausible(field, factor):
    device = load_device("h100_sxm")
    wrong = replace(device, **{field: getattr(device, field) * factor})
    assert check_machine(replace(load_topology("dgx_h100"), device=wrong)).warnings
    assert not check_machine(load_topology("dgx_h100"))


def test_bits_for_bytes_are_implausible_beside_the_rest_of_a_file():
    device, machine = load_device("a100_sxm_80gb"), load_topology("dgx_h100")
    # 312 TFLOP/s over 2,039 / 8 GB/s is 1,224 FLOP per byte.
    slow = replace(device, memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s / 8)
    [warned] = check_machine(replace(machine, device=slow)).warnings
    assert warned.rule == "implausible half precision flops per byte"
    # A NIC of 400 GB/s behind a PCIe link of 63 GB/s.
    fast = replace(machine.fabric, nic_bandwidth_bytes_per_s=400e9)
    [warned] = check_machine(replace(machine, fabric=fast)).warnings
    assert (warned.rule, round(warned.found, 2)) == ("beyond the wire", 6.35)


def test_an_nvlink_slower_than_pcie_is_implausible():
    machine = load_topology("dgx_h100")
    links = [
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 8)
        if link.kind is LinkKind.NVLINK
        else link
        for link in machine.links
    ]
    # 18 x 25 Gbit/s are 56 GB/s, PCIe has 63.
    [warned] = check_machine(replace(machine, links=tuple(links))).warnings
    assert (warned.rule, round(warned.found, 2)) == ("implausible NVLink over PCIe", 0.89)


def test_a_price_that_is_no_number_is_refused():
    machine = load_topology("dgx_h100")
    cost = api.price_collective("all_reduce", "1MiB", topology="dgx_h100")
    with pytest.raises(ScenarioError, match="not a finite number"):
        check_machine(machine, [replace(cost, duration_ns=np.nan)])
    with pytest.raises(ScenarioError, match="not a finite number"):
        check_machine(machine, [replace(cost, duration_ns=np.inf)])


def test_cautions_are_counted_in_the_headline_and_refused_when_asked():
    found = Cautions((Warned("beyond the wire", "x", 1037.0, 1.1),), ("tpye",))
    assert list(join_cautions([found, found]).count()) == [
        "1 warning: beyond the wire: 1,037 times",
        "1 unknown key, without effect: tpye",
    ]
    with pytest.raises(InputError, match="--strict"):
        found.refuse()
    Cautions().refuse()


def test_a_machine_file_beyond_physics_answers_with_a_warning_and_not_under_strict(
    tmp_path, monkeypatch, capsys
):
    text = (CATALOG / "dgx_h100.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    links = text.replace("bandwidth: 25 GB/s", "bandwidth: 25 TB/s")
    path.write_text(links.replace("name: dgx_h100", "name: mine"))
    asked = ["collective", "--topology", str(path), "--kind", "all_reduce", "--size", "64MiB"]

    def ask(*words):
        monkeypatch.setattr("sys.argv", ["perfmodel", *asked, *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr()

    code, said = ask("--json", "-")
    assert code == 0
    [warned] = json.loads(said.out)["warnings"]
    # 18 links of 25 TB/s.
    assert (warned["rule"], warned["found"]) == ("implausible bandwidth bytes per s", 4.5e14)
    code, said = ask("--strict")
    assert code == 1
    assert "--strict" in said.err


def test_a_narrower_format_that_is_slower_and_a_copy_beyond_its_wire_are_implausible():
    device, machine = load_device("h100_sxm"), load_topology("dgx_h100")
    # FP8 at a tenth of 1,979 TFLOP/s, below BF16 at 989.
    slow = replace(device, peak_flops={**device.peak_flops, DType.FP8: 197.9e12})
    [warned] = check_op(GEMM, slow, 1.2e6).warnings
    assert (warned.rule, round(warned.found, 2)) == ("implausible format gains", 0.2)
    link = replace(device.host_link, effective_bytes_per_s=128e9)
    [warned] = check_machine(replace(machine, device=replace(device, host_link=link))).warnings
    # 128 GB/s of copies over a wire of 64 GB/s.
    assert (warned.rule, round(warned.found, 1)) == ("implausible efficiency", 2.0)
