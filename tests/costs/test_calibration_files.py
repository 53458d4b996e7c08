import json

import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.calibration_files import (
    HEADER_KEYS,
    Entry,
    entries_to_text,
    load_entries,
    match_entry,
    parse_entries,
)
from topologies import load_device

ABOUT = dict.fromkeys(HEADER_KEYS, "test")


def entry(device: str) -> Entry:
    about = load_device(device)
    return Entry(
        device, about.architecture.value, about.compute_capability, "v", {"a": 1.0}, None, 0.1
    )


@pytest.mark.parametrize("name", ["gemm", "attention", "memory"])
def test_the_files_that_come_along_say_where_they_are_from(name):
    assert load_entries(name)


def test_what_is_written_can_be_read_again():
    text = entries_to_text(ABOUT, [entry("h100_sxm"), entry("l40s")])
    assert [one.device for one in parse_entries(text, document="here")] == ["h100_sxm", "l40s"]


def test_a_device_borrows_from_its_nearest_relative():
    entries = [entry(name) for name in ("a100_sxm_80gb", "h100_sxm", "l40s")]
    assert match_entry(entries, load_device("h100_sxm"), "v").is_own
    assert match_entry(entries, load_device("h200_sxm"), "v").entry.device == "h100_sxm"
    assert match_entry(entries, load_device("b200_sxm"), "v").entry.device == "h100_sxm"
    assert match_entry(entries, load_device("v100_sxm2_16gb"), "v").entry.device == "a100_sxm_80gb"
    graphics = match_entry(entries, load_device("rtx_pro_6000_server"), "v")
    assert graphics.entry.device == "l40s"
    assert match_entry(entries, load_device("h100_sxm"), "other") is None


def test_a_file_without_origin_is_refused():
    with pytest.raises(CalibrationError, match="licence"):
        parse_entries(json.dumps({"entries": []}), document="bare.json")
    with pytest.raises(CalibrationError, match="not valid JSON"):
        parse_entries("{", document="broken.json")
    with pytest.raises(CalibrationError, match="does not fit"):
        parse_entries(json.dumps({**ABOUT, "entries": [{"device": "x"}]}), document="bad.json")
