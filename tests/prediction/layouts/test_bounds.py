"""Bounds of layouts: worked out by hand from times of layers that are stated."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.prediction.layouts import bounds as bounding
from perfmodel.prediction.layouts.bounds import Bounds, Layer, LayerTimes, layer_of, measure_layer
from perfmodel.prediction.layouts.candidates import Candidate, iter_candidates
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.words import StateSharding
from topologies import build_cluster, load_topology

SMALL = (
    "batch=32", "sequence_length=512", "model.max_positions=512", "model.layers=8",
    "model.heads=16", "model.hidden=1024", "model.ffn=4096", "training.recompute=none",
)  # fmt: skip
STACK = load_stack("pytorch_fused")
CLUSTER = build_cluster(load_topology("dgx_a100"))


def only(*changes: str) -> Candidate:
    """The one layout of a small model on eight ranks that *changes* leave."""
    spec = load_workload("gpt2_xl", (*SMALL, *changes))
    stated = {text.partition("=")[0] for text in (*SMALL, *changes)}
    [found] = iter_candidates(spec, CLUSTER, STACK, stated=stated)
    return found


def bound_ns(one: Candidate, *, gathered_ns: float = 0.0) -> int:
    """Its bound where a layer takes 100 ns and both ends of the model 50 for a micro-batch."""
    bounds = Bounds(CLUSTER, STACK)
    bounds.take([layer_of(one)], [LayerTimes(100, 50)])
    bounds._gather_ns = lambda ranks, size_bytes: gathered_ns * len(ranks)  # type: ignore[assignment]
    return bounds.bound_ns(one)


FLAT = ("parallel.interleaving=1", "parallel.sequence_parallel=false", "parallel.sharding=none")


def test_one_stage_works_off_its_layers_and_both_ends():
    # dp 8: four sequences a rank, two micro-batches of 8 x 100 + 50.
    one = only(*FLAT, "parallel.tp=1", "parallel.pp=1", "parallel.micro_batch=2")
    assert one.chosen.layout.micro_batches == 2
    assert bound_ns(one) == 2 * 850


def test_the_last_stage_has_the_head_and_waits_for_those_before_it():
    # Two stages of four layers, dp 4, eight sequences in four micro-batches. The last stage has
    # four fifths of the ends, 440 for a micro-batch, and what the first takes for one, 400.
    one = only(*FLAT, "parallel.tp=1", "parallel.pp=2", "parallel.micro_batch=2")
    assert one.chosen.layout.micro_batches == 4
    assert bound_ns(one) == 4 * 440 + 400
    # Cut into two runs each, only the first run is waited for.
    runs = only(
        *FLAT[1:], "parallel.interleaving=2", "parallel.tp=1", "parallel.pp=2",
        "parallel.micro_batch=2",
    )  # fmt: skip
    assert bound_ns(runs) == 4 * 440 + 200


def test_of_experts_only_layers_that_have_them_are_counted():
    one = only(
        *FLAT, "model.experts=8", "model.top_k=2", "model.moe_ffn=1024", "model.dense_layers=3",
        "parallel.ep=2", "parallel.tp=1", "parallel.pp=1", "parallel.micro_batch=4",
        "parallel.dispatcher=alltoall", "parallel.expert_overlap=false",
    )  # fmt: skip
    assert bound_ns(one) == 5 * 100 + 50


def test_divided_weights_are_gathered_twice_for_every_layer_but_one():
    whole = ("parallel.interleaving=1", "parallel.sequence_parallel=false", "parallel.tp=1",
             "parallel.pp=1", "parallel.micro_batch=2")  # fmt: skip
    one = only("parallel.sharding=zero3", *whole)
    assert one.spec.parallel.sharding is StateSharding.ZERO3
    # Two micro-batches, forward and backward, seven layers among eight ranks.
    assert bound_ns(one, gathered_ns=10) == 2 * 2 * 7 * 80
    assert bound_ns(one, gathered_ns=1) == 2 * 850
    assert bound_ns(only("parallel.sharding=zero1", *whole), gathered_ns=99) == 2 * 850
    alone = only(
        "parallel.sharding=zero3", "parallel.interleaving=1", "parallel.sequence_parallel=false",
        "parallel.tp=8", "parallel.pp=1", "parallel.micro_batch=2",
    )  # fmt: skip
    assert bound_ns(alone, gathered_ns=99) == 16 * 850


def test_what_a_gather_takes_grows_with_what_is_gathered():
    bounds = Bounds(CLUSTER, STACK)
    small, large = (bounds._price_gather(range(8), size) for size in (2**20, 2**26))
    assert 0 < small < large


@pytest.mark.parametrize(
    ("ends_ns", "layer_ns", "both_ends_ns"),
    [
        # A layer adds 100 in the first micro-batch, and as much in the second; 70 are left.
        ((170, 270, 340, 540), 100, 70),
        # Beside others the second layer adds less: 90 in all.
        ((170, 270, 340, 530), 90, 80),
        # The second micro-batch adds less than the first took.
        ((170, 270, 300, 500), 100, 30),
        # What hides behind other work is not counted, and nothing is less than nothing.
        ((170, 160, 300, 500), 0, 130), ((170, 270, 200, 400), 100, 0),
    ],
)  # fmt: skip
def test_a_layer_takes_what_it_surely_adds(monkeypatch, ends_ns, layer_ns, both_ends_ns):
    places = [(1, 1), (2, 1), (1, 2), (2, 2)]
    known = dict(zip(places, ends_ns, strict=True))
    monkeypatch.setattr(
        bounding, "replay_layers", lambda shared, one, sizes: [known[size] for size in sizes]
    )
    # Remembered by what is asked, so every case asks about another layer.
    one: Any = object()
    assert measure_layer((CLUSTER, STACK), one) == LayerTimes(layer_ns, both_ends_ns)


def test_a_layer_is_measured_in_as_few_ranks_as_share_it_and_on_as_few_hosts():
    plain = layer_of(only(*FLAT, "parallel.tp=2", "parallel.pp=2", "parallel.micro_batch=2")).spec
    assert (plain.batch, plain.model.layers, plain.parallel.pp) == (2, 1, 1)
    assert (plain.parallel.tp, plain.parallel.micro_batch) == (2, 2)
    experts = layer_of(
        only(
            *FLAT, "model.experts=8", "model.top_k=2", "model.moe_ffn=1024",
            "model.dense_layers=1", "parallel.ep=8", "parallel.tp=1", "parallel.pp=1",
            "parallel.dispatcher=alltoall", "parallel.expert_overlap=false",
            "parallel.micro_batch=2",
        )
    ).spec  # fmt: skip
    # Eight ranks divide the experts, each with a copy of all else and a micro-batch of two.
    assert bounding.fewest_ranks(experts) == 8
    assert experts.batch == 8 * 2
    assert experts.model.dense_layers == 0
    assert blocks_of(experts.model)[0].has_experts


def test_what_is_measured_of_a_layer_is_a_job_on_whole_hosts(monkeypatch):
    built = []

    def build_cluster_(topology: Any, *, hosts: int, ranks_per_host: int) -> Any:
        built.append((hosts, ranks_per_host))
        return build_cluster(topology, hosts=hosts, ranks_per_host=ranks_per_host)

    monkeypatch.setattr(bounding, "build_cluster", build_cluster_)
    one = layer_of(only(*FLAT, "parallel.tp=2", "parallel.pp=2", "parallel.micro_batch=2"))
    sizes = ((2, 1), (1, 1), (2, 2), (1, 2))
    two_layers_ns, once_ns, _, twice_ns = bounding.replay_layers((CLUSTER, STACK), one, sizes)
    assert built == [(1, 2)]
    assert once_ns < two_layers_ns < 2 * once_ns
    assert once_ns < twice_ns <= 2 * once_ns
    # Written with others, a job is the same as alone.
    alone = [bounding.replay_layers((CLUSTER, STACK), one, [size])[0] for size in sizes]
    assert alone == bounding.replay_layers((CLUSTER, STACK), one, sizes)
    parallel = one.spec.parallel.model_copy(update={"tp": 16})
    wide = Layer(one.spec.model_copy(update={"parallel": parallel}))
    bounding.replay_layers((CLUSTER, STACK), wide, [(1, 1)])
    assert built[-1] == (2, 8)
