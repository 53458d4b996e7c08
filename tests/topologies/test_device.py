import re

import pytest

from perfmodel import api
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TopologyError
from tests.topologies.machines import build_device
from topologies import list_devices, load_device, load_topology
from topologies.device import DEVICES

TERA = 1e12


@pytest.mark.parametrize("name", list_devices())
def test_every_device_states_rates_that_agree(name):
    device = load_device(name)
    assert device.name == name
    assert device.source
    assert device.vector_flops == device.peak_flops[DType.FP32]
    # Narrower numbers never multiply slower.
    peaks = device.peak_flops
    order = [DType.FP64, DType.FP32, DType.TF32, DType.BF16, DType.FP8, DType.NVFP4]
    rates = [peaks[dtype] for dtype in order if dtype in peaks]
    assert rates == sorted(rates)
    if DType.BF16 in peaks:
        assert peaks[DType.FP16] == peaks[DType.BF16]
    # FP32 lanes in a multiprocessor: 64 on Volta, GP100 and GA100, 128 on later and consumer chips
    # (6.1 and 8.6). CDNA 3 and 4 have 64 lanes that issue twice: 128.
    wide = ("ada", "hopper", "blackwell", "cdna3", "cdna4")
    is_wide = device.architecture in wide or device.compute_capability in ("6.1", "8.6")
    by_hand = device.sm_count * (128 if is_wide else 64) * 2 * device.clock_hz
    assert device.vector_flops == pytest.approx(by_hand, rel=0.05)


# TFLOP/s of a dtype, and GB/s of memory.
DATASHEETS = [
    ("v100_sxm2_16gb", DType.FP16, 125, 900), ("a100_sxm_80gb", DType.BF16, 312, 2039),
    ("a100_sxm_40gb", DType.TF32, 156, 1555), ("h100_sxm", DType.BF16, 989.4, 3350),
    ("h100_sxm", DType.FP8, 1978.9, 3350), ("h100_pcie", DType.BF16, 756, 2039),
    ("h200_sxm", DType.BF16, 989.4, 4800), ("b200_sxm", DType.BF16, 2250, 7700),
    ("gb200", DType.FP8, 5000, 8000), ("l40s", DType.BF16, 362.05, 864),
    ("mi300x", DType.BF16, 1307.4, 5300), ("b200_sxm", DType.NVFP4, 9000, 7700),
    ("b300_sxm", DType.NVFP4, 14000, 7750), ("gb300", DType.NVFP4, 15000, 8000),
    ("gb300", DType.BF16, 2500, 8000), ("h200_nvl", DType.FP8, 3341 / 2, 4800),
    ("h100_sxm_hbm2e", DType.BF16, 989.4, 2400), ("h100_sxm_96gb", DType.BF16, 989.4, 3350),
    ("a30", DType.BF16, 165, 933), ("a40", DType.BF16, 149.7, 696),
    ("l4", DType.FP8, 485 / 2, 300), ("rtx_a5000", DType.BF16, 222.2 / 2, 768),
    ("rtx_3090", DType.BF16, 71, 936),
    ("rtx_4090", DType.BF16, 165.2, 1008), ("v100_sxm3_32gb_h", DType.FP16, 131, 900),
]  # fmt: skip
WATTS = {
    "a100_pcie_40gb": 250, "a100_sxm_80gb": 400, "h100_sxm": 700, "h100_sxm_hbm2e": 500,
    "h200_nvl": 600, "b300_sxm": 1100, "gb300": 1400, "v100_sxm3_32gb": 350,
    "v100_sxm3_32gb_h": 450, "l4": 72,
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "tera", "memory_gb_per_s"), DATASHEETS)
def test_devices_have_the_figures_of_their_datasheets(name, dtype, tera, memory_gb_per_s):
    device = load_device(name)
    assert device.peak_flops[dtype] == pytest.approx(tera * TERA)
    assert device.memory_bandwidth_bytes_per_s == memory_gb_per_s * 1e9


@pytest.mark.parametrize("name", WATTS)
def test_devices_state_the_power_limit_of_their_board(name):
    assert load_device(name).power_w == WATTS[name]


