"""A scenario that leaves its layout open gets one, and says so; any other stays as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.base.errors import PlanError
from perfmodel.planning.layouts import search
from perfmodel.planning.layouts.search import fill_layout
from perfmodel.prediction.question import load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.stacks.capabilities import Dispatcher
from perfmodel.workloads.transformer.spec import TransformerSpec

BEST = {"parallel.tp": 2, "parallel.pp": 1, "parallel.sharding": "zero1",
        "training.recompute": "full", "parallel.interleaving": 1}  # fmt: skip
OPEN = Scenario("quad_a100", "gpt2_xl", ("batch=8",))


@pytest.fixture
def asked(monkeypatch) -> list[Any]:
    """What the bounding stage was asked, which always finds the same layout."""
    seen: list[Any] = []

    def fastest(spec: Any, cluster: Any, stack: Any, *, stated: frozenset[str]) -> Any:
        seen.append((cluster.rank_count, stack.name, stated))
        return SimpleNamespace(overrides=BEST)

    monkeypatch.setattr(search, "fastest_by_bound", fastest)
    return seen


def test_a_layout_that_was_left_open_is_filled_in_and_told(asked):
    phases: list[Any] = []
    found = fill_layout(load_setting(OPEN), on_phase=lambda *told: phases.append(told))
    changes = ("parallel.tp=2", "parallel.pp=1", "parallel.interleaving=1")
    # All else is what the workload says.
    asked_for = Scenario("quad_a100", "gpt2_xl", ("batch=8", *changes), stack="pytorch_fused")
    assert found.scenario == asked_for
    # The workload is the one that would be read from the changed scenario.
    assert found.workload == load_setting(asked_for).workload
    assert isinstance(found.workload, TransformerSpec)
    assert found.workload.parallel.model_fields_set >= {"tp", "pp", "interleaving"}
    assert found.chosen[0].startswith(f"No layout is stated: {', '.join(changes)} has")
    assert phases == [("choosing a layout", 0.0)]
    [(ranks, stack, stated)] = asked
    assert (ranks, stack) == (4, "pytorch_fused")
    assert stated >= {"parallel.sharding", "training.recompute", "parallel.sequence_parallel"}
    other = Scenario("dgx_a100", "gpt2_xl", stack="generic", ranks_per_host=2, hosts=3)
    fill_layout(load_setting(other))
    assert asked[1][:2] == (6, "generic")


@pytest.mark.parametrize(
    "scenario",
    [Scenario("quad_a100", "dlrm_dcnv2"), Scenario("quad_a100", "gpt2_xl", ("parallel.tp=2",)),
     Scenario("quad_a100", "gpt2_xl", ("parallel.dp=2",)),
     Scenario("quad_a100", "gpt2_xl", ("parallel.micro_batch=2",)),
     Scenario("quad_a100", "gpt2_xl", ranks_per_host=1)],
)  # fmt: skip
def test_a_scenario_with_a_layout_or_without_need_for_one_stays_as_it_is(asked, scenario):
    setting = load_setting(scenario)
    assert fill_layout(setting) is setting
    assert asked == []


def test_where_nothing_fits_the_scenario_stays_as_it_is(monkeypatch):
    def refuse(*given: Any, stated: Any) -> Any:
        raise PlanError("nothing fits")

    monkeypatch.setattr(search, "fastest_by_bound", refuse)
    setting = load_setting(OPEN)
    assert fill_layout(setting) is setting


def test_settings_beside_the_split_keep_their_kind():
    words = ("parallel.dispatcher=deepep",)
    found = fill_layout(load_setting(Scenario("dgx_b200", "qwen3_30b_a3b", words)))

    assert isinstance(found.workload, TransformerSpec)
    assert found.workload.parallel.tp is not None
    assert found.workload.parallel.dispatcher is Dispatcher.DEEPEP
