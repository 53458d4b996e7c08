from dataclasses import replace

import pytest

from perfmodel.api import Scenario, predict
from perfmodel.base.errors import PlanError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.planning.layouts.ranking import pareto
from perfmodel.planning.layouts.search import judge, search_layouts
from perfmodel.planning.question import LayoutQuestion
from perfmodel.prediction.layouts.bounds import Bounds
from perfmodel.prediction.layouts.candidates import iter_candidates
from perfmodel.prediction.question import PredictOptions
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload
from topologies import build_cluster, load_topology

SMALL = (
    "batch=32", "sequence_length=512", "model.max_positions=512", "model.layers=8",
    "model.heads=16", "model.hidden=1024", "model.ffn=4096",
)  # fmt: skip


def search(*overrides, hosts=(1,), topology="dgx_a100", **more):
    question = LayoutQuestion(
        topology=topology, workload="gpt2_xl", overrides=(*SMALL, *overrides), hosts=hosts, **more
    )
    return search_layouts(question, executor=SerialExecutor())


@pytest.fixture(scope="module")
def everything():
    """Every layout of a small model on 8 ranks, with its bound and its replayed time."""
    spec = load_workload("gpt2_xl", SMALL)
    cluster = build_cluster(load_topology("dgx_a100"))
    stack = load_stack(spec.stack)
    bounds = Bounds(cluster, stack)
    asked = PredictOptions(samples=2, is_explained=False)
    return [
        (one, bounds.bound_ns(one), judge((cluster, stack, asked), one).iteration_ns)
        for one in list(iter_candidates(spec, cluster, stack))[::16]
    ]


def test_a_bound_is_never_above_the_replayed_time(everything):
    assert [one.overrides for one, bound_ns, time_ns in everything if bound_ns > time_ns] == []


