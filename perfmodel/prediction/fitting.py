"""Fitting: what a scenario needs in memory, found without building or pricing its job."""

from __future__ import annotations

from perfmodel.prediction.answer import MemoryFit, RankClass, TimeParts
from perfmodel.prediction.placing import PlacementFiles, place_workload
from perfmodel.prediction.scenario import Scenario
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.jobs import memory_by_rank
from topologies import build_cluster, load_topology


def find_memory(scenario: Scenario) -> MemoryFit:
    """The ranks that need most, the first of equals, beside what a GPU has."""
    cluster = build_cluster(
        load_topology(scenario.topology, calibrations=scenario.calibration),
        hosts=scenario.hosts,
        ranks_per_host=scenario.ranks_per_host,
    )
    files = PlacementFiles(scenario.tables, scenario.indices, scenario.plan)
    placed = place_workload(load_workload(scenario.workload, scenario.overrides), files, cluster)
    of_rank = memory_by_rank(
        placed.workload,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        plan=placed.plan,
        stack=load_stack(scenario.stack or placed.workload.stack),
    )
    peak_bytes = max(memory.total_bytes for memory in of_rank)
    fullest = [rank for rank, one in enumerate(of_rank) if one.total_bytes == peak_bytes]
    entry = RankClass(tuple(fullest), TimeParts({}), of_rank[fullest[0]])
    return MemoryFit(entry, cluster.device.memory_bytes)
