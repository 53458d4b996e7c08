"""ReplayPlanner: plans for TorchRec that are fastest by replay, in place of its own planner.

It takes a module with embedding collections and constraints as `EmbeddingShardingPlanner` does, and
gives back TorchRec's `ShardingPlan`. ReplayEstimator prices shards for TorchRec's planner instead.
torch and torchrec are imported only where their types are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from embeddings.plan import Shard, ShardingPlan
from embeddings.plan_document import MODULE, to_plan_document
from perfmodel.api.questions import rank
from perfmodel.base.errors import PlanError
from perfmodel.base.units import NS_PER_MS
from perfmodel.planning.making import load_task
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
        with self.asked(tables) as question:
            found = rank(question)
        if not found.fits:
            raise PlanError(found.verdict)
        return found.plan_to_write

    @contextmanager
    def asked(self, tables: Sequence[Mapping[str, Any]]) -> Iterator[RankQuestion]:
        """The question about *tables*, while the file that it names is there."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "tables.yaml"
            file.write_text(json.dumps({"tables": [self._entry(one) for one in tables]}))
            yield RankQuestion(
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


@dataclass(frozen=True, slots=True)
class ReplayEstimator:
    """Prices shards for TorchRec's planner: give it to its enumerator beside a storage estimator.

    Lookups and updates of a shard are what it adds to the kernels of its rank, and exchanges what
    its width adds where all ranks send as much. Machine and batch are those of *planner*.
    """

    planner: ReplayPlanner

    def estimate(self, sharding_options: Sequence[Any], *_sharders: Any, **_named: Any) -> None:
        """Set `perf` of every shard of *sharding_options*; sharders are named by release."""
        build_perf = import_module("torchrec.distributed.planner.types").Perf
        place_of: dict[str, int] = {}
        entries: list[dict[str, Any]] = []
        for option in sharding_options:
            if option.name not in place_of:
                place_of[option.name] = len(entries)
                entries.append(_asked_table(option))
        with self.planner.asked(entries) as question:
            evaluator, task, _ = load_task(question)
        for option in sharding_options:
            table = task.tables[place_of[option.name]]
            if option.sharding_type == "data_parallel":
                moved_ms = float(evaluator.pricer.copied_ns([table])[0]) / NS_PER_MS
                for shard in option.shards:
                    shard.perf = build_perf(moved_ms / 2, 0.0, moved_ms / 2, 0.0)
                continue
            pieces = [
                Shard(place_of[option.name], 0, row, rows, column, width)
                for (row, column), (rows, width) in (
                    (shard.offset, shard.size) for shard in option.shards
                )
            ]
            costs = evaluator.pieces_alone(task.tables, pieces)
            for number, (shard, piece) in enumerate(zip(option.shards, pieces, strict=True)):
                sent_ms = evaluator.pricer.width_ns * piece.width * table.features / 2 / NS_PER_MS
                read_ns = costs.lookup_ns[number] + costs.tail_ns[number]
                shard.perf = build_perf(
                    float(read_ns) / NS_PER_MS,
                    sent_ms,
                    float(costs.update_ns[number]) / NS_PER_MS,
                    sent_ms,
                )


def _asked_table(option: Any) -> dict[str, Any]:
    """The table of a sharding option of TorchRec as an entry of a file of tables."""
    rows, width = option.tensor.shape
    return {
        "name": option.name,
        "rows": int(rows),
        "width": int(width),
        "feature_names": [str(number) for number in range(len(option.input_lengths))],
        "pooling_factor": sum(option.input_lengths),
    }


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
