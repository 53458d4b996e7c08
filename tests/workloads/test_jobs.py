"""Jobs of every kind run to their end."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import WorkloadError
from perfmodel.engine.replay import replay
from perfmodel.graph.durations import build_shared_durations
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Attention, MemoryBound, Pass
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import kernel_words
from perfmodel.workloads import build_job, load_workload

SMALL = ["model.layers=4", "batch=32", "parallel.micro_batch=2"]


def _durations(job: JobGraph):
    rows = [np.full(program.task_count, 10, dtype=np.int64) for program in job.programs]
    return build_shared_durations(job, rows)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("dlrm_mlperf", ["sharding.data_parallel_below=1 MiB"]),
        ("dlrm_dcnv2", ["training.distribute_ahead=false", "sync_each_iteration=true"]),
        ("llama3_8b", [*SMALL, "parallel.tp=2", "parallel.pp=2"]),
        ("llama3_8b", [*SMALL, "parallel.tp=1", "parallel.pp=4"]),
        ("llama3_8b", [*SMALL, "parallel.sharding=full", "parallel.tp=2"]),
        ("llama3_8b", [*SMALL, "parallel.tp=4", "parallel.sequence_parallel=false"]),
        ("gpt3_175b", [*SMALL, "parallel.pp=4", "training.recompute=full"]),
        ("bert_large", [*SMALL, "input.load_time=1 ms", "sync_each_iteration=true"]),
    ],
)
def test_a_job_runs_to_its_end_again_and_again(name, overrides):
    job = build_job(load_workload(name, overrides), rank_count=8, ranks_per_host=8)
    ends = replay(job, _durations(job), iterations=3).iteration_end_ns
    assert (np.diff(ends, axis=0) > 0).all()
    # A stack may say of all its kernels what they execute.
    words = {op.operator.removesuffix("_backward") for op in job.ops if isinstance(op, MemoryBound)}
    assert words <= set(kernel_words())


@pytest.mark.parametrize(("micro_batches", "iteration_ns"), [(4, 210), (8, 330), (16, 570)])
def test_a_pipeline_has_the_bubble_of_one_forward_one_backward(micro_batches, iteration_ns):
    overrides = [
        "model.layers=4", f"batch={micro_batches}", "parallel.micro_batch=1",
        "parallel.pp=4", "parallel.tp=1", "training.recompute=none",
    ]  # fmt: skip
    workload = load_workload("llama3_8b", overrides)
    # On a CPU no kernel starts later than it is launched.
    stack = load_stack("pytorch_cpu")
    job = build_job(workload, rank_count=4, ranks_per_host=8, stack=stack)
    # Only attention takes time: 10 ns forward and 20 ns backward, one layer a stage.
    of_op = np.zeros(len(job.ops), dtype=np.int64)
    for place, op in enumerate(job.ops):
        if isinstance(op, Attention):
            of_op[place] = 10 if op.direction is Pass.FORWARD else 20
    durations = build_shared_durations(job, [of_op[program.op] for program in job.programs])

    # (micro-batches + stages - 1) x (forward + backward): (4 + 3) x 30 = 210.
    assert replay(job, durations).iteration_end_ns[-1, 0] == iteration_ns


@pytest.mark.parametrize("name", ["dlrm_dcnv2", "llama3_8b"])
@pytest.mark.parametrize(("rank_count", "ranks_per_host"), [(0, 8), (8, 0)])
def test_a_job_needs_ranks(name, rank_count, ranks_per_host):
    with pytest.raises(WorkloadError, match="at least 1, got 0"):
        build_job(load_workload(name), rank_count=rank_count, ranks_per_host=ranks_per_host)
