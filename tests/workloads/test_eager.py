"""How a software stack changes what is issued."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.eager import EagerWriter

KERNEL = Gemm(1, 2, 3, DType.FP32)
REDUCE = Collective(CollectiveKind.ALL_REDUCE, 8)


@pytest.mark.parametrize(("name", "launches"), [("cuda_graphs", 1), ("pytorch_eager", 3)])
def test_a_stack_says_how_soon_kernels_start_and_whether_they_are_captured(name, launches):
    stack = load_stack(name)
    stack = replace(stack, host=replace(stack.host, launch_latency_ns=7.0, iteration_ns=5.0))
    job = JobBuilder()
    writer = EagerWriter(job.new_program(), stack)
    writer.run("linear", [KERNEL, KERNEL], label="forward")
    writer.run("relu", [KERNEL], label="forward")
    program = writer.finish(reads_loss=True)

    assert len(set(program.dep_task[program.dep_lag_ns == 7].tolist())) == launches
    labels = [list(job.tables.label_index)[label] for label in program.label]
    assert labels[0] == "host/start of iteration"
    # One process drives four ranks: 5 ns, and 2 more for each of the three others.
    driving = replace(stack.host, further_rank_ns=2.0)
    assert driving.begin_ns(1) == 5.0
    assert driving.begin_ns(4) == 11.0
    assert driving.faster(2.0).begin_ns(4) == 5.5
    # The host waits for the last kernel.
    wait = program.dep_start[labels.index("loss/read on the host") + (name != "cuda_graphs")]
    assert program.dep_task[wait] == program.task_count - 1


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_collective_follows_all_compute_so_far_unless_told_otherwise(is_behind):
    writer = EagerWriter(JobBuilder().new_program())
    stream = writer.add_lane("communication")
    writer.run("linear", [KERNEL], label="a")
    writer.communicate(REDUCE, label="r", stream=stream, slot=0, is_behind_compute=is_behind)
    program = writer.finish()
    # Main 0 to 2, compute 3, communication 4.
    awaited = program.dep_task[program.dep_start[4] :].tolist()
    assert awaited == ([1, 3] if is_behind else [1])
