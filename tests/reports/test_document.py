"""The JSON of a prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.base.writing import to_json
from perfmodel.prediction.scenario import Interference, Mode, Scenario
from perfmodel.reports import document
from perfmodel.reports.document import to_document
from tests.reports.predictions import build_prediction

KEYS = {
    "schema_version", "iteration_time_ms", "interval_ms", "breakdown_ms", "ranks",
    "critical_path", "memory_gib", "provenance", "assumptions", "scenario", "run",
}  # fmt: skip


def test_the_document_says_what_was_promised():
    document = to_document(build_prediction())

    assert set(document) >= KEYS
    assert document["iteration_time_ms"] == 0.036
    assert document["interval_ms"] == [0.03, 0.045]
    assert document["period_ms"] == 0.036
    assert document["isolated_ms"] == 0.0365
    assert sum(document["breakdown_ms"].values()) == pytest.approx(0.036)
    assert document["ranks"][1]["ranks"] == "1-3"
    assert document["memory_gib"]["peak"] == 40
    assert document["memory_gib"]["capacity"] == 80
    assert document["memory_gib"]["fits"] is True
    assert document["provenance"] == {"analytic": 0.9, "assumed": 0.1}


def test_a_rank_without_enough_memory_is_said_not_to_fit():
    document = to_document(build_prediction(peak_bytes=81 * 2**30))

    assert document["memory_gib"]["fits"] is False


def test_the_scenario_can_be_read_back_and_asked_again():
    prediction = build_prediction()
    written = json.loads(to_json(to_document(prediction)))["scenario"]

    mode, interference = Mode(written["mode"]), Interference(written["interference"])
    lists = {key: tuple(written[key]) for key in ("overrides", "calibration")}
    again = Scenario(**{**written, **lists, "mode": mode, "interference": interference})
    assert again == prediction.scenario


def test_equal_predictions_are_equal_bytes():
    assert to_json(to_document(build_prediction())) == to_json(to_document(build_prediction()))


def iter_keys(value):
    if isinstance(value, dict):
        for key, inside in value.items():
            yield key
            yield from iter_keys(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from iter_keys(inside)


def test_every_key_is_described_in_the_schema():
    schema = (Path(document.__file__).parent / "SCHEMA.md").read_text()
    written = to_document(build_prediction())
    # Purposes of memory and phases of a run are named by the job and the program.
    for entry in written["memory_gib"]["by_rank"]:
        entry["parts"] = {}
    written["run"]["phase_s"] = {}

    assert [key for key in iter_keys(written) if f"`{key}`" not in schema] == []
