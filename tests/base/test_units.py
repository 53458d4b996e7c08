"""Quantities carry units, and mean what the unit says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UnitError
from perfmodel.base.units import (
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration_ns,
    parse_frequency_hz,
    parse_power_w,
    parse_rate_flops,
    parse_size,
)

PARSERS = [
    parse_size, parse_bandwidth, parse_duration_ns, parse_rate_flops, parse_frequency_hz,
    parse_power_w,
]  # fmt: skip


def test_giga_is_decimal_and_gibi_is_binary():
    assert parse_size("2 GB") == 2_000_000_000
    assert parse_size("2 GiB") == 2 * 1024**3


@pytest.mark.parametrize(
    ("prefix", "power"), [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50)]
)
def test_binary_prefixes_are_powers_of_two(prefix, power):
    assert parse_size(f"1 {prefix}B") == 2**power


def test_a_bit_is_an_eighth_of_a_byte():
    # 400 Gbit/s / 8 = 50 GB/s
    assert parse_bandwidth("400 Gbit/s") == parse_bandwidth("50 GB/s") == 50e9


def test_durations_rates_and_frequencies():
    assert parse_duration_ns("1.5 us") == 1500
    assert parse_duration_ns("2 ms") == 2_000_000
    assert parse_rate_flops("989 TFLOP/s") == 989e12
    assert parse_frequency_hz("1.98 GHz") == 1.98e9
    assert parse_power_w("0.7 kW") == 700


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["", "12", "GB/s", "12 parsecs", "nan GB", "inf B", "1e999 B"])
def test_a_quantity_without_a_sensible_unit_or_number_is_refused(parse, text):
    with pytest.raises(UnitError, match="quantity"):
        parse(text)


@pytest.mark.parametrize("value", [450, 1.5, None, ["450 GB/s"]])
def test_a_bare_number_is_refused_with_an_example(value):
    with pytest.raises(UnitError, match=r"must carry its unit.*'450 GB/s'"):
        parse_bandwidth(value)


@given(size=st.integers(0, 2**50))
def test_bytes_are_read_back_exactly(size):
    assert parse_size(f"{size} B") == size


def test_people_read_three_to_four_figures():
    assert format_size(64 * 2**20) == "64 MiB"
    assert format_duration(12_345_678) == "12.35 ms"
    assert format_bandwidth(450e9) == "450 GB/s"
