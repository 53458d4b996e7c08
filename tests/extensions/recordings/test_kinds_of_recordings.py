"""What is read of each kind of recording: the table in docs/how_to/recordings.md, row by row."""

import json

import pytest

from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.extensions.recordings.trace_stats import known_share
from tests.extensions.recordings.builders import (
    call,
    durations_of,
    find_tasks,
    held_of,
    import_spans,
)
from tests.traces.builders import kernel, launch, span

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def marked(number, at, length=1000):
    return span("user_annotation", f"ProfilerStep#{number}", at, length)


def group(name, ranks, *, values=1024):
    """Metadata of a collective kernel as PyTorch writes it since 2.4."""
    return {
        "Collective name": "allreduce", "In msg nelems": values, "Out msg nelems": values,
        "dtype": "BFloat16", "Process Group Name": name,
        "Process Group Description": f"group_{name}", "Process Group Ranks": str(ranks),
    }  # fmt: skip


def test_a_captured_graph_is_one_launch_and_its_kernels_in_stream_order(tmp_path):
    spans = []
    for number in range(4):
        at = 1000 * number
        spans += [
            marked(number, at), call("cudaGraphLaunch", at + 10, 20, number + 1),
            kernel(number + 1, at + 40, 300, name="first"),
            kernel(number + 1, at + 350, 200, name="second"),
            kernel(number + 1, at + 60, 100, 9, name="beside"),
        ]  # fmt: skip
    job = with_score(import_spans(tmp_path, spans))
    assert (job.report.steps, job.report.rule) == (4, "profiler marks")
    assert len(find_tasks(job, 0, "cudaGraphLaunch")) == 4
    assert job.report.ranks[0].launches_linked == 12
    assert abs(job.score.iteration.error_pct) < 1


def test_a_branch_of_a_captured_graph_waits_for_what_ended_before_it(tmp_path):
    spans = []
    for number in range(4):
        at = 1000 * number
        spans += [
            call("cudaGraphLaunch", at + 10, 20, number + 1),
            kernel(number + 1, at + 40, 100, name="fork"),
            kernel(number + 1, at + 142, 300, 9, name="branch"),
            kernel(number + 1, at + 142, 50, name="beside"),
            kernel(number + 1, at + 444, 100, name="join"),
        ]  # fmt: skip
    job = import_spans(tmp_path, spans)
    # In each graph the branch waits for the fork, and the join for the branch.
    assert job.report.ranks[0].stream_edges == 8
    durations = durations_of(job)
    durations.values_ns[find_tasks(job, 0, "branch"), 0] += 200_000
    late = held_of(job, durations).start_ns - held_of(job).start_ns
    assert late[find_tasks(job, 0, "join")[0]] == 200_000
    assert late[find_tasks(job, 0, "beside")[0]] == 0


def test_kernels_of_triton_take_their_work_from_the_operator_around_them(tmp_path):
    word = "triton_poi_fused_add_0"
    shapes = {"Input Dims": [[1024, 1024], [1024, 1024], []], "Input type": ["float", "float", ""]}
    spans = [
        span("cpu_op", word, 0, 30, **shapes), launch(1, 10), kernel(1, 30, 20, name=word),
        launch(2, 60), kernel(2, 80, 20, name="triton_red_fused_sum_1", grid=[8, 1, 1]),
    ]  # fmt: skip
    job = import_spans(tmp_path, spans)
    known = known_share(job.graph)
    # The first is counted from shapes; without an operator the second is estimated.
    assert known["known_pct"] == 100
    assert known["estimated_pct"] == pytest.approx(50)


def test_each_of_several_process_groups_has_its_own_rendezvous(tmp_path):
    def rank(own, late):
        spans = []
        for number in range(3):
            at, first = 1000 * number, 10 * number
            spans += [
                launch(first + 1, at), kernel(first + 1, at + 20, 100),
                launch(first + 2, at + 30),
                kernel(first + 2, at + 200 + late, 100 - late, 20, name=ALL_REDUCE,
                       **group("0", [0, 1, 2, 3])),
                launch(first + 3, at + 40),
                kernel(first + 3, at + 400, 50, 24, name=ALL_REDUCE, **group(own[0], own[1])),
            ]  # fmt: skip
        return spans

    tensor = [("1", [0, 1])] * 2 + [("2", [2, 3])] * 2
    job = import_spans(tmp_path, *(rank(own, 10 * late) for late, own in enumerate(tensor)))
    # Three steps: one group of four ranks, two of two.
    assert job.report.rendezvous == 9
    assert [one.collectives_matched for one in job.report.ranks] == [6, 6, 6, 6]
    assert {one.name for one in job.graph.groups} == {"0 group_0", "1 group_1", "2 group_2"}


