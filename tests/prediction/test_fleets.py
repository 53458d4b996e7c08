"""Fleets: layers split by the speed of stages, and ranks that wait for slower hosts."""

from __future__ import annotations

import pytest

from perfmodel.api import Scenario, predict
from perfmodel.prediction.fleets import share_out

LAYOUT = ("parallel.tp=8", "parallel.pp=2", "parallel.micro_batch=1", "batch=8", "model.layers=12")


@pytest.mark.parametrize(
    ("layers", "speeds", "lengths"),
    # 12 in proportion 3 to 1; 10 in proportion 2 to 1 are 6.67 and 3.33; no stage without a layer.
    [(12, [3.0, 1.0], (9, 3)), (10, [2.0, 1.0], (7, 3)), (4, [9.0, 1.0], (3, 1))],
)
def test_layers_are_shared_out_in_proportion_to_speed(layers, speeds, lengths):
    assert share_out(layers, speeds) == lengths


def test_a_mixed_fleet_is_between_its_parts_and_faster_if_layers_follow_speed(tmp_path):
    def seconds(topology, hosts, *more):
        scenario = Scenario(
            topology=str(topology), hosts=hosts, workload="llama3_8b", overrides=(*LAYOUT, *more)
        )
        return predict(scenario, executor="serial")

    mixed = tmp_path / "mixed.yaml"
    mixed.write_text(
        "name: mixed\nhosts: [{count: 1, machine: dgx_h100}, {count: 1, machine: dgx_a100}]\n...\n"
    )
    split, equal = seconds(mixed, 1), seconds(mixed, 1, "parallel.stages=equal")
    fast, slow = seconds("dgx_h100", 2), seconds("dgx_a100", 2)
    times = [one.iteration_ns for one in (fast, split, equal, slow)]
    assert times == sorted(times)
    assert any("Stages take 9+3 layers" in one for one in split.assumptions)
    assert split.scenario.hosts == 2
