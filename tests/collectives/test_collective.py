import pytest

from collectives.collective import (
    CollectiveAlgorithm,
    CollectiveSoftware,
    Protocol,
    parse_algorithm,
    parse_nccl_version,
    parse_protocol,
)
from perfmodel.base.errors import InputError


def test_versions_compare_by_number_and_not_by_letter():
    assert CollectiveSoftware(nccl_version=parse_nccl_version("2.4.8")).is_before_2_24
    assert not CollectiveSoftware(nccl_version=parse_nccl_version("2.27.3")).is_before_2_24


@pytest.mark.parametrize(
    ("version", "is_before"),
    [((2, 23, 9), True), ((2, 24), False), ((2, 24, 0), False), ((1, 99), True), ((2, 0), True)],
)
def test_channels_were_rewritten_in_2_24(version, is_before):
    assert CollectiveSoftware(nccl_version=version).is_before_2_24 is is_before


@pytest.mark.parametrize("version", [(), (2,), (2, -1), (-1, 27)])
def test_a_version_has_a_major_and_a_minor_number(version):
    with pytest.raises(InputError, match=r"must be like 2\.27\.3"):
        CollectiveSoftware(nccl_version=version)


def test_words_of_nccl_are_understood():
    assert parse_algorithm("NVLSTree") is CollectiveAlgorithm.NVLS_TREE
    assert parse_protocol("LL128") is Protocol.LL128


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_algorithm, "star"), (parse_protocol, "ll256"), (parse_nccl_version, "new")],
)
def test_unknown_words_are_refused_with_what_would_be_right(parse, text):
    with pytest.raises(InputError, match=text):
        parse(text)
