"""Whether a layout fits: the bytes of a prediction, and layouts where none is stated."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from perfmodel.api import Scenario, fits, predict
from perfmodel.cli import app
from perfmodel.reports.fits import to_fits_document

SPLIT = ("parallel.tp=2", "parallel.pp=2", "parallel.micro_batch=1")


@pytest.mark.parametrize(
    "changes", [(), ("training.recompute=full",), ("parallel.sharding=zero1",)]
)
def test_a_stated_layout_has_the_bytes_of_its_prediction(changes):
    asked = Scenario("dgx_h100", workload="llama3_8b", overrides=(*SPLIT, *changes), samples=0)
    found, predicted = fits(asked), predict(asked)
    assert predicted.memory is not None
    assert found.peak_bytes == predicted.memory.peak_bytes
    assert found.fits == predicted.memory.fits
    # Two stages of four ranks each.
    assert [len(one.ranks) for one in found.peaks] == [4, 4]
    parts = to_fits_document(found)["parts"]
    assert sum(parts.values()) == pytest.approx(found.peak_bytes / 2**30, abs=1e-4)


def test_a_layout_that_does_not_fit_names_a_change_that_helps():
    stated = ("parallel.tp=1", "parallel.pp=1", "training.recompute=none")
    asked = Scenario("dgx_h100", workload="llama3_8b", overrides=stated)
    found = fits(asked)
    assert not found.fits
    assert found.remedy
    better = Scenario("dgx_h100", workload="llama3_8b", overrides=(*stated, *found.remedy))
    assert fits(better).fits


def test_without_a_layout_those_on_the_fewest_gpus_are_listed():
    found = fits(Scenario("dgx_h100", workload="llama3_8b", hosts=2))
    assert found.fits
    # One host is enough, so none of two is listed.
    assert {one.gpus for one in found.layouts} == {8}
    peaks = [one.peak_bytes for one in found.layouts]
    assert peaks == sorted(peaks)
    assert all(one.peak_bytes <= found.capacity_bytes for one in found.layouts)


def test_the_command_says_by_its_exit_whether_it_fits():
    run = CliRunner().invoke
    layout = ["--set", "parallel.tp=8", "--set", "parallel.pp=1"]
    asked = ["fits", "llama3_8b", "--topology", "dgx_h100", *layout]
    assert run(app, asked).exit_code == 0
    assert run(app, [*asked, "--set", "parallel.micro_batch=16"]).exit_code == 1


def test_what_the_gate_finds_is_said_and_an_error_when_asked(typed, tmp_path):
    pytest.importorskip("perfmodel.extensions.formats")
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,'
        '"num_attention_heads": 4, "intermediate_size": 128, "surprise": 1}'
    )
    asked = f"fits {config} --topology dgx_h100 --set batch=8 --set sequence_length=128"
    assert "1 unknown key, without effect: surprise" in typed(asked).out
    assert typed(asked, "--json", "-").document["unknown_keys"] == ["surprise"]
    assert "--strict" in typed(asked, "--strict", code=1).err
