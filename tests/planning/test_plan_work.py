"""Plans against each other, by part and by rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embeddings.plan_document import list_unrunnable
from perfmodel import api
from perfmodel.base.errors import ScenarioError
from perfmodel.planning.plan_work import PlanWork, RankWork, compare_works
from perfmodel.planning.question import RankQuestion, parse_share

FAST = PlanWork(
    "a", 10e6, {"compute": 8e6, "waiting": 1e6, "idle": 1e6},
    RankWork(0, 3e6, ("t1",)), RankWork(2, 40e6, ()), 100_000_000,
)  # fmt: skip
SLOW = PlanWork(
    "b", 12e6, {"compute": 8.1e6, "waiting": 2.9e6, "idle": 1e6},
    RankWork(3, 4.9e6, ("t17", "t4")), RankWork(1, 80e6, ()), 140_000_000,
)  # fmt: skip


def test_the_slower_plan_is_told_by_part_by_rank_and_by_bytes():
    # Compute differs by 0.1 of 10 ms: too little to be told.
    first, lookup, sent = compare_works(FAST, SLOW)
    assert first == "b takes 2 ms longer than a: waiting +1.9 ms."
    assert lookup == (
        "b: rank 3 looks up and updates 1.9 ms longer than any rank under a, because of t17 and t4."
    )
    assert sent.startswith("a: no rank sends more than 38.15 MiB of vectors; under b rank 1 sends")
    assert sent.endswith("its busiest host 38.15 MiB more.")


def test_what_hardly_differs_is_not_told():
    alike = replace(FAST, name="c", iteration_ns=10.1e6)
    assert compare_works(FAST, alike) == (
        "c takes 100 us longer than a: no part of it differs much.",
    )


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0.25", 0.25), (" 5 % ", 0.05)])
def test_a_share_is_a_number_or_per_cent(text, share):
    assert parse_share(text) == pytest.approx(share)


def test_words_that_are_no_share_or_framework_are_refused():
    with pytest.raises(ValueError, match="like 10%"):
        parse_share("much")
    with pytest.raises(ScenarioError, match="reserve must be"):
        RankQuestion("quad_a100", reserve=1.0)
    with pytest.raises(ScenarioError, match="one of torchrec, hugectr"):
        RankQuestion("quad_a100", runnable_by="abacus")


def test_plans_leave_memory_free_and_can_be_run(tmp_path):
    tables = tmp_path / "tables.csv"
    # 4 GiB and smaller ones of 64 columns.
    rows = "\n".join(f"t{number},{10**6 * (number + 1)},64,{number + 1}" for number in range(6))
    tables.write_text(f"name,rows,width,pooling_factor\n{rows}\n")
    asked = RankQuestion(
        "quad_a100", tables=str(tables), sharders=("naive", "hugectr_auto"), samples=2
    )
    free = api.rank(replace(asked, sharders=("naive",)))
    [naive] = free.plans
    assert naive.fits
    # So much is reserved that its fullest rank lacks a hundredth.
    reserve = 1 - 0.99 * naive.loads.peak_bytes / free.device_memory_bytes
    assert not api.rank(replace(asked, sharders=("naive",), reserve=reserve)).fits
    # Sharders keep to what the framework can run.
    only = api.rank(replace(asked, runnable_by="torchrec"))
    assert [one.plan.name for one in only.plans] == ["naive", "hugectr_auto"]
    assert [list_unrunnable(one.plan) for one in only.plans] == [(), ()]
