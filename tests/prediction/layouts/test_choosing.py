"""A scenario that leaves its layout open gets one, and says so; any other stays as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.base.errors import PlanError
from perfmodel.prediction.layouts import choosing
from perfmodel.prediction.layouts.choosing import complete_layout
from perfmodel.prediction.question import load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.stacks.capabilities import Dispatcher
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.transformer.spec import TransformerSpec

BEST = ("parallel.tp=2", "parallel.pp=1", "parallel.sharding=zero1", "training.recompute=full")
OPEN = Scenario("quad_a100", "gpt2_xl", ("batch=8",))


@pytest.fixture
def asked(monkeypatch) -> list[Any]:
    """What the bounding stage was asked, which always finds the same layout."""
    seen: list[Any] = []

    def fastest(spec: Any, cluster: Any, stack: Any, *, stated: frozenset[str]) -> Any:
        seen.append((cluster.rank_count, stack.name, stated))
        given = dict(one.split("=") for one in BEST)
        return SimpleNamespace(overrides=given, spec=load_workload("gpt2_xl", ("batch=8", *BEST)))

    monkeypatch.setattr(choosing, "find_fast", fastest)
    return seen


def test_a_layout_that_was_left_open_is_chosen_and_said(asked):
    phases: list[Any] = []
    setting = load_setting(OPEN)
    found = complete_layout(setting, on_phase=lambda *told: phases.append(told))
    assert isinstance(setting.workload, TransformerSpec)
    # What the file states keeps its value and is not said to be chosen.
    stated = choosing.stated_fields(setting)
    changes = tuple(one for one in BEST if one.partition("=")[0] not in stated)
    assert found.scenario is not None
    assert found.scenario.overrides == ("batch=8", *changes)
    assert found.chosen[-1].startswith(f"You gave no layout: {', '.join(changes)} was")
    assert phases == [("choosing a layout", 0.0)]
    assert asked == [(4, setting.stack.name, stated)]


@pytest.mark.parametrize(
    "scenario",
    [Scenario("quad_a100", "dlrm_dcnv2"), Scenario("quad_a100", "gpt2_xl", ("parallel.tp=2",)),
     Scenario("quad_a100", "gpt2_xl", ("parallel.dp=2",)),
     Scenario("quad_a100", "gpt2_xl", ("parallel.micro_batch=2",)),
     Scenario("quad_a100", "gpt2_xl", ranks_per_host=1)],
)  # fmt: skip
def test_a_scenario_with_a_layout_or_without_need_for_one_stays_as_it_is(asked, scenario):
    setting = load_setting(scenario)
    assert complete_layout(setting) is setting
    assert asked == []


def test_where_nothing_fits_the_scenario_stays_as_it_is(monkeypatch):
    def refuse(*given: Any, stated: Any) -> Any:
        raise PlanError("nothing fits")

    monkeypatch.setattr(choosing, "find_fast", refuse)
    setting = load_setting(OPEN)
    assert complete_layout(setting) is setting


def test_settings_beside_the_split_keep_their_kind():
    words = ("parallel.dispatcher=deepep",)
    found = complete_layout(load_setting(Scenario("dgx_b200", "qwen3_30b_a3b", words)))

    assert isinstance(found.workload, TransformerSpec)
    assert found.workload.parallel.tp is not None
    assert found.workload.parallel.dispatcher is Dispatcher.DEEPEP