def test_four_bits_are_multiplied_from_blackwell_on_and_eight_bit_floats_from_ada_and_hopper_on():
    eight = {"ada", "hopper", "blackwell", "cdna3", "cdna4"}
    for name in list_devices():
        device = load_device(name)
        assert device.supports(DType.FP8) == (device.architecture in eight)
        assert device.supports(DType.NVFP4) == (device.architecture == "blackwell")


def test_tensor_rates_are_operations_a_clock_times_multiprocessors():
    # A100: 108 x 2048 FLOP a clock x 1.41 GHz = 311.9 TFLOP/s.
    device = load_device("a100_sxm_80gb")
    assert device.peak_flops[DType.BF16] == pytest.approx(108 * 2048 * 1.41e9, rel=0.01)
    # A40, with half the tensor cores a multiprocessor: 84 x 1024 x 1.74 GHz = 149.7 TFLOP/s.
    device = load_device("a40")
    assert device.peak_flops[DType.BF16] == pytest.approx(84 * 1024 * 1.74e9, rel=0.01)


def test_a_device_has_no_rate_for_a_dtype_it_cannot_multiply():
    volta, toy = load_device("v100_sxm2_32gb"), build_device()
    assert not volta.supports(DType.BF16)
    assert not volta.supports(DType.TF32)
    assert toy.peak_flops[DType.BF16] == 8e12
    assert toy.supports(DType.BF16)
    assert not toy.supports(DType.FP8)


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("power: 700 W", "power: 0 W", "power: must be above zero"),
        ("clock: 1.98 GHz", "clock: 1.98 GB", "clock: quantity '1.98 GB': unknown unit"),
        ("fp32: 66.9 TFLOP/s", "fp31: 66.9 TFLOP/s", "peak.fp31: number format"),
        ("fp32: 66.9 TFLOP/s", "", "peak: must state fp32"),
        ("generation: 5", "generation: 5, colour: red", "host_link.colour: unknown key"),
        ("81559 MiB", "81559", "memory.size: quantity: must carry its unit"),
    ],
)
def test_a_fault_in_a_device_file_is_named_with_its_place(tmp_path, good, bad, complaint):
    text = (DEVICES / "h100_sxm.yaml").read_text()
    assert good in text
    path = tmp_path / "gpu.yaml"
    path.write_text(text.replace(good, bad, 1))

    with pytest.raises(TopologyError) as caught:
        load_device(path)
    assert complaint in re.sub(r" \(line \d+\)", "", str(caught.value))
    assert str(path) in str(caught.value)


def test_a_device_refuses_quantities_that_are_not_above_zero():
    with pytest.raises(TopologyError, match="memory 0, peak fp32 -1"):
        build_device(memory_bytes=0, peak_flops={DType.FP32: -1.0})


def test_a_renamed_generation_is_priced_as_the_nearest_chip_and_is_unseen(tmp_path):
    text = (DEVICES / "gb200.yaml").read_text(encoding="utf-8")
    for old, new in [("blackwell", "newton"), ('"10.0"', '"11.0"')]:
        text = text.replace(f": {old}", f": {new}")
    lines = [one for one in text.splitlines() if not one.startswith(("kernel_", "persistent"))]
    (tmp_path / "newton.yaml").write_text("\n".join(lines), encoding="utf-8")
    device, shipped = load_device(tmp_path / "newton.yaml"), load_device("gb200")
    assert (device.generation, device.is_unseen) == ("blackwell", True)
    assert device.kernel_class is shipped.kernel_class
    assert device.has_persistent_kernels
    assert not shipped.is_unseen


def test_a_device_like_another_states_only_what_differs(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nlike: b200_sxm\nmemory: {bandwidth: 9 TB/s}\n", encoding="utf-8"
    )
    device, base = load_device(tmp_path / "mine.yaml"), load_device("b200_sxm")
    assert device.memory_bandwidth_bytes_per_s == 9e12
    assert (device.name, device.memory_bytes) == ("mine", base.memory_bytes)


def test_the_template_of_a_device_is_a_device_of_its_own(tmp_path):
    file = tmp_path / "my_gpu.yaml"
    api.init("device", file)
    device, shipped = load_device(file), load_device("h100_sxm")
    assert device.is_unseen
    assert device.kernel_class is shipped.kernel_class
    assert device.peak_flops == shipped.peak_flops
    machine = tmp_path / "host.yaml"
    machine.write_text(api.init("topology").replace("device: h100_sxm", "device: my_gpu"))
    assert load_topology(machine).device == device
