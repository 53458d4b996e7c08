"""From trace to graph: small recordings whose replay can be worked out on paper.

Times in the recordings are microseconds. A launch takes 5 us and its kernel
starts 7 us after the call began, 2 us after it ended.
"""

import numpy as np
import pytest

from collectives import Collective, CollectiveKind
from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.self_replay import self_replay
from perfmodel.extensions.whatif import apply_all, parse_transformation
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.selection import LaneWord, Selection
from perfmodel.graph.program import Anchor
from tests.extensions.recordings.builders import (
    call,
    durations_of,
    find_tasks,
    held_of,
    import_spans,
)
from tests.traces.builders import kernel, launch, span

US = 1_000
WAVES = {"block": [1024, 1, 1], "registers per thread": 32, "shared memory": 0}
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"


def end_us(job, rank, label, durations=None):
    """When the last task with *label* ends in the replay."""
    held = held_of(job, durations)
    return max(held.end_ns[row] for row in find_tasks(job, rank, label)) / US


def changed(job, rank, label, more_us):
    """Durations with the tasks of *label* longer by *more_us*."""
    durations = durations_of(job)
    durations.values_ns[find_tasks(job, rank, label), 0] += more_us * US
    return durations


def copied(start, duration, correlation):
    return span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", start, duration,
                stream=7, device=0, correlation=correlation, tid=7, bytes=64)  # fmt: skip


SYNC, COPY, ELAPSED = "cudaStreamSynchronize", "cudaMemcpyAsync", "cudaEventElapsedTime"
LATER = {
    "a synchronisation waits for the kernel": (
        # It returns at 110, 3 us after the kernel's end.
        [launch(1, 0), kernel(1, 7, 100), call(SYNC, 6, 104, 2),
         launch(3, 120), kernel(3, 127, 10)],
        # Both kernels 50 us longer: the call returns 50 later, the second kernel ends 100 later.
        [(SYNC, 110, "gemm", 50, 160), ("gemm", 137, "gemm", 50, 237)],
    ),
    "a longer host gap moves what comes after it": (
        # The gap from 5 to 100 is a host task of 95 us, called after what ran there.
        [launch(1, 0), kernel(1, 7, 1), launch(2, 100), kernel(2, 107, 1)],
        [("gemm", 108, "python", 30, 138)],
    ),
    "a blocking copy holds the host until it is done": (
        # It returns at 130, 3 us after the copy's end.
        [launch(1, 0), kernel(1, 7, 100), call(COPY, 10, 120, 2), copied(107, 20, 2),
         launch(3, 140), kernel(3, 147, 10)],
        [(COPY, 130, "gemm", 40, 170)],
    ),
    "a free waits for the device, and an allocation outlasted by work does not": (
        # The allocation ends at 60, while the kernel runs until 307, the free at 310.
        [launch(1, 0), kernel(1, 7, 300), call("cudaMalloc", 10, 50, 2),
         call("cudaFree", 70, 240, 3)],
        [("cudaMalloc", 60, "gemm", 100, 60), ("cudaFree", 310, "gemm", 100, 410)],
    ),
    "a wait that nothing recorded is found before the elapsed time": (
        # 13 us after the kernel's end at 1007.
        [launch(1, 0), kernel(1, 7, 1000), call(ELAPSED, 1020, 2, 2)],
        [(ELAPSED, 1022, "gemm", 500, 1522)],
    ),
    "a graph launch releases all its kernels": (
        [call("cudaGraphLaunch", 0, 5, 1), kernel(1, 7, 10, **{"graph node id": 1}),
         kernel(1, 17, 10, **{"graph node id": 2}),
         kernel(1, 9, 30, stream=8, **{"graph node id": 3}), launch(2, 50), kernel(2, 57, 1)],
        [("gemm", 58, "cudaGraphLaunch", 100, 158)],
    ),
    "other ranks that were not recorded come as much later as they did": (
        # The second kernel has 50 us of waiting. We come 30 us later, and so do the others, who
        # run the same program.
        [launch(1, 0), kernel(1, 7, 40, stream=20, name=NCCL),
         launch(2, 100), kernel(2, 107, 90, stream=20, name=NCCL)],
        [("nccl", 197, "python", 30, 227)],
    ),
}  # fmt: skip
"""Spans, and when the last task of a label ends: as recorded, and with others longer."""


