"""Workloads: a model's specification and its parallelism become a job graph."""

from perfmodel.graph.job import MemoryPart, RankMemory
from perfmodel.workloads.catalog import (
    DEFAULT_WORKLOAD,
    WorkloadTitle,
    list_workloads,
    load_workload,
    parse_workload,
)
from perfmodel.workloads.fields import Workload
from perfmodel.workloads.jobs import build_job, build_workload

__all__ = [
    "DEFAULT_WORKLOAD",
    "MemoryPart",
    "RankMemory",
    "Workload",
    "WorkloadTitle",
    "build_job",
    "build_workload",
    "list_workloads",
    "load_workload",
    "parse_workload",
]
