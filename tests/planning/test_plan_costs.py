"""What a plan's parts cost, by hand from prices that are stated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives import Collective, CollectiveKind, price_collective
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.costs.embedding_terms import Term, TermsSetting, tables_terms
from perfmodel.graph.ops import Pass
from perfmodel.prediction.plans import plan_costs
from perfmodel.prediction.plans.plan_costs import ExchangePricer, PlanPricer
from tests.planning.settings import STACK, build_spec
from topologies import build_cluster, load_topology

TABLE = EmbeddingTable("t", rows=10, width=16, pooling_factor=3.0)


def pricer(total_width: int = 20) -> PlanPricer:
    """On four ranks: exchanges cost the root of their bytes, lookups the sum of their terms."""
    made: Any = PlanPricer(
        build_spec(2, batch=64), build_cluster(load_topology("quad_a100")), STACK
    )
    made._samples, made._kernel, made._lookup_ratio = 100, "any", 2.0
    embedding = SimpleNamespace(total_width=total_width, exchange_dtype=DType.FP16, optimizer="sgd")
    made._spec = SimpleNamespace(embedding=embedding)
    device = SimpleNamespace(l2_bytes=2**20, memory_bandwidth_bytes_per_s=1e9)
    made._cluster = SimpleNamespace(rank_count=4, device=device)
    made.exchange = SimpleNamespace(
        times_ns=lambda sent: 5.0 + np.sqrt(sent), reduction_ns_per_byte=0.5
    )

    def times(terms: Any, direction: Pass, kernel: str, *further: Any) -> Any:
        longest = terms[:, Term.TAIL_ROWS] * 10.0
        total = terms.sum(axis=1) - terms[:, Term.TAIL_ROWS] + longest
        return total * (1.0 if direction is Pass.FORWARD else 3.0), None

    made._lookups = SimpleNamespace(times=times)
    found: PlanPricer = made
    return found


def test_a_number_of_width_costs_its_share_of_both_exchanges():
    # 5 of the 20 on a rank, of two bytes for 100 samples: 2 x sqrt(1000) / 5.
    assert pricer().width_ns == pytest.approx(2 * 1000**0.5 / 5)
    # A rank exchanges one number at least.
    assert pricer(total_width=1).width_ns == pytest.approx(2 * 200**0.5)


def test_a_copied_table_is_looked_up_and_its_gradient_moved_and_reduced():
    (local,) = tables_terms([TABLE], TermsSetting(100, "sgd", 2**20))
    lookup_ns = local.sum() + 9.0 * local[Term.TAIL_ROWS]
    # 640 bytes eight times, and 100 x 3 x 16 numbers of four bytes three times, at a byte a ns;
    # half a nanosecond for each of the 640 bytes that are reduced.
    assert pricer().copied_ns([TABLE]) == pytest.approx([lookup_ns + 5_120 + 57_600 + 320])


def test_pieces_alone_cost_what_they_add_to_the_rows_of_a_kernel():
    terms = np.zeros((2, len(Term)), dtype=np.int64)
    terms[0, Term.ROWS], terms[0, Term.DRAWS], terms[0, Term.TAIL_ROWS] = 4, 20, 3
    terms[1, Term.ROWS], terms[1, Term.DRAWS] = 6, 50
    alone = pricer().alone(terms)
    # Twice what is stated: 20 and 50 for draws, ten times three for the tail, rows aside.
    assert alone.lookup_ns.tolist() == [40.0, 100.0]
    assert alone.tail_ns.tolist() == [60.0, 0.0]
    assert alone.update_ns.tolist() == [300.0, 300.0]
    assert alone.total_ns.tolist() == [400.0, 400.0]


def test_a_further_byte_of_a_large_reduction_is_priced_by_the_difference(monkeypatch):
    def price_sizes(kind: Any, sizes: Any, **given: Any) -> Any:
        return [SimpleNamespace(duration_ns=100.0 + 0.25 * size) for size in sizes]

    monkeypatch.setattr(plan_costs, "price_sizes", price_sizes)
    cluster = build_cluster(load_topology("quad_a100"))
    assert ExchangePricer(cluster, time_ratio=2.0).reduction_ns_per_byte == pytest.approx(0.5)
    assert ExchangePricer(cluster).reduction_ns_per_byte == pytest.approx(0.25)


@pytest.mark.parametrize(("topology", "hosts"), [("dgx_h100", 1), ("dgx_h100", 2), ("polaris", 3)])
def test_exchanges_of_plans_end_as_those_of_their_byte_matrix(topology, hosts):
    cluster = build_cluster(load_topology(topology), hosts=hosts)
    count = cluster.rank_count
    each = np.random.default_rng(0).integers(0, 4, (6, count)) << 20
    each[0] = 0
    each[1, 1:] = 0
    times_ns = ExchangePricer(cluster).times_ns(each)
    for sent, found_ns in zip(each, times_ns, strict=True):
        matrix = sent[:, np.newaxis] * ~np.eye(count, dtype=bool)
        for way in (matrix, matrix.T):
            rows = tuple(tuple(row) for row in way.tolist())
            call = Collective(CollectiveKind.ALL_TO_ALL, int(way.sum()), byte_matrix=rows)
            cost = price_collective(call, cluster=cluster, ranks=range(count))
            assert cost.per_rank_ns is not None
            assert found_ns.tolist() == cost.per_rank_ns.tolist()