@pytest.mark.parametrize(("spans", "moves"), LATER.values(), ids=LATER)
def test_what_waited_comes_later_when_the_other_takes_longer(tmp_path, spans, moves):
    job = import_spans(tmp_path, spans)
    for label, at_us, longer, more_us, then_us in moves:
        assert end_us(job, 0, label) == at_us
        assert end_us(job, 0, label, changed(job, 0, longer, more_us)) == then_us
    assert self_replay(job).worst_error_pct < 5


def test_what_is_found_in_a_recording_is_told(tmp_path):
    jobs = {name: import_spans(tmp_path / name[:9], of) for name, (of, _) in LATER.items()}
    synchronised, _, _, _, elapsed, graph, lone = jobs.values()
    [row] = find_tasks(synchronised, 0, SYNC)
    assert durations_of(synchronised).values_ns[row, 0] == 3 * US  # its floor
    assert elapsed.report.ranks[0].hidden_waits == 1
    assert graph.report.ranks[0].launches_linked == 4
    assert any("not recorded" in sentence for sentence in lone.graph.facts.assumptions)


def test_a_device_gap_is_not_kept(tmp_path):
    job = import_spans(
        tmp_path, [launch(1, 0), kernel(1, 7, 10), launch(2, 20), kernel(2, 500, 10)]
    )
    # Nothing explains why the second kernel started at 500: 2 us after its launch it could.
    assert end_us(job, 0, "gemm") == 27 + 10


def test_a_copy_begins_while_its_call_still_fills_the_buffer(tmp_path):
    # The copy begins 30 us after its call, which returns at 90, before the copy ends at 110.
    spans = [launch(1, 0), kernel(1, 7, 1), call(COPY, 10, 80, 2), copied(40, 70, 2)]
    job = import_spans(tmp_path, spans)

    assert end_us(job, 0, "Memcpy DtoH") == 110
    assert end_us(job, 0, "Memcpy DtoH", changed(job, 0, COPY, 50)) == 110


def test_the_kernels_of_a_graph_begin_inside_a_long_call(tmp_path):
    # Nodes begin 20 and 40 us after the call, which takes 100.
    graph = [call("cudaGraphLaunch", 20, 100, 2), kernel(2, 40, 15), kernel(2, 60, 10)]
    job = import_spans(tmp_path, [launch(1, 0), kernel(1, 7, 1), *graph])

    assert end_us(job, 0, "gemm") == 70


def test_queued_kernels_keep_the_gap_that_the_device_needs(tmp_path):
    spans = [
        launch(1, 0), launch(2, 6), launch(3, 12), launch(4, 18), launch(5, 24),
        kernel(1, 7, 100), kernel(2, 109, 10), kernel(3, 123, 10), kernel(4, 139, 10),
        kernel(5, 159, 10),
    ]  # fmt: skip
    job = import_spans(tmp_path, spans)
    held = held_of(job)

    # Gaps of 2, 4 and 6 us: 6 is longer than a device needs, so it is the median, 3, as is the
    # last, of 10.
    ends = sorted(held.end_ns[row] / US for row in find_tasks(job, 0, "gemm"))
    assert ends == [107, 107 + 2 + 10, 119 + 4 + 10, 133 + 3 + 10, 146 + 3 + 10]


def test_collectives_and_kernels_that_begin_before_the_one_ahead_ends_have_no_gap(tmp_path):
    spans = [
        *(launch(one, 6 * one) for one in range(5)),
        kernel(0, 7, 100), kernel(1, 109, 100), kernel(2, 208, 100), kernel(3, 310, 10, name=NCCL),
        kernel(4, 322, 10),
    ]  # fmt: skip
    job = import_spans(tmp_path, spans)

    # Behind the second kernel the gap is -1 us, behind the third the collective has none.
    assert end_us(job, 0, "gemm") == 107 + 2 + 100 + 0 + 100 + 0 + 10 + 2 + 10


