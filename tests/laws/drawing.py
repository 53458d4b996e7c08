"""Random scenarios of both families on all shipped machines, small and quick to answer.

A case is plain values, so that a law can change one of them: a workload document, a machine
document with the document of its GPU, and the cluster around them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from perfmodel.prediction.scenario import Scenario
from topologies import list_topologies
from topologies.recognising import CATALOG

DEVICES = CATALOG.parent / "devices"
Document = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A workload on a machine, as documents that can be written to files."""

    workload: Document
    machine: Document
    device: Document
    hosts: int
    ranks_per_host: int | None
    stack: str | None
    tables: list[Document] = field(default_factory=list)
    table_ranks: tuple[int, ...] = ()
    """The rank of every table where the plan is stated."""

    @property
    def is_recommendation(self) -> bool:
        """Whether the case is a recommendation model."""
        return bool(self.workload["family"] == "dlrm")

    @property
    def rank_count(self) -> int:
        """Ranks on all hosts."""
        gpus = self.machine["vertices"]["gpu"]
        gpus = gpus if isinstance(gpus, int) else gpus["count"]
        return self.hosts * (self.ranks_per_host or gpus)

    def with_workload(self, path: str, value: Any) -> Case:
        """The case with another value at *path*, keys joined by dots, of its workload."""
        return replace(self, workload=changed(self.workload, path, value))

    def scenario(self, folder: Path) -> Scenario:
        """Write the documents below *folder* and name them in a scenario."""
        device = write(folder, self.device)
        machine = write(folder, {**self.machine, "device": str(device)})
        return Scenario(
            topology=str(machine),
            workload=str(write(folder, self.workload)),
            hosts=self.hosts,
            ranks_per_host=self.ranks_per_host,
            stack=self.stack,
            tables=str(write(folder, {"tables": self.tables})) if self.tables else None,
            plan=str(self._write_plan(folder)) if self.table_ranks else None,
            samples=0,
        )

    def _write_plan(self, folder: Path) -> Path:
        """Every table whole on its rank, in the words of TorchRec."""
        plan = {
            "embedding_bag_collection": {
                table["name"]: {
                    "sharding_type": "table_wise",
                    "sharding_spec": {
                        "shards": [
                            {
                                "shard_offsets": [0, 0],
                                "shard_sizes": [table["rows"], table["width"]],
                                "placement": f"rank:{rank}",
                            }
                        ]
                    },
                }
                for table, rank in zip(self.tables, self.table_ranks, strict=True)
            }
        }
        path = write(folder, plan).with_suffix(".json")
        path.write_text(json.dumps(plan))
        return path

    def __str__(self) -> str:
        shape = {
            key: self.workload[key] for key in ("batch", "sequence_length") if key in self.workload
        }
        words = " ".join(f"{key}={value}" for key, value in shape.items())
        return (
            f"{self.workload['name']} {words} on {self.hosts} x {self.machine['name']} "
            f"({self.ranks_per_host or 'all'} ranks), stack {self.stack}, {len(self.tables)} tables"
        )


def changed(document: Document, path: str, value: Any) -> Document:
    """A copy of *document* with *value* at *path*."""
    made = copy.deepcopy(document)
    *folders, last = path.split(".")
    place = made
    for name in folders:
        place = place.setdefault(name, {})
    place[last] = value
    return made


def write(folder: Path, document: Document) -> Path:
    """A file with *document*, named by its content."""
    text = yaml.safe_dump(document, sort_keys=False)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    if not path.exists():
        path.write_text(text)
    return path


def load(path: Path) -> Document:
    """The document at *path*."""
    found: Document = yaml.safe_load(path.read_text())
    return found


def draw_case(chooser: random.Random) -> Case:
    """A scenario that a user might ask."""
    machine = load(CATALOG / f"{chooser.choice(list_topologies())}.yaml")
    device = load(DEVICES / f"{machine['device']}.yaml")
    gpus = machine["vertices"]["gpu"]
    gpus = gpus if isinstance(gpus, int) else gpus["count"]
    hosts = chooser.choice((1, 1, 2, 4)) if machine.get("fabric") and gpus <= 16 else 1
    ranks = chooser.choice((None, min(gpus, 8))) if gpus <= 8 else chooser.choice((4, 8))
    rank_count = hosts * (ranks or gpus)
    draw = _draw_dlrm if chooser.random() < 0.5 else _draw_transformer
    workload, stack, tables = draw(chooser, rank_count)
    return Case(workload, machine, device, hosts, ranks, stack, tables)


def _draw_dlrm(
    chooser: random.Random, rank_count: int
) -> tuple[Document, str | None, list[Document]]:
    width = chooser.choice((16, 32, 64, 128))
    tables = [
        {
            "name": f"t{number}",
            "rows": int(10 ** chooser.uniform(2, 6.3)),
            "width": width,
            "pooling_factor": chooser.choice((1, 1, 4, 20, 80)),
            "distribution": chooser.choice(("uniform", {"zipf": 0.7}, {"zipf": 1.05})),
        }
        for number in range(chooser.randint(2, 24))
    ]
    workload = {
        "name": "drawn",
        "family": "dlrm",
        "description": "drawn at random",
        "batch": rank_count * chooser.choice((64, 256, 1024, 2048)),
        "dense": {
            "features": chooser.choice((13, 256)),
            "bottom_mlp": [chooser.choice((128, 512)), width],
            "top_mlp": [chooser.choice((256, 1024)), 256, 1],
            "interaction": chooser.choice(("dot", "concat")),
        },
        "embedding": {"rows": [1000], "width": width, "pooling_factors": 1},
    }
    stack = chooser.choice((None, "pytorch_fused", "torchrec", "pytorch_eager"))
    return workload, stack, tables


def _draw_transformer(
    chooser: random.Random, rank_count: int
) -> tuple[Document, str | None, list[Document]]:
    heads = chooser.choice((8, 16, 32))
    hidden = heads * chooser.choice((64, 128))
    tp = chooser.choice([one for one in (1, 1, 2, 4) if rank_count % one == 0])
    data_parallel = rank_count // tp
    micro_batch = chooser.choice((1, 2, 4, 12))
    workload = {
        "name": "drawn",
        "family": "transformer",
        "description": "drawn at random",
        "batch": data_parallel * micro_batch * chooser.choice((1, 2, 4)),
        "sequence_length": chooser.choice((512, 1024, 2048, 4096)),
        "model": {
            "layers": chooser.choice((2, 4, 8)),
            "hidden": hidden,
            "heads": heads,
            "ffn": 4 * hidden,
            "vocab": 32000,
            "max_positions": 16384,
        },
        "parallel": {"tp": tp, "pp": 1, "micro_batch": micro_batch},
        "training": {"precision": "bf16", "optimizer": "adamw"},
    }
    stack = chooser.choice((None, "pytorch_fused", "megatron", "torch_compile"))
    return workload, stack, []
