"""A search shown as text, CSV, JSON and page: one small search of experts on long sequences."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest

from perfmodel.base.writing import write_csv
from perfmodel.execution.executor import SerialExecutor
from perfmodel.planning.layouts.search import search_layouts
from perfmodel.planning.question import LayoutQuestion
from perfmodel.reports.html import to_page
from perfmodel.reports.search import (
    build_flags,
    predict_again,
    report_search,
    to_search_document,
)
from perfmodel.reports.terminal import to_text
from perfmodel.workloads.transformer.words import StateSharding

CHANGES = (
    "batch=8", "sequence_length=16384", "model.max_positions=16384", "model.layers=4",
    "model.heads=4", "model.hidden=256", "model.ffn=1024", "model.vocab=4096", "model.experts=4",
    "model.top_k=2", "model.moe_ffn=512", "parallel.micro_batch=1", "parallel.tp=1",
    "parallel.cp=2", "parallel.ep=2", "parallel.interleaving=1", "training.recompute=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def found():
    question = LayoutQuestion(
        topology="polaris", workload="gpt2_xl", overrides=CHANGES, stack="pytorch_fused",
        hosts=(1, 2), price_per_gpu_hour=2.0, top=3,
    )  # fmt: skip
    return search_layouts(question, executor=SerialExecutor())


def test_the_document_counts_layouts_and_says_how_each_is_split_and_paid(found):
    [first, second] = to_search_document(found)["searches"]
    best = first["layouts"][0]

    parts = ("too_large", "pruned", "replayed", "untried")
    assert first["considered"] == sum(first[part] for part in parts)
    assert first["untried"] == 0
    assert (best["tp"], best["cp"], best["ep"]) == (1, 2, 2)
    assert best["set"]["parallel.cp"] == best["set"]["parallel.ep"] == 2
    assert best["interval_ms"][0] <= best["iteration_time_ms"] <= best["interval_ms"][1]
    assert best["bound_ms"] <= best["iteration_time_ms"]
    # 4 GPUs at 2 an hour for the iteration, over 8 x 16,384 tokens.
    hours = best["iteration_time_ms"] / 3.6e6
    assert best["cost_per_million_tokens"] == pytest.approx(4 * 2 * hours / (8 * 16384) * 1e6)
    assert first["on_pareto_front"]
    faster = second["layouts"][0]["iteration_time_ms"] < best["iteration_time_ms"]
    assert second["on_pareto_front"] == faster


def test_a_deadline_that_is_missed_says_how_many_hosts_to_try(found):
    one = found[0]
    question = replace(one.question, tokens=one.tokens * 1e9, finish_in="1d", hosts=(1,))
    days = one.best.time_ns * 1e9 / 86400e9
    late, tries = report_search([replace(one, question=question)]).headline.facts[1].split(", try ")
    assert late == "none of those tried finishes within 1 day; this is the fastest"
    fewest = int(tries.removeprefix("--hosts ").partition(",")[0])
    # Failures add a little to the days of training.
    assert fewest / 2 < 1.1 * days
    assert fewest > days


def test_every_trainer_is_told_about_sequences_and_experts(found):
    flags = build_flags(found[0].best)

    assert "--context-parallel-size 2 --cp-comm-type p2p" in flags["Megatron-LM"]
    assert "--expert-model-parallel-size 2" in flags["Megatron-LM"]
    assert "--parallelism.context_parallel_degree 2" in flags["torchtitan"]
    assert "--parallelism.expert_parallel_degree 2" in flags["torchtitan"]
    assert "trainer.strategy.context_parallel_size=2" in flags["NeMo"]
    assert "trainer.strategy.expert_model_parallel_size=2" in flags["NeMo"]


def test_trainers_are_told_whether_state_is_shared(found):
    one = found[0].best
    parallel = one.candidate.spec.parallel

    def flags(sharding: StateSharding) -> str:
        spec = one.candidate.spec.model_copy(
            update={"parallel": parallel.model_copy(update={"sharding": sharding})}
        )
        layout = replace(one, candidate=replace(one.candidate, spec=spec))
        return build_flags(layout)["torchtitan"]

    # Two copies of two ranks that share a sequence.
    assert "replicate_degree 2 --parallelism.data_parallel_shard_degree 1" in flags(
        StateSharding.NONE
    )
    for sharding in StateSharding:
        assert "data_parallel_shard_degree" in flags(sharding)
        is_resharded = sharding in (StateSharding.ZERO3, StateSharding.HSDP)
        assert ("reshard_after_forward always" in flags(sharding)) == is_resharded


def test_only_trainers_that_have_a_schedule_are_told_of_it(found):
    one = found[0].best
    split = one.candidate.spec.parallel.model_copy(update={"schedule": "dualpipe_v"})
    spec = one.candidate.spec.model_copy(update={"parallel": split})
    flags = build_flags(replace(one, candidate=replace(one.candidate, spec=spec)))
    assert list(flags) == ["torchtitan"]
    assert flags["torchtitan"].count("pipeline_parallel_schedule DualPipeV") == 1


def test_the_csv_has_a_line_a_layout_with_the_words_of_the_document(found, tmp_path):
    write_csv(tmp_path / "layouts.csv", report_search(found).rows)
    with (tmp_path / "layouts.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))

    assert len(lines) == sum(len(one.layouts) for one in found)
    assert {"hosts", "gpus", "tp", "pp", "cp", "ep", "dp", "low_ms", "high_ms"} <= set(lines[0])


def test_the_text_says_what_was_tried_and_which_gpus_pay(found):
    text = to_text(report_search(found), 200)

    assert re.search(r"\d+ layouts: \d+ do not fit, \d+ pruned by a bound, \d+ replayed", text)
    assert re.search(r"4 GPUs: [\d.]+ m?s, [\d.]+ per million tokens, tp=1 pp=\d cp=2 ep=2", text)
    assert "To run the fastest" in text


def test_the_page_stands_alone_and_names_the_winner_and_its_flags(found):
    page = to_page(report_search(found))
    best = min(found, key=lambda one: one.best.time_ns).best

    assert f"{best.name} fits and is fastest" in page
    assert "--context-parallel-size 2" in page
    assert "perfmodel predict --topology polaris --workload gpt2_xl" in page
    assert not re.search(r"""(src|href)=["']https?:""", page)


def test_asked_again_a_stack_that_the_file_leaves_open_is_stated(found):
    ranking = found.best
    left_open = replace(ranking, question=replace(ranking.question, stack=None))
    assert "--stack" not in predict_again(left_open)
    best = left_open.best
    spec = best.candidate.spec.model_copy(update={"stack": "megatron"})
    other = replace(best.candidate, spec=spec)
    moved = replace(left_open, layouts=(replace(best, candidate=other), *left_open.layouts[1:]))
    assert "--stack pytorch_fused" in predict_again(moved)
