"""Exports of Nsight Systems: the same job as from Kineto."""

import sqlite3

import numpy as np
import pytest

from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.rank_view import view_rank
from perfmodel.extensions.recordings.stream_edges import read_stream_edges
from tests.traces.builders import kernel, launch, span, write_nsys, write_trace
from traces.job_trace import REFUSED, load_job_trace
from traces.nsys import load_nsys

MAIN, SIDE = 7, 20


def call(name, start, correlation):
    return span("cuda_runtime", name, start, 2, correlation=correlation)


def wait(start, correlation, mark):
    """A stream that waits for an event: the main one, for what was marked on the side."""
    return span(
        "cuda_sync", "Stream Wait Event", start, 0, tid=MAIN, correlation=correlation, stream=MAIN,
        device=0, cuda_sync_kind="Stream Wait Event", wait_on_stream=SIDE,
        wait_on_cuda_event_record_corr_id=mark,
    )  # fmt: skip


def some_steps():
    """Two steps: a kernel on the side, which one on the main stream waits for, and a copy."""
    spans = []
    for step in range(2):
        at, first = 1000 * step, 10 * step
        spans += [
            span("user_annotation", f"ProfilerStep#{step}", at, 990),
            launch(first + 1, at), kernel(first + 1, at + 10, 300, stream=SIDE, name="side"),
            call("cudaEventRecord", at + 20, first + 2),
            call("cudaStreamWaitEvent", at + 25, first + 3), wait(at + 25, first + 3, first + 2),
            launch(first + 4, at + 30), kernel(first + 4, at + 320, 50, stream=MAIN),
            span("cuda_runtime", "cudaMemcpyAsync", at + 40, 5, correlation=first + 5),
            span("gpu_memcpy", "Memcpy HtoD", at + 400, 20, tid=MAIN, stream=MAIN, device=0,
                 correlation=first + 5, bytes=4096),
        ]  # fmt: skip
    return spans


def test_an_export_gives_the_job_that_a_kineto_trace_gives(tmp_path):
    spans = some_steps()
    gpu = {"id": 0, "name": "V100", "numSms": 80, "totalGlobalMem": 2**34,
           "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 98304,
           "maxThreadsPerMultiprocessor": 2048}  # fmt: skip
    kineto = import_job(
        load_job_trace(write_trace(tmp_path / "a.json", spans, deviceProperties=[gpu]))
    )
    nsys = import_job(load_job_trace(write_nsys(tmp_path / "a.sqlite", spans)))

    assert nsys.report.steps == 2
    one, other = nsys.graph.programs[0], kineto.graph.programs[0]
    for column in ("lane_start", "dep_start", "dep_task", "dep_lag_ns"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
    texts = [[job.graph.labels[label] for label in job.graph.programs[0].label]
             for job in (nsys, kineto)]  # fmt: skip
    assert texts[0] == texts[1]
    assert np.array_equal(nsys.recorded_end_ns, kineto.recorded_end_ns)
    assert nsys.graph.facts.device == "V100"


def test_streams_wait_for_the_last_record_of_an_event(tmp_path):
    [trace] = load_nsys(write_nsys(tmp_path / "a.sqlite", some_steps()))
    view = view_rank(trace)
    correlation = trace.columns.correlation[view.device.row].tolist()

    # Both steps record the same event: kernel 4 waits for 1, and 14 for 11.
    edges = read_stream_edges(view)
    assert {(correlation[one], correlation[other]) for one, other in edges} == {(4, 1), (14, 11)}


def test_processes_of_one_export_are_ranks_by_their_gpus(tmp_path):
    nccl = [launch(7, 900), kernel(7, 910, 20, name="ncclDevKernel_AllReduce")]
    path = write_nsys(tmp_path / "job.sqlite", some_steps() + nccl, nccl)
    job = load_job_trace(path)

    assert [(trace.rank, trace.world_size) for trace in job.ranks] == [(0, 2), (1, 2)]
    assert [len(trace.columns) for trace in job.ranks] == [22, 2]
    assert import_job(job).report.rendezvous == 1


def test_operators_of_emit_nvtx_are_operators(tmp_path):
    spans = [span("nvtx", "aten::mm, op_id = 3, sizes = [[2, 4], [4, 8]]", 0, 20), *some_steps()]
    [trace] = load_nsys(write_nsys(tmp_path / "a.sqlite", spans))
    assert "aten::mm" in trace.names


@pytest.mark.parametrize("text", ["CREATE TABLE other (a)", "CREATE TABLE StringIds (id, value)"])
def test_other_databases_are_refused(tmp_path, text):
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        database.execute(text)
    with pytest.raises(TraceError, match="must hold kernels that Nsight Systems recorded"):
        load_nsys(tmp_path / "a.sqlite")
    (tmp_path / "b.sqlite").write_bytes((tmp_path / "a.sqlite").read_bytes()[:3000])
    with pytest.raises(TraceError, match="nsys export --type sqlite"):
        load_nsys(tmp_path / "b.sqlite")


@pytest.mark.parametrize("name", REFUSED)
def test_files_of_other_programs_are_refused_by_name(tmp_path, name):
    folder = tmp_path / "folder"
    path = (
        folder / name.replace("*", "profile") / "x"
        if "_pt" in name
        else folder / name.replace("*", "my")
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0\1")
    what, instead = REFUSED[name]
    for given in (path, folder):
        with pytest.raises(TraceError) as fault:
            load_job_trace(given)
        assert what in str(fault.value)
        assert instead.replace("FILE", path.name) in str(fault.value)


def test_a_report_next_to_its_export_does_not_hide_it(tmp_path):
    (tmp_path / "a.nsys-rep").write_bytes(b"\0\1")
    write_nsys(tmp_path / "a.sqlite", some_steps())
    assert len(load_job_trace(tmp_path).ranks) == 1
