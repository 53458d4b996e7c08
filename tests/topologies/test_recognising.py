from topologies import find_device, name_devices


def test_an_unknown_gpu_is_no_machine():
    assert find_device("Quadro 600") is None
    # Any board with that chip.
    assert name_devices("V100") == ("v100_sxm2_16gb", "v100_sxm2_32gb", "v100_sxm3_32gb")
    # An A40 and an A30 are in the catalog, these are not.
    assert find_device("NVIDIA RTX A4000") is None
    assert find_device("NVIDIA RTX A3000 Laptop GPU") is None
