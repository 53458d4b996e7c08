"""What eager issuing of operators puts on the lanes."""

from __future__ import annotations

from dataclasses import replace

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.ops import Gemm, HostPart, HostSpan
from perfmodel.graph.program import LaneKind
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.eager import EagerWriter

KERNEL = Gemm(1, 2, 3, DType.FP32)


def _parts(job: JobBuilder, program, lane: int) -> list[list[str]]:
    ops = list(job.tables.op_index)
    tasks = range(program.lane_start[lane], program.lane_start[lane + 1])
    spans = [ops[program.op[task]] for task in tasks]
    assert all(isinstance(span, HostSpan) for span in spans)
    return [[f"{part.operator} {part.part.value}" for part in span.parts] for span in spans]


def _awaited(program, task: int) -> list[int]:
    return program.dep_task[program.dep_start[task] : program.dep_start[task + 1]].tolist()


def test_host_pieces_up_to_a_launch_are_one_task():
    job = JobBuilder()
    writer = EagerWriter(job.new_program())
    writer.run("linear", [KERNEL, KERNEL], label="a")
    writer.note("view")
    writer.run("relu", [KERNEL], label="b")
    program = writer.finish(reads_loss=False)

    assert _parts(job, program, 0) == [
        ["linear t1", "linear t2", "linear t4"],
        ["linear t5", "linear t4"],
        ["linear t3", "view t1", "view t5", "relu t1", "relu t2", "relu t4"],
        ["relu t3"],
    ]


def test_a_kernel_waits_for_its_launch():
    job = JobBuilder()
    writer = EagerWriter(job.new_program())
    writer.run("linear", [KERNEL, KERNEL], label="a")
    program = writer.finish(reads_loss=False)

    # Main thread: tasks 0 to 2; autograd: none; compute: tasks 3 and 4.
    assert program.lane_start.tolist() == [0, 3, 3, 5]
    assert _awaited(program, 3) == [0]
    assert _awaited(program, 4) == [1]


def test_threads_hand_over_both_ways():
    job = JobBuilder()
    writer = EagerWriter(job.new_program())
    writer.run("linear", [KERNEL], label="forward")
    writer.hand_over(writer.autograd, label="backward")
    writer.run("AddmmBackward", [KERNEL], label="backward")
    writer.hand_over(writer.main, label="optimizer")
    writer.run("step", [KERNEL], label="step")
    program = writer.finish(reads_loss=False)

    # Main: launch 0, hand-over 1, launch of the step 2, rest 3. Autograd: launch 4, hand-over 5.
    assert program.lane_start.tolist()[:3] == [0, 4, 6]
    assert _awaited(program, 4) == [1]
    assert _awaited(program, 2) == [5]


def test_a_collective_waits_for_compute_and_compute_for_it_only_where_told():
    job = JobBuilder()
    writer = EagerWriter(job.new_program())
    stream = writer.add_stream("communication", LaneKind.COMMUNICATION)
    writer.run("linear", [KERNEL], label="a")
    reduce = Collective(CollectiveKind.ALL_REDUCE, 8)
    task = writer.communicate(reduce, label="r", stream=stream, slot=0)
    writer.run("relu", [KERNEL], label="b")
    writer.hold(writer.compute, task)
    writer.run("relu", [KERNEL], label="c")
    program = writer.finish(reads_loss=False)

    # Main 0 to 4, compute 5 to 7, communication 8.
    assert _awaited(program, 8) == [1, 5]
    assert _awaited(program, 6) == [2]
    assert _awaited(program, 7) == [3, 8]


def test_a_synchronising_call_is_a_wait_of_the_host():
    job = JobBuilder()
    writer = EagerWriter(job.new_program())
    kernel = writer.run("linear", [KERNEL], label="a")
    writer.block(kernel, label="read")
    program = writer.finish(reads_loss=False)

    assert _parts(job, program, 0)[-1] == [f"synchronize {HostPart.WAIT.value}"]
    assert _awaited(program, 2) == [3]


def test_a_captured_iteration_is_one_launch_and_one_more_after_a_wait():
    stack = load_stack("cuda_graphs")
    stack = replace(stack, host=replace(stack.host, launch_latency_ns=7.0, iteration_ns=0.0))
    job = JobBuilder()
    writer = EagerWriter(job.new_program(), stack)
    writer.run("linear", [KERNEL, KERNEL], label="forward")
    writer.hand_over(writer.autograd, label="backward")
    last = writer.run("AddmmBackward", [KERNEL], label="backward")
    writer.block(last, label="loss")
    writer.run("step", [KERNEL], label="optimizer")
    program = writer.finish(reads_loss=False)

    # Main thread: graph, wait, graph. Autograd: nothing. Compute: three kernels and one.
    assert _parts(job, program, 0) == [
        ["graph_launch t4"],
        ["synchronize wait"],
        ["graph_launch t4"],
    ]
    assert program.lane_start.tolist() == [0, 3, 3, 7]
    assert [_awaited(program, task) for task in range(3, 7)] == [[0], [0], [0], [2]]
    assert program.dep_lag_ns[program.dep_start[3]] == 7
