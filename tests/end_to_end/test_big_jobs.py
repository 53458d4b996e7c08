"""Jobs of thousands of ranks cost what their distinct ranks cost."""

from __future__ import annotations

import time

import pytest

from perfmodel import api
from perfmodel.prediction.scenario import Scenario


@pytest.mark.slow
def test_16384_data_parallel_ranks_are_predicted_in_under_ten_seconds():
    scenario = Scenario(
        topology="dgx_h100",
        workload="llama3_8b",
        hosts=2_048,
        overrides=("batch=32768", "parallel.tp=1", "parallel.pp=1"),
    )
    # Compiling the engine, or loading what was compiled before, is not what is measured.
    api.predict(Scenario(topology="dgx_h100", samples=2), executor="serial")

    start_s = time.process_time()
    prediction = api.predict(scenario, executor="serial")
    elapsed_s = time.process_time() - start_s

    assert prediction.facts.rank_count == 16_384
    assert len(prediction.explanation.rank_classes) == 1
    assert elapsed_s < 10
