"""ReplayPlanner: plans for TorchRec that are fastest by replay, in place of its own planner.

It takes a module with embedding collections and constraints as `EmbeddingShardingPlanner` does, and
gives back TorchRec's `ShardingPlan`. torch and torchrec are imported only where their types are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from embeddings.plan import ShardingPlan
from embeddings.plan_document import MODULE, to_plan_document
from perfmodel.api.questions import rank
from perfmodel.base.errors import PlanError
from perfmodel.planning.question import RankQuestion

_COLLECTIONS = {"embedding_bag_configs": True, "embedding_configs": False}
"""What returns the tables of a collection, and whether they are pooled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlanner:
    """A planner for *batch* samples over all GPUs of *hosts* of *topology*.

    The dense part is that of *workload*, changed by *overrides*. *constraints* are by table, each
    with `sharding_types` and `pooling_factors` as TorchRec's `ParameterConstraints` have them. A
    *search* judges so many thousand plans.
    """

    topology: str
    batch: int
    hosts: int = 1
    ranks_per_host: int | None = None
    workload: str = "dlrm_dcnv2"
    overrides: tuple[str, ...] = ()
    constraints: Mapping[str, Any] = field(default_factory=dict)
    search: float = 2.0

    def choose(self, tables: Sequence[Mapping[str, Any]]) -> ShardingPlan:
        """The fastest plan of *tables*, entries as a file of tables has them."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "tables.yaml"
            file.write_text(json.dumps({"tables": [self._entry(one) for one in tables]}))
            found = rank(
                RankQuestion(
                    topology=self.topology,
                    workload=self.workload,
                    overrides=(*self.overrides, f"batch={self.batch}"),
                    tables=str(file),
                    hosts=self.hosts,
                    ranks_per_host=self.ranks_per_host,
                    stack="torchrec",
                    sharders=("balanced",),
                    search=self.search,
                    samples=2,
                    runnable_by="torchrec",
                )
            )
        if not found.fits:
            raise PlanError(found.verdict)
        return found.plan_to_write

    def plan(self, module: Any, sharders: Sequence[Any] = ()) -> Any:
        """TorchRec's plan for the collections in *module*; *sharders* are its own."""
        del sharders
        # The script that plans has both packages; perfmodel needs neither.
        types = import_module("torchrec.distributed.types")
        build_shard = import_module("torch.distributed._shard.metadata").ShardMetadata
        held = {
            path: (getattr(one, name)(), is_pooled)
            for path, one in module.named_modules()
            for name, is_pooled in _COLLECTIONS.items()
            if hasattr(one, name)
        }
        entries = [_described(one, pooled) for some, pooled in held.values() for one in some]
        if not entries:
            raise PlanError("planner: the module has no embedding collection.")
        placed = to_plan_document(self.choose(entries))[MODULE]

        def sharding_of(table: str) -> Any:
            about = placed[table]
            spec = about["sharding_spec"]
            shards = [build_shard(**shard) for shard in spec["shards"]] if spec else []
            return types.ParameterSharding(
                sharding_type=about["sharding_type"],
                compute_kernel=about["compute_kernel"],
                ranks=about["ranks"],
                sharding_spec=types.EnumerableShardingSpec(shards) if spec else None,
            )

        of_module = types.EmbeddingModuleShardingPlan
        return types.ShardingPlan(
            {
                path: of_module({one.name: sharding_of(one.name) for one in some})
                for path, (some, _) in held.items()
            }
        )

    def collective_plan(self, module: Any, sharders: Sequence[Any] = (), pg: Any = None) -> Any:
        """The same; every rank finds the same plan, so nothing is sent."""
        del pg
        return self.plan(module, sharders)

    def _entry(self, table: Mapping[str, Any]) -> dict[str, Any]:
        limits = self.constraints.get(table["name"], {})
        stated = limits if isinstance(limits, Mapping) else vars(limits)
        pooling = stated.get("pooling_factors")
        found = {"sharding_types": stated.get("sharding_types"), **table}
        if pooling:
            found["pooling_factor"] = sum(pooling) / len(pooling)
        return {key: value for key, value in found.items() if value is not None}


def _described(config: Any, is_pooled: bool) -> dict[str, Any]:
    """A table of TorchRec as an entry of a file of tables."""
    return {
        "name": config.name,
        "rows": config.num_embeddings,
        "width": config.embedding_dim,
        "dtype": config.data_type.value.lower(),
        "feature_names": list(config.feature_names),
        "is_pooled": is_pooled,
    }