def test_threads_hand_over_to_each_other(tmp_path):
    spans = [
        launch(1, 0), kernel(1, 7, 1),
        launch(2, 50, tid=2), kernel(2, 57, 1),
        launch(3, 100), kernel(3, 107, 1),
    ]  # fmt: skip
    job = import_spans(tmp_path, spans)

    assert [lane.name for lane in job.graph.programs[0].lanes] == [
        "window", "thread 1", "thread 2", "stream 7",
    ]  # fmt: skip
    assert job.report.recorded_starts["first call of a chain"] == 1
    # All host work 10 us longer, three pieces of it: the last kernel ends 20 later, because
    # the first call of the chain has nothing before it.
    assert end_us(job, 0, "gemm", changed(job, 0, "python", 10)) == 108 + 20


def test_skewed_clocks_of_host_and_device_do_not_matter(tmp_path):
    def spans(skew):
        return [
            launch(1, 0), kernel(1, 7 + skew, 100),
            call("cudaStreamSynchronize", 6, 104, 2),
            launch(3, 120), kernel(3, 127 + skew, 10),
        ]  # fmt: skip

    straight = import_spans(tmp_path / "a", spans(0))
    skewed = import_spans(tmp_path / "b", spans(-51))

    assert skewed.report.ranks[0].skew_ns == pytest.approx(51 * US, abs=2 * US)
    assert self_replay(skewed).iteration.replayed_ns == pytest.approx(
        self_replay(straight).iteration.replayed_ns, abs=3 * US
    )


def two_ranks(tmp_path, late_us=300, **more):
    """Rank 1 comes late to a collective whose transfer takes 40 us."""
    name = more.pop("name", NCCL)
    ends = late_us + 47
    first = [launch(1, 0), kernel(1, 7, more.pop("first", ends - 7), stream=20, name=name, **more)]
    second = [
        launch(9, 0), kernel(9, 7, 1),
        launch(1, late_us), kernel(1, late_us + 7, 40, stream=20, name=name, **more),
    ]  # fmt: skip
    return import_spans(tmp_path, first, second)


def test_waiting_inside_a_collective_is_told_from_transfer(tmp_path):
    job = two_ranks(tmp_path)
    assert job.report.rendezvous == 1
    for rank in (0, 1):
        [row] = find_tasks(job, rank, "nccl")
        assert durations_of(job).values_ns[row, 0] == 40 * US
        assert end_us(job, rank, "nccl") == 347
    # A straggler that is later makes everybody later.
    assert end_us(job, 0, "nccl", changed(job, 1, "python", 100)) == 447
    assert end_us(job, 0, "nccl", changed(job, 1, "python", -250)) == 97


def test_a_collective_of_unknown_size_gets_the_bytes_that_fit_its_time(tmp_path):
    job = two_ranks(tmp_path)
    [op] = [op for op in job.graph.ops if op.name == "collective, estimated"]

    # 40 us at 80 GB/s, the rate of the GPU assumed for an unknown one.
    assert op.work.collective == Collective(CollectiveKind.ALL_REDUCE, 3_200_000)


def test_the_root_of_a_broadcast_does_not_wait(tmp_path):
    described = {
        "Collective name": "broadcast", "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float",
        "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,
    }  # fmt: skip
    job = two_ranks(tmp_path, first=20, name="ncclDevKernel_Generic(x)", **described)

    assert end_us(job, 0, "nccl") == 27
    assert end_us(job, 1, "nccl") == 347


def test_a_kernel_of_several_waves_holds_back_other_streams_until_its_last(tmp_path):
    # 80 multiprocessors take two blocks of 1024 threads each: 640 blocks are four waves, so
    # the last wave begins after three quarters of 400 us.
    big = {"grid": [640, 1, 1], **WAVES}
    spans = [
        launch(1, 0), kernel(1, 7, 400, name="big", **big),
        launch(2, 20), kernel(2, 307, 10, stream=9, name="small", grid=[1, 1, 1], **WAVES),
    ]  # fmt: skip
    job = import_spans(tmp_path, spans)

    assert end_us(job, 0, "small") == 7 + 300 + 10
    # A small kernel that comes before the big one is not held.
    assert end_us(job, 0, "small", changed(job, 0, "big", -396)) == 37


