"""Layouts, given and chosen, and the order of micro-batches in a pipeline."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from perfmodel.base.errors import WorkloadError
from perfmodel.graph.ops import Pass
from perfmodel.stacks.capabilities import Fusion
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.layout import Layout, split_layers, split_layers_by_cost
from perfmodel.workloads.transformer.layout_choice import choose_layout
from perfmodel.workloads.transformer.schedules import build_schedule

STACK = replace(load_stack("pytorch_fused"), fusions=frozenset(Fusion))


def _choose(name: str, rank_count: int, *overrides: str):
    spec = load_workload(name, overrides)
    return choose_layout(spec, rank_count=rank_count, ranks_per_host=8, stack=STACK)


@pytest.mark.parametrize("name", ["llama3_8b", "llama3_70b", "gpt3_175b", "bert_large", "gpt2_xl"])
@pytest.mark.parametrize("rank_count", [1, 8, 64, 128])
def test_every_shipped_model_has_a_layout(name, rank_count):
    layout = _choose(name, rank_count).layout
    assert layout.rank_count == rank_count
    assert layout.dp * layout.micro_batch * layout.micro_batches == load_workload(name).batch


def test_a_large_model_stays_inside_a_host_before_it_takes_stages():
    layout = _choose("llama3_70b", 128).layout
    assert (layout.tp, layout.pp, layout.dp) == (8, 1, 16)


def test_what_is_stated_is_kept():
    chosen = _choose("llama3_8b", 16, "parallel.tp=4", "parallel.pp=2", "parallel.micro_batch=4")
    # 16 ranks / (4 x 2) = 2 copies; 128 sequences / 2 / 4 = 16 micro-batches.
    assert chosen.layout == Layout(
        tp=4, pp=2, dp=2, micro_batch=4, micro_batches=16, is_sequence_parallel=True
    )


def test_a_model_that_cannot_fit_says_so():
    chosen = _choose("gpt3_175b", 8)
    assert not chosen.fits
    assert "no layout fits" in chosen.sentence


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["parallel.tp=5"], "heads (32) are not divisible by tp=5"),
        (["parallel.pp=3"], "8 ranks are not divisible by tp x pp = 1 x 3"),
        (["parallel.pp=8", "parallel.interleaving=5"], "layers (32) are too few for pp x"),
        (["parallel.tp=8", "parallel.pp=2"], "8 ranks are not divisible by tp x pp = 8 x 2"),
        (["batch=3", "parallel.tp=1", "parallel.pp=1"], "batch (3) is not divisible by dp x"),
        (["parallel.dp=3"], "dp=3 is not 8 ranks"),
        (
            ["parallel.sharding=hsdp", "parallel.shard_group=3", "parallel.tp=1", "parallel.pp=1"],
            "dp=8 is not divisible by shard_group=3",
        ),
    ],
)
def test_what_does_not_divide_is_named(overrides, fault):
    with pytest.raises(WorkloadError) as error:
        _choose("llama3_8b", 8, *overrides)
    assert fault in str(error.value)


def test_groups_of_a_layout_by_hand():
    layout = Layout(tp=2, pp=2, dp=2, micro_batch=1, micro_batches=1)
    # Rank = tensor + 2 (data + 2 stage).
    assert layout.ranks[0, 0, 1, :].tolist() == [2, 3]
    assert layout.ranks[1, 0, :, 1].tolist() == [5, 7]
    assert layout.ranks[:, 0, 1, 0].tolist() == [2, 6]


@pytest.mark.parametrize(
    ("layers", "runs", "lengths"),
    [
        (32, 4, (8, 8, 8, 8)),
        # 70 layers and two ends are 72 = 12 x 6.
        (70, 12, (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)),
        # 28 = 8 x 3 + 4: neither 28 nor 30 divides, so four stages in the middle have one more.
        (28, 8, (3, 4, 4, 4, 4, 3, 3, 3)),
        (30, 32, (0, *[1] * 30, 0)),
    ],
)
def test_layers_that_do_not_divide_leave_less_to_the_ends(layers, runs, lengths):
    assert split_layers(layers, runs) == lengths


def test_hybrid_sharding_divides_inside_a_host_and_repeats_over_hosts():
    layout = _choose(
        "llama3_8b", 32, "parallel.sharding=hsdp", "parallel.tp=2", "parallel.pp=1"
    ).layout
    # 8 ranks a host in pairs: 4 of the 16 data-parallel ranks share, four times over.
    assert (layout.dp, layout.shard_ranks, layout.replicas) == (16, 4, 4)
    assert layout.ranks[0, 1, :, 1].tolist() == [9, 11, 13, 15]
    assert layout.ranks[0, :, 2, 1].tolist() == [5, 13, 21, 29]


def test_the_largest_batch_is_divided_in_a_moment():
    start = time.process_time()
    _choose("llama3_8b", 8, f"batch={2**31}", "parallel.tp=1", "parallel.pp=1")
    assert time.process_time() - start < 1


def test_a_batch_beyond_bounds_is_refused():
    with pytest.raises(WorkloadError, match=r"batch: .* 2147483648, got 100000000000000000000"):
        _choose("llama3_8b", 8, f"batch={10**20}")


def test_stages_dealt_by_cost_leave_more_to_the_first_and_the_head_to_the_last():
    # 8 layers of 1 and a head of 2: shares of 2.5. The first stage takes 3 (2 is not more than
    # its share), the second up to 6, the third 7 and 8, then the last norm and the head.
    assert split_layers_by_cost(4, layer_costs=[1] * 8, head_cost=2) == (3, 3, 2, 0)
    # Twelve shares of less than a layer each: after the loss nothing is left for the last two.
    assert split_layers_by_cost(12, layer_costs=[1] * 2, head_cost=1)[-2:] == (-1, -1)


def test_a_stage_with_nothing_to_do_is_named():
    with pytest.raises(WorkloadError, match="would have nothing to do"):
        _choose("llama3_8b", 64, "parallel.stages=by_cost", "parallel.pp=64", "parallel.tp=1")


def _pipeline(stages: int, micro_batches: int, runs: int = 1) -> Layout:
    return Layout(1, stages, 1, 1, micro_batches, interleaving=runs)


def _letters(stage: int, stages: int, micro_batches: int) -> str:
    turns = build_schedule(_pipeline(stages, micro_batches), stage)
    return " ".join(f"{turn.direction.value[0]}{turn.micro_batch}" for turn in turns)


def test_one_forward_one_backward_by_hand():
    assert _letters(0, 3, 4) == "f0 f1 f2 b0 f3 b1 b2 b3"
    assert _letters(1, 3, 4) == "f0 f1 b0 f2 b1 f3 b2 b3"
    assert _letters(2, 3, 4) == "f0 b0 f1 b1 f2 b2 f3 b3"


def test_a_single_stage_alternates():
    assert _letters(0, 1, 2) == "f0 b0 f1 b1"


@pytest.mark.parametrize("stage", range(8))
@pytest.mark.parametrize("micro_batches", [1, 3, 8, 20])
def test_every_micro_batch_passes_once_each_way_and_forward_first(stage, micro_batches):
    turns = build_schedule(_pipeline(8, micro_batches), stage)
    for direction in Pass:
        passed = [turn.micro_batch for turn in turns if turn.direction is direction]
        assert passed == list(range(micro_batches))
    in_flight = 0
    for turn in turns:
        in_flight += 1 if turn.direction is Pass.FORWARD else -1
        assert 0 <= in_flight <= 8 - stage


def _runs(stage: int) -> str:
    turns = build_schedule(_pipeline(2, 4, runs=2), stage)
    return " ".join(f"{turn.direction.value[0]}{turn.micro_batch}.{turn.run}" for turn in turns)


def test_interleaved_stages_by_hand():
    # Two stages of two runs: micro-batches go round in pairs; ahead are 2 (2 - 0 - 1) + 2 = 4
    # turns on the first stage, and 2 on the last.
    assert _runs(0) == (
        "f0.0 f1.0 f0.1 f1.1 f2.0 b0.1 f3.0 b1.1 f2.1 b0.0 f3.1 b1.0 b2.1 b3.1 b2.0 b3.0"
    )
    assert _runs(1) == (
        "f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 f2.0 b0.0 f3.0 b1.0 f2.1 b2.1 f3.1 b3.1 b2.0 b3.0"
    )


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("micro_batches", [4, 8, 12])
def test_interleaved_every_run_sees_every_micro_batch_once_each_way(stage, micro_batches):
    turns = build_schedule(_pipeline(4, micro_batches, runs=3), stage)
    seen = [(turn.direction, turn.run, turn.micro_batch) for turn in turns]
    assert len(set(seen)) == len(seen) == 2 * 3 * micro_batches
    for run in range(3):
        for number in range(micro_batches):
            forward = seen.index((Pass.FORWARD, run, number))
            assert forward < seen.index((Pass.BACKWARD, run, number))


def test_further_layers_and_the_loss_leave_the_last_stage_fewer_layers():
    # DeepSeek-V3: 61 layers, one that predicts a further token, and the loss are 63 units in 16
    # stages, so 4 each: 15 x 4 = 60 layers, and 1 on the last stage with the other two.
    assert split_layers(61, 16, further=1) == (*[4] * 15, 1)
    # 32 stages of 2: 30 x 2 = 60, the next has 1, and the last only the other two units.
    assert split_layers(61, 32, further=1) == (*[2] * 30, 1, 0)
    # 18 units in 8 stages: filled from the first, two would have no layer, so they are equal.
    assert split_layers(16, 8, further=1) == (2,) * 8


def test_a_folded_pipeline_holds_layers_from_both_ends():
    layout = Layout(1, 4, 1, 1, 8, interleaving=2, schedule="dualpipe_v", further_layers=1)
    assert [layout.layer_runs(16, stage=stage) for stage in (0, 1, 3)] == [
        (range(2), range(14, 17)),
        (range(2, 4), range(12, 14)),
        (range(6, 8), range(8, 10)),
    ]
