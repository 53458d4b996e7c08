"""Plans of TorchRec's own planner for the tasks: kinds and ranks by table, to torchrec_plans.json.

python experiments/plan_choice/torchrec_planner.py     # needs torchrec and fbgemm-gpu-cpu
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints

from experiments.figures import read_wishes
from experiments.plan_choice.tasks import Task, draw_tasks
from perfmodel.base.writing import write_file


def main() -> None:
    """Plan every task."""
    wishes = read_wishes(__file__, __doc__)
    plans = {str(task.number): plan(task) for task in draw_tasks(wishes.scenario()["tasks"])}
    write_file(Path(wishes.out / "torchrec_plans.json"), json.dumps(plans) + "\n")


def plan(task: Task) -> dict[str, Any]:
    """Kind and ranks of every table, and the processor time that it took."""
    ranks = task.cluster.rank_count
    configs = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.width,
            feature_names=[f"{table.name}_f"],
        )
        for table in task.tables
    ]
    planner = EmbeddingShardingPlanner(
        topology=Topology(
            world_size=ranks,
            local_world_size=ranks,
            compute_device="cuda",
            hbm_cap=task.cluster.device.memory_bytes,
        ),
        batch_size=task.spec.batch // ranks,
        constraints={
            table.name: ParameterConstraints(pooling_factors=[table.pooling_factor])
            for table in task.tables
        },
        debug=False,
    )
    module = torch.nn.Module()
    module.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    started = time.process_time()
    placed = planner.plan(module, [EmbeddingBagCollectionSharder()]).plan["tables"]
    return {
        "seconds": round(time.process_time() - started, 2),
        "tables": [
            [placed[table.name].sharding_type, list(placed[table.name].ranks)]
            for table in task.tables
        ],
    }


if __name__ == "__main__":
    main()
