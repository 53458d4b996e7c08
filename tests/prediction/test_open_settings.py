"""What nobody stated is predicted both ways; what is stated has no branches."""

from __future__ import annotations

import pytest

from perfmodel.api import Scenario, predict
from perfmodel.graph.job import fit_probability
from perfmodel.prediction.answer import OpenSetting, OpenValue
from perfmodel.prediction.open_settings import spread_draws
from perfmodel.reports.document import to_document

LAYOUT = ("batch=16", "parallel.tp=1", "parallel.pp=1", "parallel.micro_batch=2")
MODEL = """
name: m
family: transformer
batch: 16
sequence_length: 8192
model: {layers: 24, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 32000,
        gated_ffn: true, positions: rotary, norm: rms_norm, bias: false}
parallel: {tp: 1, pp: 1, micro_batch: 2, sharding: zero1}
"""


def test_a_peak_at_the_limit_fits_in_half_of_the_cases():
    assert fit_probability(80, 80) == pytest.approx(0.5)
    # 8 % below the limit is one standard deviation: 84 %.
    assert fit_probability(1000, 1083) == pytest.approx(0.84, abs=0.005)
    assert fit_probability(2000, 1000) < 1e-6


def test_draws_belong_to_values_in_proportion_to_their_weights():
    values = (OpenValue("none", 100, False, 0.75), OpenValue("full", 200, True, 0.25))
    answered = OpenSetting("training.recompute", "none", values, "")
    drawn = spread_draws([100.0] * 400, 100, answered)
    assert set(drawn) == {100.0, 200.0}
    assert sum(one == 200.0 for one in drawn) == pytest.approx(100, abs=4)


def test_recomputation_that_is_not_stated_and_would_not_fit_is_open(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text(MODEL)
    asked = {"topology": "dgx_h100", "workload": str(file), "samples": 64}
    found = predict(Scenario(**asked))
    [setting] = found.open_settings
    assert setting.setting == "training.recompute"
    assert setting.values[0].iteration_ns == found.iteration_ns
    assert sum(one.weight for one in setting.values) == pytest.approx(1.0)
    # Without recomputation more is kept and less is computed.
    by_name = {one.value: one for one in setting.values}
    others = [one for name, one in by_name.items() if name != "none"]
    assert not by_name["none"].fits
    assert all(one.fits and one.iteration_ns > by_name["none"].iteration_ns for one in others)
    document = to_document(found)["open_settings"]
    assert document[0]["chosen"] == setting.chosen

    for stated in ("none", "full"):
        closed = predict(Scenario(**asked, overrides=(f"training.recompute={stated}",)))
        assert closed.open_settings == ()
        assert to_document(closed)["open_settings"] == []