def test_a_thread_that_launches_collectives_has_a_chain_of_its_own(tmp_path):
    spans = []
    for number in range(4):
        at, first = 1000 * number, 10 * number
        spans += [
            # The main thread is inside a long call while the other one launches.
            call("cudaLaunchKernel", at, 400, first + 1), kernel(first + 1, at + 410, 300),
            call("cudaLaunchKernelExC", at + 100, 50, first + 2, tid=77),
            kernel(first + 2, at + 160, 400, 20, name=ALL_REDUCE),
        ]  # fmt: skip
    job = with_score(import_spans(tmp_path, spans, spans))
    assert {lane.name for lane in job.graph.program_of(0).lanes} >= {"thread 1", "thread 77"}
    assert job.report.recorded_starts["first call of a chain"] == 4
    assert abs(job.score.iteration.error_pct) < 1


def test_waits_between_streams_are_read_from_cuda_sync_events(tmp_path):
    spans = [
        launch(1, 0), kernel(1, 20, 500, name="source"),
        call("cudaEventRecord", 10, 2, 2), call("cudaStreamWaitEvent", 15, 2, 3),
        span("cuda_sync", "Stream Wait Event", 15, 0, correlation=3, stream=20, device=0,
             cuda_sync_kind="Stream Wait Event", wait_on_stream=7,
             wait_on_cuda_event_record_corr_id=2),
        launch(4, 30), kernel(4, 525, 100, 20, name="target"),
        span("cuda_sync", "Context Sync", 700, 10, correlation=9, cuda_sync_kind="Context Sync"),
    ]  # fmt: skip
    job = import_spans(tmp_path, spans)
    assert job.report.ranks[0].stream_edges == 1


def test_without_handles_in_cuda_sync_events_waits_are_inferred(tmp_path):
    spans = [
        launch(1, 0), kernel(1, 20, 500, name="source"),
        call("cudaEventRecord", 10, 2, 2), call("cudaStreamWaitEvent", 15, 2, 3),
        span("cuda_sync", "Stream Wait Event", 15, 0, correlation=3, stream=20, device=0,
             cuda_sync_kind="Stream Wait Event", wait_on_stream=7,
             wait_on_cuda_event_record_corr_id=-1),
        launch(4, 30), kernel(4, 525, 100, 20, name="target"),
    ]  # fmt: skip
    assert import_spans(tmp_path, spans).report.ranks[0].stream_edges == 1


def test_stacks_of_python_give_modules_and_nothing_else(tmp_path):
    functions = {"Python id": 1, "Python parent id": None, "Python module id": 0}
    spans = [
        span("python_function", "train.py(12): step", 0, 100, **functions),
        span("python_function", "nn.Module: Linear_0", 1, 90, **functions),
        span("cpu_op", "aten::mm", 2, 40, python_stack="train.py(12): step; model.py(3): forward"),
        launch(1, 10), kernel(1, 30, 20),
    ]  # fmt: skip
    job = import_spans(tmp_path, spans)
    [task] = find_tasks(job, 0, "gemm")
    assert job.graph.origins[int(job.graph.program_of(0).origin[task])].module == "Linear_0"
    assert not any("train.py" in json.dumps(origin.module) for origin in job.graph.origins)


def test_stamps_of_nanoseconds_count_from_the_base_of_the_file(tmp_path):
    spans = [launch(1, 0.25), kernel(1, 20.125, 300.5), launch(2, 400.75), kernel(2, 420.5, 1.25)]
    job = import_spans(tmp_path, spans)
    lengths = job.recorded_end_ns - job.recorded_start_ns
    assert {300_500, 1_250} <= set(lengths.tolist())
