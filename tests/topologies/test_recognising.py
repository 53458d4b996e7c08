import pytest

from topologies import cpu_speed, find_device, list_topologies, load_topology, name_devices


def test_an_unknown_gpu_is_no_machine():
    assert find_device("Quadro 600") is None
    # Any board with that chip.
    assert name_devices("V100") == ("v100_sxm2_16gb", "v100_sxm2_32gb", "v100_sxm3_32gb")
    # An A40 and an A30 are in the catalog, these are not.
    assert find_device("NVIDIA RTX A4000") is None
    assert find_device("NVIDIA RTX A3000 Laptop GPU") is None


def test_threads_are_compared_by_clock_and_work_per_clock():
    # 3.8 GHz of 1.57 beside 3.6 GHz of 1.
    ratio = cpu_speed("2 x Intel Xeon Platinum 8480C") / cpu_speed("2 x Intel Xeon E5-2698 v4")
    assert ratio == pytest.approx(3.8 * 1.57 / 3.6)
    # The longer name counts: not every Xeon 6 has that clock.
    assert cpu_speed("2 x Intel Xeon 6776P") > cpu_speed("2 x Intel Xeon 6")
    assert cpu_speed("not stated") is None
    assert cpu_speed(None) is None


def test_every_cpu_that_the_catalog_states_has_a_speed():
    for name in list_topologies():
        cpu = load_topology(name).host_cpu
        assert "not stated" in str(cpu) or cpu_speed(cpu) is not None, (name, cpu)
