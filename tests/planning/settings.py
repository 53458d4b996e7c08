"""Small recommendation models to plan for."""

from __future__ import annotations

import random

from embeddings.plan import Shard, ShardingPlan
from embeddings.sharders import ShardingTask
from embeddings.sharding_task import cut_table
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.plans.default_plan import build_task
from perfmodel.prediction.plans.evaluator import PlanEvaluator, PlanMeasures
from perfmodel.prediction.plans.placements import Int32s, PlanColumns
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question
from perfmodel.prediction.scenario import Interference
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.jobs import apply_stack_defaults
from topologies import build_cluster, load_topology

STACK = load_stack("pytorch_eager")


def build_spec(table_count: int, *, batch: int, seed: int = 0, **embedding) -> DlrmSpec:
    """A model with a small dense part, so that tables matter."""
    chance = random.Random(seed)
    spec = DlrmSpec.model_validate(
        {
            "family": "dlrm",
            "name": "small",
            "description": "for tests",
            "source": "made up",
            "stack": "pytorch_eager",
            "batch": batch,
            "dense": {
                "features": 64,
                "bottom_mlp": [64, 32],
                "top_mlp": [64, 1],
                "interaction": "concat",
            },
            "embedding": {
                "rows": [int(10 ** chance.uniform(2, 6)) for _ in range(table_count)],
                "width": [chance.choice([32, 64, 128, 256]) for _ in range(table_count)],
                "pooling_factors": [round(chance.uniform(1, 60), 2) for _ in range(table_count)],
                "zipf_exponents": [chance.choice([0.0, 0.8, 1.1]) for _ in range(table_count)],
                **embedding,
            },
        }
    )
    return apply_stack_defaults(spec, STACK)


def plan_setting(
    tables: int,
    topology: str = "quad_a100",
    hosts: int = 1,
    ranks_per_host: int | None = None,
    *,
    batch: int = 16384,
    **embedding,
) -> tuple[PlanEvaluator, ShardingTask]:
    """The evaluator of a small model on a machine, and the task of placing its tables."""
    spec = build_spec(tables, batch=batch, **embedding)
    cluster = build_cluster(load_topology(topology), hosts=hosts, ranks_per_host=ranks_per_host)
    task = build_task(spec, spec.embedding.tables(), cluster)
    return PlanEvaluator(spec, cluster, STACK), task


def random_plan(task: ShardingTask, chance: random.Random) -> ShardingPlan:
    """Tables whole, by columns, by rows over two or all ranks, by both, and on every rank."""
    shards: list[Shard] = []
    copied = []
    for place, table in enumerate(task.tables):
        way = chance.random()
        if way < 0.1 and table.rows < 10_000 and place:
            copied.append(place)
        elif way < 0.3 and table.width >= 64:
            half = table.width // 2
            shards += [
                Shard(place, chance.randrange(task.rank_count), 0, table.rows, column, half)
                for column in (0, half)
            ]
        elif way < 0.4:
            middle = table.rows // 3
            shards += [
                Shard(place, chance.randrange(task.rank_count), first, rows, 0, table.width)
                for first, rows in ((0, middle), (middle, table.rows - middle))
            ]
        elif way < 0.55:
            pieces = cut_table(place, table, columns=1, rows=min(task.rank_count, table.rows))
            shards += [piece.on_rank(rank) for rank, piece in enumerate(pieces)]
        elif way < 0.62 and table.width >= 64:
            pieces = cut_table(place, table, columns=2, rows=2)
            shards += [piece.on_rank(chance.randrange(task.rank_count)) for piece in pieces]
        else:
            rank = chance.randrange(task.rank_count)
            shards.append(Shard(place, rank, 0, table.rows, 0, table.width))
    return ShardingPlan(
        task.tables, task.rank_count, tuple(sorted(shards)), tuple(copied), "random"
    )


def predict_plan(spec, cluster, plan) -> Prediction:
    """The full answer, interference aside, as plans are judged."""
    asked = PredictOptions(interference=Interference.LEFT_OUT, samples=0, is_explained=False)
    question = build_question(Setting(spec, cluster, STACK, asked, plan=plan))
    return predict(question, executor=SerialExecutor())


def measure_assignments(
    evaluator: PlanEvaluator, task: ShardingTask, ranks: Int32s
) -> PlanMeasures:
    """Times and memory of plans of whole tables, *ranks* being plans x tables."""
    like = task.whole([int(rank) for rank in ranks[0]], "assignment")
    pieces = evaluator.catalog.columns_of(like).piece
    columns = [PlanColumns(pieces, of_plan) for of_plan in ranks]
    return evaluator.measure_columns(columns, lambda _: like)
