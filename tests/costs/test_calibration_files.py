import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.costs import calibration_files
from perfmodel.costs.calibration_files import (
    HEADER_KEYS,
    Entry,
    entries_for,
    load_entries,
    match_entry,
    parse_entries,
)
from topologies import load_device

ABOUT = dict.fromkeys(HEADER_KEYS, "test")


def entry(device: str) -> Entry:
    about = load_device(device)
    return Entry(device, about.architecture, about.compute_capability, "v", {"a": 1.0}, None, 0.1)


@pytest.mark.parametrize("name", ["gemm", "attention", "memory"])
def test_the_files_that_come_along_say_where_they_are_from(name):
    assert load_entries(name)


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
    with pytest.raises(CalibrationError, match=r"entries\[0\]\.architecture, .*must be given"):
        parse_entries(json.dumps({**ABOUT, "entries": [{"device": "x"}]}), document="bad.json")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"entries": "none"}, "entries: "),
        ({"entries": [5]}, r"entries\[0\]: "),
        ({"source": None}, "source: "),
        ({"colour": "red"}, "colour: "),
        ({"command": "made by hand"}, "command must be `perfmodel calibrate KIND"),
        (
            {"command": "perfmodel calibrate host x.csv"},
            "a kind among attention, embedding, experts, gemm",
        ),
    ],
)
def test_a_file_of_a_person_is_checked_before_it_is_used(tmp_path, change, fault):
    content = {**ABOUT, "entries": []}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**content, "command": "python fit.py gemm x", **change}))
    device = replace(load_device("h100_sxm"), calibrations=(str(path),))
    with pytest.raises(CalibrationError, match=fault):
        entries_for("gemm", device)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"constants": {}}, "missing 'floor_ns'"),
        ({"constants": {"wheels": 4.0}}, "unknown 'wheels'"),
        ({"constants": {"floor_ns": True}}, "constants.floor_ns: "),
        ({"constants": {"floor_ns": "many"}}, "constants.floor_ns: "),
        ({"relative_sigma": -1.0}, "relative_sigma: "),
        ({"correction": {"mean": []}}, "correction: must hold"),
        ({"curves": {"a": [1]}}, r"curves\.a\[0\]: "),
    ],
)
def test_an_entry_of_a_person_has_the_constants_of_its_kind(tmp_path, change, fault):
    own = next(one for one in load_entries("gemm") if one.device == "h100_sxm")
    about = {one.name: getattr(own, one.name) for one in fields(own)}
    content = {**ABOUT, "entries": [about | {"correction": None, "ordered": None}]}
    content["command"] = "python fit.py gemm x"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    device = replace(load_device("h100_sxm"), calibrations=(str(path),))
    assert len(entries_for("gemm", device)) == len(load_entries("gemm")) + 1
    content["entries"][0].update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError, match=fault):
        entries_for("gemm", device)


@pytest.mark.parametrize("number", ["-1e999", "NaN", "-Infinity"])
@pytest.mark.parametrize(("part", "key"), [("correction", "mean"), ("ordered", "low")])
def test_numbers_that_are_not_finite_are_refused_with_their_place(number, part, key):
    shipped = Path(calibration_files.__file__).parent / "calibrations" / "gemm"
    content = json.loads((shipped / "h100_sxm_quantised.json").read_text(encoding="utf-8"))
    content["entries"][1][part][key][0] = "HERE"
    text = json.dumps(content, indent=1).replace('"HERE"', number)
    line = 1 + text[: text.index(number)].count("\n")
    with pytest.raises(
        CalibrationError, match=rf"x.json: .*(\n.*entries\[1\]\.{part}|line {line})"
    ):
        parse_entries(text, document="x.json")


def test_a_file_nested_too_deep_is_refused():
    with pytest.raises(CalibrationError, match="nested too deep"):
        parse_entries("[" * 100_000, document="deep.json")
