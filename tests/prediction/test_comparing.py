"""Scenarios side by side, and where the curve of a sweep bends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.comparing import (
    Compared,
    Comparison,
    SweepAxis,
    compare_scenarios,
    find_knees,
    parse_axis,
    sweep_scenario,
)
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.prediction.scenario import JobScenario, Scenario


def build(scenario):
    return build_question(load_setting(scenario))


SMALL = Scenario(topology="dgx_a100", workload="dlrm_mlperf", stack="pytorch_fused", samples=2)


def test_a_sweep_takes_every_combination_and_replaces_what_was_set():
    base = Scenario(topology="dgx_a100", overrides=("batch=1",))
    points = sweep_scenario(base, [parse_axis("hosts=1,2"), parse_axis("batch=8,16")])

    names = [f"hosts={hosts}, batch={batch}" for hosts in (1, 2) for batch in (8, 16)]
    assert [name for name, _ in points] == names
    assert points[3][1] == Scenario(topology="dgx_a100", hosts=2, overrides=("batch=16",))


def test_a_job_cannot_be_swept_over_fields_of_a_model():
    with pytest.raises(ScenarioError, match="whatif"):
        sweep_scenario(JobScenario("job"), [parse_axis("batch=8,16")])


def test_a_curve_that_the_host_holds_flat_has_a_knee_where_the_gpu_takes_over():
    axis = parse_axis("batch=2048,4096,65536,131072")
    found = compare_scenarios(
        sweep_scenario(SMALL, [axis]), build=build, axes=[axis], executor=SerialExecutor()
    )
    assert any(
        sentence.startswith("Knee between batch=65,536 and 131,072: up to there mostly host")
        for sentence in found.findings
    )
    # Batches differ in work: the one that does most per second is best.
    assert found.fastest.name == "batch=131072"


def test_one_scenario_without_an_answer_keeps_its_place_with_the_reason():
    wrong = Scenario(topology="dgx_a100", workload="dlrm_mlperf", overrides=("batch=0",))
    named = [("right", SMALL), ("wrong", wrong)]
    found = compare_scenarios(named, build=build, executor=SerialExecutor())
    assert [entry.prediction is None for entry in found.entries] == [False, True]
    assert "batch" in found.entries[1].fault


def test_nothing_to_compare_is_refused():
    with pytest.raises(ScenarioError, match="two or more scenarios"):
        compare_scenarios([("alone", SMALL)], build=build, executor=SerialExecutor())


def answered(name: str, time_ms: float, *, fits: bool | None = True, assumed=(), **path_ms: float):
    """A scenario with an answer of which only what is compared is there."""
    kinds = {kind: round(1e6 * ms) for kind, ms in path_ms.items()} or {"host": 1}
    bound = max(kinds, key=lambda kind: kinds[kind])
    found = SimpleNamespace(
        iteration_ns=round(1e6 * time_ms),
        memory=None if fits is None else SimpleNamespace(fits=fits),
        facts=SimpleNamespace(rank_count=8),
        yardsticks=None,
        bound=SimpleNamespace(name=bound),
        bound_ratio=0.75,
    )
    return Compared(name, SMALL, found, assumed=assumed)


def test_the_fastest_that_fits_comes_first_and_what_has_no_answer_last():
    entries = (
        Compared("none", SMALL, None, "a fault"), answered("large", 1.0, fits=False),
        answered("slow", 36.0), answered("fast", 9.0, fits=None), answered("same", 9.0),
    )  # fmt: skip
    given = Comparison(entries)
    found = replace(given.ordered(), price_per_gpu_hour=2.0)
    assert [one.name for one in found.entries] == ["fast", "same", "slow", "large", "none"]
    assert found.fastest.name == given.fastest.name == "fast"
    # These jobs do not say how much work an iteration does, so it has no price.
    assert found.cost_of(entries[2]) is None
    assert given.goes_over_numbers is False
    assert Comparison((), (SweepAxis("batch", ("64", "0.5")),)).goes_over_numbers


def test_what_was_assumed_is_said_with_who_it_is_about():
    both = Comparison((answered("a", 1.0, assumed=("x", "y")), answered("b", 2.0, assumed=("x",))))
    assert both.findings == ("All: x", "a: y")
    assert Comparison((answered("a", 1.0, assumed=("x",)),)).findings == ("a: x",)


@pytest.mark.parametrize("text", ["batch", "=1,2", " =1,2", "batch=", "batch= ", "batch=1"])
def test_a_sweep_needs_a_key_and_several_values(text):
    with pytest.raises(ScenarioError, match="sweep"):
        parse_axis(text)


def test_what_is_swept_goes_where_it_belongs():
    def swept(base, key, value):
        [point, _] = sweep_scenario(base, [SweepAxis(key, (value, "9"))])
        return point[1]

    job = JobScenario("job", topology="dgx_a100")
    assert swept(SMALL, "ranks_per_host", "4") == replace(SMALL, ranks_per_host=4)
    assert swept(SMALL, "stack", "generic") == replace(SMALL, stack="generic")
    assert swept(SMALL, "mode", "x") == replace(SMALL, overrides=("mode=x",))
    assert swept(job, "hosts", "4") == replace(job, hosts=4)
    assert swept(job, "topology", "dgx_h100") == replace(job, topology="dgx_h100")
    for base, key, value in ((SMALL, "hosts", "two"), (job, "workload", "a"), (job, "mode", "x")):
        with pytest.raises(ScenarioError, match=f"sweep of {key}"):
            swept(base, key, value)


def told(*points, keys=("batch",)):
    """What is said of points that are answered, or given as (batch, milliseconds, path)."""
    found = (
        point
        if isinstance(point, Compared)
        else answered(f"batch={point[0]}", point[1], **point[2])
        for point in points
    )
    return find_knees(Comparison(tuple(found), tuple(SweepAxis(key, ()) for key in keys)))


def test_a_knee_is_where_what_decides_changes():
    [sentence] = told(
        (40, 40.0, {"gemm": 30, "host": 10}), (10, 10.0, {"host": 9}),
        (20, 10.2, {"host": 9, "gemm": 1}), (80, 80.0, {"gemm": 70, "host": 10}), (0, 1.0, {}),
    )  # fmt: skip
    assert sentence == (
        "Knee between batch=20 and 40: up to there mostly host (75% of the critical path), beyond "
        "it gemm (75% of the critical path)."
    )


def test_knees_are_told_of_one_axis_of_numbers():
    two = ((10, 10.0, {"host": 9}), (20, 20.0, {"gemm": 19}))
    assert len(told(*two)) == 1
    assert told(*two, keys=("batch", "hosts")) == ()
    assert told(two[0]) == ()
    assert told(*two, answered("batch=many", 3.0)) == ()