def test_no_start_is_copied_but_those_that_are_listed(tmp_path):
    spans = [kernel(77, 0, 5), launch(1, 10), kernel(1, 17, 1), launch(2, 30), kernel(2, 37, 1)]
    job = import_spans(tmp_path, spans)

    program = job.graph.programs[0]
    from_origin = (program.dep_task == 0) & (program.dep_anchor == int(Anchor.START))
    assert from_origin.sum() == 2
    assert job.report.recorded_starts == {
        "first call of a chain": 1, "work launched before the window": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ([kernel(5, 7, 1), kernel(6, 9, 1), kernel(7, 11, 1)], "0 of 3 device tasks"),
        ([], "no device work"),
    ],
)
def test_a_trace_without_device_work_or_its_launches_is_refused(tmp_path, kernels, message):
    with pytest.raises(TraceError, match=message):
        import_spans(tmp_path, [launch(1, 0), *kernels])


def test_tasks_belong_to_the_module_that_calls_them_and_gradients_to_that_of_their_operator(
    tmp_path,
):
    def operator(name, start, sequence, tid, forward=0):
        more = {"Sequence number": sequence, "Fwd thread id": forward}
        return span("cpu_op", name, start, 20, tid=tid, **more)

    job = import_spans(tmp_path, [
        span("python_function", "train.py(3): step", 0, 400),
        span("python_function", "nn.Module: Net_0", 0, 200),
        span("python_function", "nn.Module: Linear_0", 10, 50),
        span("python_function", "nn.Module: Linear_1", 100, 50),
        operator("aten::linear", 20, 7, 1), launch(1, 25), kernel(1, 40, 10, name="first"),
        operator("aten::linear", 110, 8, 1), launch(2, 115), kernel(2, 130, 10, name="second"),
        operator("AddmmBackward0", 300, 8, 2, 1), launch(3, 305, tid=2),
        kernel(3, 320, 10, name="gradient"),
        launch(4, 350), kernel(4, 360, 10, name="update"),
    ])  # fmt: skip

    graph, program = job.graph, job.graph.program_of(0)
    modules = {
        graph.labels[int(label)]: graph.origins[int(origin)].module
        for label, origin in zip(program.label, program.origin, strict=True)
        if int(origin) >= 0
    }
    assert modules["first"] == "Net_0 > Linear_0"
    assert modules["second"] == modules["gradient"] == "Net_0 > Linear_1"
    assert modules["update"] == ""
    found = Selection(LabelPattern("module:Linear_1"), LaneWord.DEVICE).mask(graph, program)
    assert [graph.labels[int(program.label[task])] for task in np.flatnonzero(found)] == [
        "second", "gradient",
    ]  # fmt: skip


def lone_steps(product_us):
    """A rank whose partner comes 300 us later, three times; a product before each collective."""
    spans = []
    for step in range(3):
        at = step * 1000
        length = 10 if step == 0 else 310  # the first time both come at once
        spans += [
            launch(3 * step, at), kernel(3 * step, at + 7, product_us),
            launch(3 * step + 1, at + 5),
            kernel(3 * step + 1, at + 7 + product_us, length, name=NCCL),
            call("cudaStreamSynchronize", at + 10, product_us + length, 3 * step + 2),
        ]  # fmt: skip
    return spans


def test_others_come_as_much_later_when_the_recorded_rank_gets_faster(tmp_path):
    job = import_spans(tmp_path, lone_steps(200))
    first, second, third = find_tasks(job, 0, NCCL)
    held = held_of(job)
    # As recorded: the transfer takes 10 us, 300 us after the product was there.
    assert held.end_ns[[first, second, third]].tolist() == [217 * US, 1517 * US, 2517 * US]

    faster = durations_of(job)
    faster.values_ns[find_tasks(job, 0, "gemm"), 0] -= 150 * US
    ends = held_of(job, faster).end_ns[[first, second, third]] / US

    # Each step is 150 us shorter, also those in which the rank waits.
    assert ends.tolist() == [67, 1217, 2067]


def test_what_a_removed_collective_waited_goes_with_it(tmp_path):
    job = import_spans(tmp_path, lone_steps(200))
    # Of two periods, 1300 and 1000 us, both are 300 us shorter where nobody comes later.
    assert job.graph.facts.others_late_ns == 300 * US

    alone = apply_all(job.graph, [parse_transformation("remove:match=nccl,lane=device")])

    program = alone.program_of(0)
    assert max(program.dep_lag_ns) < 300 * US
