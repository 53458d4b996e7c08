"""Tasks of tables with unlike skew, and worlds in which they run: both drawn by seed.

A world is what a chooser does not know: another lookup kernel, other rates of kernels and links, a
smaller or larger L2 cache, indices that are more or less skewed than stated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from embeddings.distribution import UNIFORM, Zipf
from embeddings.table import EmbeddingTable, spread_hot_rows
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster, build_cluster, load_topology

MACHINES = ("quad_a100", "dgx_a100", "dgx_h100", "l40s_pcie", "dgx1_v100", "dgx_b200")
KERNELS = ("fbgemm", "two_step", "fbgemm_2022")
LEFT_OUT = 2
"""Tasks with this remainder by three are left out of every fit."""
RATES = {"embedding": 0.25, "communication": 0.25, "gemm": 0.1, "memory": 0.1}
"""Spread of the logarithm of how long kernels take in a world."""
SKEW = 0.15
"""Spread of Zipf exponents around the stated ones."""


@dataclass(frozen=True, slots=True)
class Task:
    """Tables for one machine."""

    number: int
    machine: str
    cluster: Cluster
    tables: tuple[EmbeddingTable, ...]
    spec: DlrmSpec

    @property
    def is_left_out(self) -> bool:
        """Whether nothing is fitted to it."""
        return self.number % 3 == LEFT_OUT


@dataclass(frozen=True, slots=True)
class World:
    """The machine, software and indices of a task as they are."""

    cluster: Cluster
    stack: SoftwareStack
    tables: tuple[EmbeddingTable, ...]


def draw_tasks(count: int) -> Iterator[Task]:
    """The first *count* tasks, the same in every run."""
    for number in range(count):
        chance = random.Random(number)
        machine = MACHINES[number % len(MACHINES)]
        cluster = build_cluster(load_topology(machine))
        tables = _draw_tables(chance, chance.randint(24, 60), cluster)
        batch = cluster.rank_count * chance.choice((1024, 4096, 8192))
        yield Task(number, machine, cluster, tables, build_model(tables, batch))


def _draw_tables(chance: random.Random, count: int, cluster: Cluster) -> tuple[EmbeddingTable, ...]:
    most = 0.25 * cluster.device.memory_bytes / (4 * 128)
    tables = []
    for place in range(count):
        rows = round(10 ** chance.uniform(3, math.log10(min(most, 2e7))))
        exponent = round(chance.choice((0.0, chance.uniform(0.4, 1.4))), 2)
        tables.append(
            EmbeddingTable(
                f"t{place}",
                rows,
                chance.choice((32, 64, 128)),
                float(round(min(math.exp(chance.gauss(1.5, 1.2)) + 1, 100))),
                distribution=Zipf(exponent) if exponent else UNIFORM,
            )
        )
    return spread_hot_rows(tables)


def build_model(tables: tuple[EmbeddingTable, ...], batch: int) -> DlrmSpec:
    """A recommendation model around *tables*."""
    return DlrmSpec.model_validate(
        {
            "name": "drawn",
            "family": "dlrm",
            "description": "tables with skews of their own",
            "source": "drawn by seed",
            "batch": batch,
            "dense": {
                "features": 256,
                "bottom_mlp": (512, 128),
                "top_mlp": (512, 256, 1),
                "interaction": "concat",
            },
            "embedding": {
                "rows": tuple(table.rows for table in tables),
                "width": tuple(table.width for table in tables),
                "pooling_factors": tuple(table.pooling_factor for table in tables),
                "optimizer": "rowwise_adagrad",
            },
        }
    )


def draw_world(task: Task, number: int) -> World:
    """World *number* of *task*."""
    chance = random.Random(f"world {number} of {task.number}")
    stack = load_stack("torchrec")
    ratios = {
        name: {"default": math.exp(chance.gauss(0, spread))} for name, spread in RATES.items()
    }
    tables = replace(stack.tables, sorted_kernel=chance.choice(KERNELS))
    device = task.cluster.device
    device = replace(device, l2_bytes=round(device.l2_bytes * chance.choice((0.5, 1, 2))))
    topology = replace(task.cluster.topology, device=device)
    skewed = [replace(table, distribution=_other_skew(table, chance)) for table in task.tables]
    return World(
        replace(task.cluster, topology=topology),
        replace(stack, kernel_time_ratio=ratios, tables=tables),
        spread_hot_rows(skewed),
    )


def _other_skew(table: EmbeddingTable, chance: random.Random) -> Zipf | object:
    stated = table.distribution
    if not isinstance(stated, Zipf):
        return stated
    return replace(stated, exponent=max(stated.exponent + chance.gauss(0, SKEW), 0.05))
