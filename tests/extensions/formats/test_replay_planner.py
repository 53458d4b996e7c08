"""Plans for TorchRec, found by replay."""

from __future__ import annotations

import pytest

from embeddings.plan import ShardingKind
from embeddings.plan_document import list_unrunnable
from perfmodel.api import ReplayEstimator, ReplayPlanner
from perfmodel.base.errors import PlanError

TABLES = [
    {"name": "large", "rows": 2_000_000, "width": 128},
    {"name": "hot", "rows": 100_000, "width": 64},
    {"name": "small", "rows": 1_000, "width": 32, "feature_names": ["a", "b"]},
]


def test_a_plan_keeps_constraints_and_torchrec_can_run_it():
    planner = ReplayPlanner(
        topology="quad_a100",
        batch=4096,
        constraints={
            "large": {"sharding_types": ["row_wise"]},
            "hot": {"pooling_factors": [10.0, 30.0]},
        },
        search=0.1,
    )
    plan = planner.choose(TABLES)
    assert plan.rank_count == 4
    assert plan.kinds[0] is ShardingKind.ROW_WISE
    assert [table.pooling_factor for table in plan.tables] == [1.0, 20.0, 2.0]
    assert list_unrunnable(plan) == ()
    # It is the same on every rank, so nothing is sent.
    assert planner.choose(TABLES) == plan


def test_what_does_not_fit_is_refused():
    huge = [{"name": "huge", "rows": 10**11, "width": 128}]
    with pytest.raises(PlanError, match=r"huge|No plan fits"):
        ReplayPlanner(topology="quad_a100", batch=4096, search=0.0).choose(huge)


def test_torchrec_takes_the_plan():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torchrec = pytest.importorskip("torchrec", reason="torchrec (fbgemm-gpu-cpu) is not installed")
    config = torchrec.EmbeddingBagConfig
    module = torchrec.EmbeddingBagCollection(
        tables=[
            config(name="t", num_embeddings=1000, embedding_dim=64, feature_names=["a"]),
            config(name="u", num_embeddings=500, embedding_dim=64, feature_names=["b"]),
        ],
        device=torch.device("meta"),
    )
    planner = ReplayPlanner(topology="quad_a100", batch=4096, search=0.1)
    [(path, found)] = planner.collective_plan(module).plan.items()
    assert path == ""
    assert set(found) == {"t", "u"}
    for name, rows in (("t", 1000), ("u", 500)):
        spec = found[name].sharding_spec
        if spec is not None:
            numbers = sum(size[0] * size[1] for size in (one.shard_sizes for one in spec.shards))
            assert numbers == rows * 64


def test_torchrecs_own_planner_takes_the_prices():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torchrec = pytest.importorskip("torchrec", reason="torchrec (fbgemm-gpu-cpu) is not installed")
    planners = pytest.importorskip("torchrec.distributed.planner")
    enumerators = pytest.importorskip("torchrec.distributed.planner.enumerators")
    estimators = pytest.importorskip("torchrec.distributed.planner.shard_estimators")
    sharders = pytest.importorskip("torchrec.distributed.embeddingbag")
    reserved = pytest.importorskip("torchrec.distributed.planner.storage_reservations")
    module = torch.nn.Module()
    module.tables = torchrec.EmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"t{place}", num_embeddings=rows, embedding_dim=64, feature_names=[f"f{place}"]
            )
            for place, rows in enumerate((2_000_000, 1_000_000, 1000, 500))
        ],
        device=torch.device("meta"),
    )
    topology = planners.Topology(world_size=4, compute_device="cuda")
    prices = ReplayEstimator(ReplayPlanner(topology="quad_a100", batch=4096))
    enumerator = enumerators.EmbeddingEnumerator(
        topology,
        batch_size=1024,
        estimator=[prices, estimators.EmbeddingStorageEstimator(topology)],
    )
    planner = planners.EmbeddingShardingPlanner(
        topology=topology,
        batch_size=1024,
        enumerator=enumerator,
        storage_reservation=reserved.FixedPercentageStorageReservation(0.15),
        debug=False,
    )
    (found,) = planner.plan(module, [sharders.EmbeddingBagCollectionSharder()]).plan.values()
    assert set(found) == {"t0", "t1", "t2", "t3"}
