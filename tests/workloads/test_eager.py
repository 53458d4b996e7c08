"""How a software stack changes what is issued."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_shared_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Gemm, HostSpan, MemoryBound
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.eager import EagerWriter, Step, StepWriter, repeat

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


def replayed_ns(steps, host_ns, kernel_ns):
    """When the host and the stream are done with *steps*, behind a kernel of 50 ns."""
    job = JobBuilder()
    writer = EagerWriter(job.new_program())
    for step in (Step("relu", "before", (cast(50),)), *steps):
        StepWriter(writer).write(step)
    job.add_rank(job.add_program(writer.finish()))
    built = job.build(JobFacts("steps"))

    def duration_ns(op):
        if isinstance(op, HostSpan):
            return sum(host_ns[part.part.value] for part in op.parts)
        return op.launches * kernel_ns.get(op.read_bytes, 50)

    durations_ns = [duration_ns(op) for op in map(built.ops.__getitem__, built.programs[0].op)]
    durations = build_shared_durations(built, [np.array(durations_ns)])
    now_ns = replay(built, durations).lane_now_ns[0, :, 0].tolist()
    return built.task_count, max(now_ns), now_ns


def cast(size):
    return MemoryBound("cast", size, size, DType.BF16)


@pytest.mark.parametrize(
    ("launch_ns", "kernel_ns", "end_ns"),
    [
        # The host needs 1 + 2 + 10 + 1 + 10 + 1 each time, and 1 + 2 + 10 + 1 for the step before.
        (10, {1: 1, 2: 1}, 14 + 10 * 25),
        # Kernels of 100 and 60 take longer: the first waits for the one before, which starts at
        # 13 and takes 50.
        (10, {1: 100, 2: 60}, 13 + 50 + 10 * 160),
    ],
)
def test_repeated_steps_end_when_they_would_one_by_one(launch_ns, kernel_ns, end_ns):
    host_ns = {"t1": 1, "t2": 2, "t3": 1, "t4": launch_ns, "t5": 1}
    step = Step("linear", "experts", (cast(1), cast(2)))

    whole, whole_ns, lanes_ns = replayed_ns([step] * 10, host_ns, kernel_ns)
    folded, folded_ns, folded_lanes_ns = replayed_ns(repeat(step, 10), host_ns, kernel_ns)

    assert folded_lanes_ns == lanes_ns
    assert (whole_ns, folded_ns) == (end_ns, end_ns)
    # Two launches and two kernels each time, of which three are left of ten.
    assert whole - folded == 7 * 4


@given(
    st.fixed_dictionaries({part: st.integers(0, 9) for part in ("t1", "t2", "t3", "t4", "t5")}),
    st.fixed_dictionaries({size: st.integers(1, 40) for size in (1, 2, 3)}),
    st.integers(1, 3),
    st.integers(1, 9),
)
def test_repeated_steps_of_any_length_end_when_they_would_one_by_one(
    host_ns, kernel_ns, kernels, times
):
    step = Step("linear", "experts", tuple(cast(1 + place) for place in range(kernels)))
    steps = replayed_ns([step] * times, host_ns, kernel_ns)

    assert replayed_ns(repeat(step, times), host_ns, kernel_ns)[1:] == steps[1:]
