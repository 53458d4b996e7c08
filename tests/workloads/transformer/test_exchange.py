"""How tokens get to their experts, and what runs meanwhile, counted on paper."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from collectives.collective import Collective, CollectiveKind
from collectives.pricing import price_collective
from collectives.token_exchange import TokenLibrary, TokenRouting
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError
from perfmodel.costs.pricing import price_job
from perfmodel.graph.ops import Attention, Communication, GroupedGemm, HostSpan
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.workloads import build_job
from perfmodel.workloads.eager import Joining, Step, communication
from perfmodel.workloads.transformer.layout import Layout, Slot
from perfmodel.workloads.transformer.schedules import merge_layers, pair_turns, turns_ahead
from perfmodel.workloads.transformer.shapes import count_flops, stage_parameters
from tests.workloads.reading import (
    STACK,
    bytes_of,
    collectives_of,
    iter_ops,
    job_of,
    ops_of,
    parameter_count,
    tiny,
)
from tests.workloads.transformer.test_context import iteration_ns
from topologies import build_cluster, load_topology

EXPERTS = {"experts": 4, "top_k": 2, "moe_ffn": 12}
ALL_TO_ALL = CollectiveKind.ALL_TO_ALL


def test_a_gather_of_tokens_carries_all_of_them_and_results_are_scattered():
    spec = tiny(**EXPERTS, parallel={"ep": 2, "dispatcher": "allgather"}, layers=1)
    job = job_of(spec, ranks=2)
    # 2 x 16 tokens of each of two ranks, 8 numbers of 2 bytes, however many experts they choose.
    whole = 2 * 2 * 16 * 8 * 2
    assert bytes_of(job, CollectiveKind.ALL_GATHER, "layer 0/ffn/dispatch") == whole
    assert bytes_of(job, CollectiveKind.REDUCE_SCATTER, "layer 0/ffn/combine") == whole


@pytest.mark.parametrize("library", ["deepep", "hybridep"])
def test_a_library_is_given_every_token_once(library):
    spec = tiny(**EXPERTS, parallel={"ep": 2, "dispatcher": library}, layers=1)
    calls = collectives_of(job_of(spec, ranks=2), ALL_TO_ALL, "layer 0/ffn")
    assert [call.size_bytes for call in calls] == [2 * 16 * 8 * 2] * 4
    assert [call.routing.is_combine for call in calls] == [False, True, False, True]


def routing(**changes):
    made = TokenRouting(TokenLibrary.DEEPEP, 4096, 8, 256, is_combine=False, sms=20)
    return replace(made, **changes)


def test_experts_in_turn_are_neighbours():
    # Eight of 256 are all of one of 32 ranks, of two of 64, and of one of 8 hosts.
    assert [routing(is_in_turn=True).reached(places) for places in (32, 64, 8)] == [1, 2, 1]
    # Four begin anywhere among the three of each of ten ranks: (3 + 4 - 1) / 3.
    assert routing(is_in_turn=True, top_k=4, experts=30).reached(10) == 2


def test_a_token_reaches_the_places_of_its_experts():
    # A place of eight holds 32 of 256 experts: none of the eight chosen ones is among them.
    missed = comb(224, 8) / comb(256, 8)
    assert routing().reached(8) == pytest.approx(8 * (1 - missed))
    assert routing().reached(1) == pytest.approx(1.0)
    assert routing(experts=4, top_k=2).reached(8) == 2.0


def exchange_ns(hosts, *, tokens=16384, **changes):
    cluster = build_cluster(load_topology("dgx_h100"), hosts=hosts)
    made = routing(tokens=tokens, **changes)
    collective = Collective(ALL_TO_ALL, tokens * 7168 * 2, DType.BF16, routing=made)
    cost = price_collective(collective, cluster=cluster, ranks=tuple(range(8 * hosts)))
    return cost.duration_ns


def test_an_exchange_takes_what_the_slowest_of_links_nics_and_multiprocessors_takes():
    # 16,384 tokens of 14,336 bytes reach 5.29 ranks, 7/8 of them another one, at 71 % of 450 GB/s.
    reached = 8 * (1 - comb(224, 8) / comb(256, 8))
    link_ns = 16384 * 14336 * reached * 7 / 8 / (0.709 * 450)
    assert exchange_ns(1, library=TokenLibrary.HYBRIDEP) == pytest.approx(link_ns, rel=0.15)
    # From four hosts it reaches 3.6, three quarters of them others, over a NIC of 50 GB/s.
    hosts = 4 * (1 - comb(192, 8) / comb(256, 8))
    assert exchange_ns(4) == pytest.approx(16384 * 14336 * hosts * 3 / 4 / 50, rel=0.15)
    assert exchange_ns(1, tokens=0) < 40_000
    assert exchange_ns(1) > exchange_ns(1, sms=80)


def test_only_an_all_to_all_routes_tokens():
    with pytest.raises(InputError, match="only all_to_all routes tokens"):
        Collective(CollectiveKind.ALL_REDUCE, 8, routing=routing())


def step(label):
    return Step("op", label)


def sent(label):
    return communication(ALL_TO_ALL, label, 8, DType.BF16, Slot.EXPERTS)


def test_layers_beside_each_other_take_turns_behind_every_exchange():
    forward = [step("attention"), sent("dispatch"), step("experts"), sent("combine"), step("add")]
    backward = [step("sum"), sent("combine'"), step("experts'"), sent("dispatch'"), step("att.'")]
    merged = merge_layers(forward, backward)
    assert [one.label.removesuffix(" all_to_all") for one in merged] == [
        "sum", "combine'", "attention", "dispatch", "experts'", "dispatch'", "experts", "combine",
        "att.'", "add",
    ]  # fmt: skip
    # The backward experts wait for what was sent before attention, and for nothing else.
    assert merged[4].joins == (Joining.GRADIENTS_OF_TOKENS,)
    assert merged[6].joins == (Joining.TOKENS,)


def test_a_stage_that_works_on_two_turns_starts_further_ahead():
    plain = Layout(tp=1, pp=2, dp=1, micro_batch=1, micro_batches=6)
    beside = replace(plain, runs_beside=True)
    assert [turns_ahead(plain, stage) for stage in (0, 1)] == [1, 0]
    assert [turns_ahead(beside, stage) for stage in (0, 1)] == [3, 1]
    pairs = [(one.micro_batch, other.micro_batch) for one, other in pair_turns(beside, 1) if other]
    assert pairs == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]


@pytest.mark.parametrize("split", [{}, {"pp": 2}, {"pp": 2, "interleaving": 2}, {"tp": 2}])
@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep", "hybridep"])
def test_overlap_moves_the_same_bytes_in_less_time(split, dispatcher):
    words = {"ep": 2, "micro_batch": 1, "dispatcher": dispatcher, **split}
    # Captured, so that the host is not what they wait for.
    whole = {"cuda_graph": "full"}
    shape = {"hidden": 2048, "heads": 16, "moe_ffn": 1024}
    spec = tiny(**EXPERTS | shape, parallel=words, batch=32, training=whole)
    over = spec.model_copy(
        update={"parallel": spec.parallel.model_copy(update={"expert_overlap": True})}
    )
    ranks = 2 * split.get("pp", 1) if split.get("tp") is None else 4
    moved = [
        sorted(op.collective.size_bytes for _, op in iter_ops(job_of(one, ranks=ranks))
               if isinstance(op, Communication))
        for one in (spec, over)
    ]  # fmt: skip
    assert moved[0] == moved[1]
    assert iteration_ns(over, ranks) < iteration_ns(spec, ranks)


def test_experts_one_by_one_are_as_many_launches():
    spec = tiny(**EXPERTS, parallel={"ep": 2}, layers=1, training={"grouped_experts": False})
    forward = [op for _, op in ops_of(job_of(spec, ranks=2), GroupedGemm, "forward")]
    assert [(op.groups, op.m, op.n, op.k) for op in forward] == [
        (1, 32, 24, 8), (1, 32, 24, 8), (1, 32, 8, 12), (1, 32, 8, 12),
    ]  # fmt: skip


@pytest.mark.parametrize(("graph", "fewer"), [("none", 1), ("partial", 1.5), ("full", 20)])
def test_captured_passes_cost_the_host_less(graph, fewer):
    def parts(word):
        spec = tiny(**EXPERTS, parallel={"ep": 2}, training={"cuda_graph": word})
        return sum(len(op.parts) for _, op in ops_of(job_of(spec, ranks=2), HostSpan))

    assert parts("none") >= fewer * parts(graph)


def test_attention_of_packed_samples_stays_in_them():
    spec = tiny(training={"packed_tokens": 4}, layers=1)
    _, op = ops_of(job_of(spec), Attention, "forward")[0]
    # Two sequences of 16 tokens are eight samples of 4.
    assert (op.batch, op.query_length, op.key_length, op.is_causal) == (8, 4, 4, True)
    assert count_flops(spec).model_flops < count_flops(tiny(layers=1)).model_flops


def test_layers_that_predict_further_tokens_are_a_layer_a_projection_and_logits():
    further, plain = tiny(mtp_layers=1, layers=1).model, tiny(layers=2).model
    layout = Layout(tp=1, pp=1, dp=1, micro_batch=1, micro_batches=1)
    held = stage_parameters(further, replace(layout, further_layers=1), stage=0)
    # The projection takes 16 numbers to 8.
    assert held == stage_parameters(plain, layout, stage=0) + 16 * 8
    names = [name for name, _ in iter_ops(job_of(tiny(mtp_layers=1, layers=1, batch=2)))]
    for where in (
        "layer 1/further/joining forward",
        "layer 1/head/logits forward",
        "head/logits f",
    ):
        assert any(name.startswith(where) for name in names)


SPREADS = [
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"tp": 2, "tp_overlap": "full"},
    *({"cp": 2, "cp_kind": kind} for kind in ("ring", "all_gather", "all_to_all")),
    {"pp": 2},
    {"pp": 2, "interleaving": 2},
    *({"pp": 2, "schedule": schedule} for schedule in ("zb_h1", "zb_v", "dualpipe_v")),
]
"""Ways to spread a layer over ranks."""


@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_four_bits_go_with_every_kind_of_parallelism(spread):
    cluster = build_cluster(load_topology("dgx_b200"), hosts=2, ranks_per_host=4)
    shardings = ["none", "zero1", "zero2", "zero3", "hsdp"]
    experts = [{}, {"ep": 2}, {"ep": 2, "etp": 2}, {"ep": 2, "dispatcher": "hybridep"}]
    if spread.get("sequence_parallel") is False:
        # Ranks of a tensor group would send the same tokens twice: refused in every format.
        experts = experts[:1]
    for place, expert in enumerate(experts):
        # Every sharding meets every spread, and so does every way to divide experts.
        for sharding in shardings if place == 0 else shardings[place::3]:
            parallel = {**spread, **expert, "sharding": sharding}
            if sharding in ("zero3", "hsdp") and "pp" in spread:
                parallel["sharding"] = "zero1"
            spec = tiny(
                **(EXPERTS if expert else {}),
                parallel={"tp": 1, "micro_batch": 1, **parallel},
                training={"compute": "nvfp4"},
                batch=16,
            )
            job = build_job(spec, rank_count=8, ranks_per_host=4, stack=STACK)
            assert price_job(job, cluster=cluster, stack=STACK).durations.values_ns.sum() > 0


def test_sharded_experts_are_gathered_over_the_ranks_that_hold_the_same_ones():
    spec = tiny(**EXPERTS, parallel={"ep": 2, "sharding": "zero3"}, layers=1, batch=8)
    job = job_of(spec, ranks=4)
    # Two experts of 8 x 24 and 12 x 8 weights, 2 bytes each, forward and backward.
    held = 2 * (8 * 24 + 12 * 8) * 2
    assert bytes_of(job, CollectiveKind.ALL_GATHER, "layer 0/experts") == 2 * held
    assert bytes_of(job, CollectiveKind.REDUCE_SCATTER, "gradients/bucket") == 4 * (
        parameter_count(spec.model) - 2 * (8 * 24 + 12 * 8)
    )


def test_buckets_of_parameters_grow_with_the_ranks_that_reduce_them():
    stack = replace(STACK, habits=STACK.habits | {FrameworkBehaviour.PARAMETER_BUCKETS})
    spec = tiny(batch=8, hidden=2048, heads=16, ffn=8192, layers=2)
    job = build_job(spec, rank_count=2, ranks_per_host=8, stack=stack)
    # 58.7 million weights and norms of a layer in fp32 close a bucket of 40 million.
    calls = collectives_of(job, CollectiveKind.ALL_REDUCE, "gradients/bucket")
    assert all(call.size_bytes >= 4 * 40_000_000 for call in calls[:-1])
    assert "buckets of 152.6 MiB" in " ".join(job.facts.assumptions)


def test_coalesced_gathers_are_one_call():
    habits = STACK.habits | {FrameworkBehaviour.COALESCED_GATHERS}
    spec = tiny(
        parallel={"sharding": "zero1", "dp_overlap": "full"}, training={"bucket_size": "1 KiB"}
    )
    for stack, calls in ((STACK, 4), (replace(STACK, habits=habits), 1)):
        job = build_job(spec, rank_count=2, ranks_per_host=8, stack=stack)
        gathers = collectives_of(job, CollectiveKind.ALL_GATHER, "optimizer/weights")
        assert len(gathers) >= calls
        assert calls > 1 or len(gathers) == 1