def test_a_bound_is_near_enough_to_be_of_use(everything):
    ratios = sorted(bound_ns / time_ns for _, bound_ns, time_ns in everything)
    assert ratios[len(ratios) // 2] > 0.8


EXPERTS = ("model.experts=8", "model.top_k=2", "model.moe_ffn=1024", "model.dense_layers=1")
LONG = ("sequence_length=16384", "model.max_positions=16384", "model.layers=4", "batch=8")


@pytest.mark.parametrize(("changes", "word"), [(EXPERTS, "ep"), (LONG, "cp")])
def test_experts_and_long_sequences_are_searched_with_bounds_below_their_times(changes, word):
    spec = load_workload("gpt2_xl", (*SMALL, *changes))
    cluster = build_cluster(load_topology("dgx_a100"))
    stack = load_stack("pytorch_fused")
    bounds, asked = Bounds(cluster, stack), PredictOptions(samples=2, is_explained=False)
    stated = {"parallel.micro_batch", "parallel.interleaving", "training.recompute"}
    found = list(iter_candidates(spec, cluster, stack, stated=stated))

    assert {getattr(one.chosen.layout, word) for one in found} >= {1, 2}
    for one in found[:: max(1, len(found) // 12)]:
        time_ns = judge((cluster, stack, asked), one).iteration_ns
        assert bounds.bound_ns(one) <= time_ns, one.overrides


TINY = (
    "sequence_length=256", "model.max_positions=256", "model.layers=4", "model.heads=4",
    "model.hidden=256", "model.ffn=1024", "model.vocab=4096",
)  # fmt: skip
WIDE = ("model.hidden=2048", "model.ffn=8192", "model.heads=16")
CASES = {
    "splits": ("batch=8", "parallel.micro_batch=2", "training.recompute=none"),
    "micro-batches": ("batch=16", "parallel.tp=1", "training.recompute=none"),
    "recomputation": ("batch=8", "parallel.pp=2", "parallel.interleaving=1", "parallel.tp=1"),
    "interleaving": ("batch=16", "parallel.tp=1", "parallel.pp=2", "training.recompute=none"),
    "sharding": ("batch=8", "parallel.pp=1", "parallel.micro_batch=1"),
    "wide": (*WIDE, "batch=8", "parallel.micro_batch=1", "training.recompute=none"),
    "many layers": ("model.layers=12", "batch=8", "parallel.tp=1", "parallel.micro_batch=1"),
    "experts": (*EXPERTS, "batch=8", "parallel.micro_batch=1", "training.recompute=none"),
    "long sequences": (
        "sequence_length=16384", "model.max_positions=16384", "batch=4", "parallel.micro_batch=1",
        "training.recompute=full", "parallel.interleaving=1",
    ),
    "one sequence": ("batch=1", "parallel.pp=1"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_search_finds_what_trying_everything_finds(case):
    overrides, topology = (*TINY, *CASES[case]), "quad_a100"
    question = LayoutQuestion(
        topology=topology, workload="gpt2_xl", overrides=overrides, stack="pytorch_fused", top=1
    )
    [found] = search_layouts(question, executor=SerialExecutor())
    spec, stack = load_workload("gpt2_xl", overrides), load_stack("pytorch_fused")
    cluster = build_cluster(load_topology(topology))
    stated = {change.partition("=")[0] for change in overrides}
    shared = (cluster, stack, PredictOptions(samples=2, is_explained=False))
    times_ns = [
        judge(shared, one).iteration_ns
        for one in iter_candidates(spec, cluster, stack, stated=stated)
    ]

    assert found.tally.is_proven
    assert found.tally.considered == len(times_ns)
    # Every field of the space is stated or has a value that some layout took.
    tried = found.tally.space
    assert all(
        found.best.candidate.overrides[field] in tried[field]
        for field in tried
        if field in found.best.candidate.overrides
    )
    assert found.best.time_ns == min(times_ns)


def test_a_search_with_little_work_answers_with_the_most_promising_and_says_what_is_untried():
    question = LayoutQuestion(
        topology="dgx_a100", workload="gpt2_xl", overrides=(*SMALL, *EXPERTS), work=2
    )
    [found] = search_layouts(question, executor=SerialExecutor())

    tally = found.tally
    assert not tally.is_proven
    assert not tally.is_braked
    assert tally.replayed == 1
    assert tally.considered == tally.too_large + tally.replayed + tally.pruned + tally.untried
    # Nothing is computed again and no stage is idle in the one that was tried.
    assert found.best.candidate.overrides["training.recompute"] == "none"
    assert found.best.split["pp"] == 1


def test_a_prediction_without_a_layout_is_near_what_a_search_proves():
    [found] = search(top=1)
    scenario = Scenario("dgx_a100", "gpt2_xl", SMALL)
    chosen = predict(scenario)

    assert found.tally.is_proven
    assert found.best.time_ns <= chosen.iteration_ns <= 1.1 * found.best.time_ns


def test_the_settings_that_a_search_prints_give_its_time_with_and_without_the_stack():
    [found] = search("batch=16", top=1)
    words = tuple(f"{key}={value}" for key, value in found.best.candidate.overrides.items())
    again = Scenario("dgx_a100", "gpt2_xl", (*SMALL, "batch=16", *words), samples=0)

    assert predict(again).iteration_ns == found.best.time_ns
    stack = found.best.candidate.stack.name
    assert predict(replace(again, stack=stack)).iteration_ns == found.best.time_ns


def test_stages_may_be_a_little_uneven_where_no_number_of_them_divides():
    spec = load_workload("gpt2_xl", (*SMALL, "model.layers=61", "batch=64"))
    cluster = build_cluster(load_topology("dgx_a100"), hosts=8)
    found = iter_candidates(spec, cluster, load_stack(spec.stack), stated={"training.recompute"})

    # 16 stages: the longest hold 4 layers, 64 / 61 of the mean. 64 stages would be 64 / 61, too,
    # but have less than a layer each.
    assert {one.chosen.layout.pp for one in found} == {1, 2, 4, 8, 16, 32}


def test_what_is_stated_is_not_searched_over():
    [found] = search("parallel.tp=2", "parallel.pp=2", "training.recompute=full", top=3)

    for one in found.layouts:
        assert one.candidate.overrides["parallel.tp"] == 2
        assert one.candidate.overrides["parallel.pp"] == 2
        assert one.candidate.overrides["training.recompute"] == "full"


def test_more_hosts_stand_on_the_front_only_if_they_are_faster():
    rankings = search("parallel.tp=1", "parallel.pp=1", hosts=(1, 2), top=1)
    front = pareto(rankings)

    assert front[0].hosts == 1
    assert all(one.best.time_ns < front[0].best.time_ns for one in front[1:])


def test_a_model_that_fits_nowhere_is_refused_with_the_nearest_layout():
    question = LayoutQuestion(topology="dgx_a100", workload="gpt3_175b", overrides=("batch=8",))

    with pytest.raises(PlanError, match=r"none of \d+ layouts of gpt3_175b fits .* The nearest"):
        search_layouts(question, executor=SerialExecutor())


def test_a_recommendation_model_is_sent_to_rank():
    question = LayoutQuestion(topology="dgx_a100", workload="dlrm_dcnv2")

    with pytest.raises(PlanError, match="perfmodel rank --search"):
        search_layouts(question, executor=SerialExecutor())


def test_dispatchers_overlap_and_schedules_of_the_stack_are_part_of_the_space():
    cluster = build_cluster(load_topology("dgx_a100"))
    spec = load_workload("gpt2_xl", (*SMALL, *EXPERTS, "parallel.ep=2"))
    stack, fixed = load_stack("megatron"), {"parallel.ep", "parallel.tp", "parallel.pp"}
    found = list(iter_candidates(spec, cluster, stack, stated=fixed))
    ways = {(one.spec.parallel.dispatcher, one.spec.parallel.expert_overlap) for one in found}
    assert {(dispatcher, is_on) for dispatcher in stack.dispatchers for is_on in (False, True)} <= (
        ways
    )
    spec, stack = load_workload("gpt2_xl", SMALL), load_stack("torchtitan")
    schedules = {one.spec.parallel.schedule for one in iter_candidates(spec, cluster, stack)}
    assert schedules == {*stack.schedules, spec.parallel.schedule}


def test_experts_are_divided_over_all_ranks_of_a_stage():
    cluster = build_cluster(load_topology("dgx_a100"))
    spec = load_workload("gpt2_xl", (*SMALL, *EXPERTS))
    found = iter_candidates(spec, cluster, load_stack("megatron"))
    # Eight ranks in tensor groups of four: experts may be divided over all eight.
    assert (4, 8) in {(one.chosen.layout.tp, one.chosen.layout.ep) for one in found}
