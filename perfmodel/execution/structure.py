"""Structure: what of a job must travel to those who replay a part of it.

Ops, labels and the names of groups stay at home: nobody out there prices or
shows anything.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.graph.job import Group, JobFacts, JobGraph

NAMELESS = Group("", ())


def strip_job(job: JobGraph) -> JobGraph:
    """*job* with nothing but its structure."""
    no_labels = np.empty(0, dtype=np.int32)
    return JobGraph(
        ops=(),
        labels=(),
        programs=tuple(replace(program, label=no_labels) for program in job.programs),
        rank_program=job.rank_program,
        groups=(NAMELESS,) * len(job.groups),
        rank_group=job.rank_group,
        facts=JobFacts(job.facts.name),
    )
