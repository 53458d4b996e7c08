"""What a plan's parts cost, by hand from prices of exchanges and lookups."""

from __future__ import annotations

import numpy as np
import pytest

from collectives import Collective, CollectiveKind, price_collective
from embeddings.table import EmbeddingTable
from perfmodel.costs.embedding import LookupPricer
from perfmodel.costs.embedding_terms import Term, TermsSetting, tables_terms
from perfmodel.graph.ops import Pass
from perfmodel.prediction.plans.plan_costs import ExchangePricer, PlanPricer
from perfmodel.workloads.dlrm.run import DlrmRun
from tests.planning.settings import STACK, build_spec
from topologies import build_cluster, load_topology

TABLE = EmbeddingTable("t", rows=10, width=16, pooling_factor=3.0)


CLUSTER = build_cluster(load_topology("quad_a100"))


def pricer(batch: int = 64) -> PlanPricer:
    """Of two tables on four ranks."""
    return PlanPricer(
        DlrmRun(build_spec(2, batch=batch, width=[32, 64]), CLUSTER.rank_count, STACK), CLUSTER
    )


def test_a_number_of_width_costs_its_share_of_both_exchanges():
    made = pricer(batch=2**16)
    # 24 of the 96 on a rank, of four bytes for 2 ** 14 samples, there and back.
    sent = np.array([[0] * 4, [24 * 4 * 2**14] * 4])
    nothing_ns, something_ns = made.exchange.times_ns(sent).max(axis=1)
    assert made.width_ns == pytest.approx(2 * (something_ns - nothing_ns) / 24)


def test_a_copied_table_is_looked_up_and_its_gradient_moved_and_reduced():
    made, device = pricer(batch=400), CLUSTER.device
    local = tables_terms([TABLE], TermsSetting(100, "sgd", device.l2_bytes))
    lookup_ns, _ = LookupPricer(device).times(local, Pass.FORWARD, STACK.tables.kernel_for("sgd"))
    # 640 bytes eight times, and 100 x 3 x 16 numbers of four bytes three times.
    moved_ns = (5_120 + 57_600) / device.memory_bandwidth_bytes_per_s * 1e9
    reduced_ns = 640 * made.exchange.reduction_ns_per_byte
    assert made.copied_ns([TABLE]) == pytest.approx(lookup_ns + moved_ns + reduced_ns)


def test_pieces_alone_cost_what_they_add_to_the_rows_of_a_kernel():
    made = pricer()
    terms = np.zeros((3, len(Term)), dtype=np.int64)
    terms[:, Term.ROWS] = 400
    terms[1:, Term.READ_BYTES], terms[2, Term.TAIL_ROWS] = 200_000_000, 400_000
    alone = made.alone(terms)
    rows, smooth, whole = made.pass_ns(terms, Pass.FORWARD)
    assert rows < smooth < whole
    assert alone.lookup_ns == pytest.approx([0.0, smooth - rows, smooth - rows])
    assert alone.tail_ns == pytest.approx([0.0, 0.0, whole - smooth])
    update_ns = made.pass_ns(terms, Pass.BACKWARD)
    assert alone.update_ns == pytest.approx(update_ns - update_ns[0])
    assert alone.total_ns == pytest.approx(alone.lookup_ns + alone.tail_ns + alone.update_ns)


def test_a_further_byte_of_a_large_reduction_is_priced_by_the_difference():
    once, twice = (
        price_collective(
            Collective(CollectiveKind.ALL_REDUCE, size), cluster=CLUSTER, ranks=range(4)
        ).duration_ns
        for size in (2**24, 2**26)
    )
    found = ExchangePricer(CLUSTER).reduction_ns_per_byte
    assert found == pytest.approx((twice - once) / (3 * 2**24))
    assert ExchangePricer(CLUSTER, time_ratio=2.0).reduction_ns_per_byte == pytest.approx(2 * found)


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
