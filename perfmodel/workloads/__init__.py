"""Workloads: a model's specification and its parallelism become a job graph."""
