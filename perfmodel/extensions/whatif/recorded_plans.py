"""Rates of a recording: how much longer the kernels of the plan that ran took than predicted.

Other plans of the same tables are then priced at those rates, so that two plans differ by the work
that each of them makes. Times of the host stay those of the stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from embeddings.plan import ShardingPlan
from perfmodel.base.errors import PlanError
from perfmodel.base.units import format_duration
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES, MODELS, family_of
from perfmodel.costs.pricing import price_job
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import EmbeddingOp, Fixed, MemoryBound, Op
from perfmodel.prediction.saved_jobs import open_job
from perfmodel.prediction.scenario import JobScenario
from perfmodel.stacks.stack import PLAIN_GEMM, SoftwareStack
from perfmodel.workloads.dlrm.job import build_dlrm_job
from perfmodel.workloads.dlrm.run import DlrmRun
from topologies import Cluster

_LOOKUP = MODELS[EmbeddingOp].family
_NAMES = {_LOOKUP: "lookups and updates", COMMUNICATION_FAMILY: "exchanges and reductions",
          "gemm": "matrix multiplies", "memory": "memory-bound kernels"}  # fmt: skip
"""The families that are scaled, in words."""
MOST_RATIO = 8.0
"""Kernels that differ more were not those of the plan."""


class RecordedRates(NamedTuple):
    """A stack whose kernels take as long as recorded, and what that rests on, in sentences."""

    stack: SoftwareStack
    facts: tuple[str, ...]


def scale_to_recording(
    folder: str, run: DlrmRun, cluster: Cluster, ran: ShardingPlan
) -> RecordedRates:
    """The stack of *run* at the rates of the job in *folder*, which is *run* under plan *ran*."""
    stack = run.stack
    question = open_job(JobScenario(job=folder))
    if question.recording is None:
        raise PlanError(f"{folder}: must be a recorded job, as `perfmodel import` writes it.")
    if question.job.rank_count != cluster.rank_count:
        raise PlanError(
            f"{folder}: must have the ranks of the question, has {question.job.rank_count} and "
            f"there are {cluster.rank_count}. Change --hosts or --ranks-per-host."
        )
    steady = question.recording.steps
    recorded = {name: time / steady for name, time in _recorded_ns(question.job).items()}
    predicted = _predicted_ns(build_dlrm_job(run.spec, plan=ran, stack=stack), cluster, stack)
    ratios = {name: recorded[name] / predicted[name]
              for name in _NAMES if recorded.get(name) and predicted.get(name)}  # fmt: skip
    far = [name for name, ratio in ratios.items() if max(ratio, 1 / ratio) > MOST_RATIO]
    if far or _LOOKUP not in ratios:
        name = far[0] if far else _LOOKUP
        raise PlanError(
            f"{folder}: is not a run of plan {ran.name!r}: its {_NAMES[name]} take "
            f"{format_duration(recorded.get(name, 0.0))} per step and rank, predicted are "
            f"{format_duration(predicted.get(name, 0.0))}. Name the model, batch and plan that ran."
        )
    shown = ", ".join(f"{_NAMES[name]} {ratio:.2f}" for name, ratio in ratios.items())
    step = question.recording.recorded(question.job)
    took = "" if step is None else f", {format_duration(step.iteration_ns)} per recorded step"
    return RecordedRates(
        _scaled(stack, cluster.device.generation, ratios),
        (f"{folder} ran plan {ran.name}{took}: recorded over predicted, {shown}",),
    )


def _scaled(stack: SoftwareStack, generation: str, ratios: Mapping[str, float]) -> SoftwareStack:
    changed = {
        name: {generation: stack.time_ratio(name, generation) * ratios.get(family, 1.0)}
        for family in ratios
        for name in ((family, PLAIN_GEMM) if family == "gemm" else (family,))
    }
    return replace(stack, kernel_time_ratio={**stack.kernel_time_ratio, **changed})


def _recorded_ns(job: JobGraph) -> dict[str, float]:
    """The mean over ranks of what recorded kernels of each family take."""
    total: dict[str, float] = defaultdict(float)
    for rank in range(job.rank_count):
        program = job.program_of(rank)
        for op in program.op[program.is_on_device()].tolist():
            recorded = job.ops[op]
            if isinstance(recorded, Fixed) and recorded.work is not None:
                total[_family(recorded.work)] += recorded.duration_ns / job.rank_count
    return total


def _family(work: Op) -> str:
    """The family of recorded *work*; lookups of which only the launch is known are one, too."""
    is_lookup = isinstance(work, MemoryBound) and work.operator == _LOOKUP
    return _LOOKUP if is_lookup else family_of(type(work))


def _predicted_ns(job: JobGraph, cluster: Cluster, stack: SoftwareStack) -> dict[str, float]:
    """The same of predicted kernels."""
    priced = price_job(job, cluster=cluster, stack=stack)
    sums = np.zeros(len(FAMILIES))
    for rank in range(job.rank_count):
        rows = priced.rows_of_rank(rank)
        sums += np.bincount(priced.family[rows], priced.float_ns[rows], minlength=len(FAMILIES))
    return dict(zip(FAMILIES, (sums / job.rank_count).tolist(), strict=True))
