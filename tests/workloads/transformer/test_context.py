"""Ranks that share a sequence, counted on paper."""

from __future__ import annotations

import math

import pytest

from collectives.collective import CollectiveKind
from perfmodel.base.errors import WorkloadError
from perfmodel.costs.pricing import price_job
from perfmodel.execution.executor import SerialExecutor
from perfmodel.graph.audit import check_job
from perfmodel.graph.ops import Attention
from perfmodel.workloads import build_job
from perfmodel.workloads.transformer.layout_choice import choose_layout
from perfmodel.workloads.transformer.memory import layer_activation_bytes
from perfmodel.workloads.transformer.run import TransformerRun
from tests.workloads.reading import (
    STACK,
    bytes_of,
    collectives_of,
    job_of,
    memory_of,
    ops_of,
    tiny,
)
from topologies import build_cluster, load_topology

# Keys and values of a micro-batch of 2 x 16 tokens: 2 heads of 2 numbers each, 2 bytes a number.
KV = 2 * 16 * 2 * (2 + 2) * 2 // 2


def iteration_ns(spec, ranks):
    of_host = math.gcd(ranks, 8)
    topology = load_topology("dgx_h100")
    cluster = build_cluster(topology, hosts=ranks // of_host, ranks_per_host=of_host)
    job = build_job(spec, rank_count=ranks, ranks_per_host=of_host, stack=STACK)
    check_job(job)
    priced = price_job(job, cluster=cluster, stack=STACK)
    return int(SerialExecutor().replay(priced.job, priced.durations, 1).iteration_end_ns.max())


@pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
def test_a_sequence_of_one_rank_takes_the_nanoseconds_of_the_job_without_the_word(kind):
    alone = tiny(parallel={"cp": 1, "cp_kind": kind})

    assert iteration_ns(alone, 2) == iteration_ns(tiny(), 2)


@pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2}, {"sharding": "zero3"}])
def test_shared_sequences_replay_with_every_other_split(kind, split):
    spec = tiny(parallel={"cp": 2, "cp_kind": kind, **split}, batch=8)

    assert iteration_ns(spec, 8) > 0


def test_a_ring_counts_every_pair_of_tokens_once():
    spec = tiny(parallel={"cp": 4, "micro_batch": 1}, layers=1)
    job = job_of(spec, ranks=4)
    forward = [op for name, op in ops_of(job, Attention, "core forward")]

    # 16 tokens on 4 ranks: 4 each, in mirrored chunks of 2. Its own keys: 4 x 4 / 2 pairs; of
    # every other rank 4 queries see 2 keys or 2 see 4. In all 4 x 16 / 2, a quarter of 16 x 16 / 2.
    first, *others = forward[:4]
    assert first.is_causal
    assert (first.query_length, first.key_length) == (4, 4)
    assert [(op.query_length, op.key_length, op.is_causal) for op in others] == [(4, 2, False)] * 3
    assert 4 * 4 // 2 + 3 * 4 * 2 == 16 * 16 // 2 // 4


def test_a_ring_passes_keys_on_once_less_than_there_are_ranks_and_gradients_all_the_way_home():
    spec = tiny(parallel={"cp": 2, "dp": 1}, layers=1, batch=2)
    job = job_of(spec, ranks=2)

    sent = collectives_of(
        job, CollectiveKind.SEND_RECV, "layer 0/attention/core forward keys and values send"
    )
    assert [call.size_bytes for call in sent] == [KV]
    gradients = "layer 0/attention/core backward key and value gradients receive"
    home = collectives_of(job, CollectiveKind.SEND_RECV, gradients)
    assert [call.size_bytes for call in home] == [KV, KV]


def test_gathered_keys_are_those_of_all_ranks_and_their_gradients_are_scattered():
    spec = tiny(parallel={"cp": 2, "cp_kind": "all_gather", "dp": 1}, layers=1, batch=2)
    job = job_of(spec, ranks=2)

    kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    assert bytes_of(job, kinds[0], "layer 0/attention/core forward") == 2 * KV
    assert bytes_of(job, kinds[1], "layer 0/attention/core backward") == 2 * KV


def test_twice_the_ranks_halve_the_activations_of_a_layer():
    sizes = {}
    for cp in (1, 2, 4):
        spec = tiny(parallel={"cp": cp, "dp": 1})
        layout = choose_layout(spec, rank_count=cp, ranks_per_host=8, stack=STACK).layout
        sizes[cp] = layer_activation_bytes(TransformerRun(tiny(), layout, STACK))

    assert sizes[1] == 2 * sizes[2] == 4 * sizes[4]
    assert memory_of(tiny(parallel={"cp": 2}), rank_count=2, ranks_per_host=2)


def test_gradients_are_reduced_over_ranks_that_share_a_sequence_too():
    job = job_of(tiny(parallel={"cp": 2}, batch=8), ranks=4)

    assert {len(group.ranks) for group in job.groups if group.name.startswith("data")} == {4}


def test_a_sequence_that_does_not_divide_is_refused_with_the_numbers():
    spec = tiny(parallel={"cp": 3})

    with pytest.raises(WorkloadError, match=r"sequence_length \(16\) is not divisible by .* = 6"):
        build_job(spec, rank_count=3, ranks_per_host=8, stack=STACK)


def test_unfused_attention_cannot_share_a_sequence():
    spec = tiny(parallel={"cp": 2}, training={"attention": "unfused"})

    with pytest.raises(WorkloadError, match="cp=2 needs a fused attention kernel"):
        build_job(spec, rank_count=2, ranks_per_host=8, stack=STACK)


def test_an_exchange_of_heads_moves_queries_keys_values_and_outputs():
    spec = tiny(parallel={"cp": 2, "cp_kind": "all_to_all"}, layers=1, batch=2)
    job = job_of(spec, ranks=2)
    label = "layer 0/attention/core forward"
    # 16 tokens of a rank: 4 heads of queries, 2 of keys and 2 of values, of 2 numbers of 2 bytes.
    sent = [call.size_bytes for call in collectives_of(job, CollectiveKind.ALL_TO_ALL, label)]
    assert sent == [16 * (4 + 2 + 2) * 2 * 2, 16 * 4 * 2 * 2]
    op = ops_of(job, Attention, "core forward")[0][1]
    # All 16 tokens of a sequence, half of the heads.
    assert (op.query_length, op.key_length, op.heads, op.kv_heads) == (16, 16, 2, 1)
    assert op.is_causal


def test_heads_must_divide_by_the_ranks_that_exchange_them():
    spec = tiny(parallel={"cp": 8, "cp_kind": "all_to_all"}, batch=8)
    with pytest.raises(WorkloadError, match=r"heads \(4\) are not divisible by tp x cp = 1 x 8"):
        job_of(spec, ranks=8)
