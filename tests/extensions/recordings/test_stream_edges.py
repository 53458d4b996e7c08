"""Waits between streams: read where handles are recorded, inferred where not."""

import random

from perfmodel.extensions.recordings.rank_view import view_rank
from perfmodel.extensions.recordings.stream_edges import infer_stream_edges, read_stream_edges
from tests.extensions.recordings.builders import call
from tests.traces.builders import kernel, launch, write_trace
from traces.kineto import load_kineto

MAIN = 7


class Recorder:
    """Writes what a program with several streams would record, and knows its true waits."""

    def __init__(self, rng, *, has_marks):
        self.rng, self.has_marks = rng, has_marks
        self.spans, self.edges = [], set()
        self.now, self.correlation = 0, 0
        self.free, self.last, self.end = {}, {}, {}
        self.waits = {}

    def _call(self, name):
        self.correlation += 1
        self.now += self.rng.randint(1, 6)
        self.spans.append(call(name, self.now, 2, self.correlation))
        self.now += 2

    def mark(self, stream):
        """Record a mark on *stream* and return the task that it stands behind."""
        if self.has_marks:
            self._call("cudaEventRecord")
        return self.last.get(stream)

    def wait(self, stream, task):
        """Let *stream* wait for *task*."""
        self._call("cudaStreamWaitEvent")
        if task is not None:
            self.waits.setdefault(stream, set()).add(task)

    def launch(self, stream):
        """Launch a kernel that starts when its stream and all it waits for allow."""
        self.correlation += 1
        self.now += self.rng.randint(1, 6)
        self.spans.append(launch(self.correlation, self.now))
        self.now += 5
        waited = self.waits.pop(stream, set())
        start = max([self.now + 1, self.free.get(stream, 0), *(self.end[t] for t in waited)])
        length = self.rng.choice((3, 20, 120))
        self.spans.append(kernel(self.correlation, start, length, stream=stream))
        self.edges |= {(self.correlation, task) for task in waited}
        self.last[stream] = self.correlation
        self.free[stream] = self.end[self.correlation] = start + length


def record(rng, *, has_marks, sides=3):
    """A main stream that hands work to side streams and takes it back, as torch does.

    Now and then two side streams are at work before the first is taken back.
    """
    program = Recorder(rng, has_marks=has_marks)
    for _ in range(rng.randint(2, 5)):
        program.launch(MAIN)
    for _ in range(rng.randint(3, 9)):
        count = 2 if rng.random() < 0.1 else 1
        done = [fork(program, side) for side in rng.sample(range(20, 20 + sides), count)]
        for _ in range(rng.randint(0, 2)):
            program.launch(MAIN)
        for task in done:
            program.wait(MAIN, task)
            for _ in range(rng.randint(1, 3)):
                program.launch(MAIN)
    return program


def fork(program, side):
    """Hand work to a side stream; the task at its end."""
    program.wait(side, program.mark(MAIN))
    for _ in range(program.rng.randint(1, 3)):
        program.launch(side)
    return program.mark(side)


def edges_of(path, infer):
    view = view_rank(load_kineto(path))
    correlation = view.trace.columns.correlation[view.device.row].tolist()
    return {(correlation[target], correlation[source]) for target, source in infer(view)}


def test_synthetic_waits_are_found_without_handles(tmp_path):
    found = right = true = 0
    for seed in range(200):
        program = record(random.Random(seed), has_marks=seed % 2 == 0)
        path = write_trace(tmp_path / "a.json", program.spans)
        inferred = edges_of(path, infer_stream_edges)
        found, true = found + len(inferred), true + len(program.edges)
        right += len(inferred & program.edges)
    assert right / found >= 0.95
    assert right / true >= 0.95


def test_recorded_waits_are_inferred_with_at_most_one_wrong_and_none_missing(shared_data):
    missing = wrong = waits = 0
    for path in sorted((shared_data / "traces" / "single_rank").glob("hta_critical_path*")):
        true, inferred = edges_of(path, read_stream_edges), edges_of(path, infer_stream_edges)
        missing, wrong = missing + len(true - inferred), wrong + len(inferred - true)
        waits += len(true)
    assert waits == 7  # of the 21 waits these are for streams that had work
    assert missing == 0
    assert wrong <= 1


def test_a_source_that_ended_too_late_is_not_taken(tmp_path):
    spans = [
        launch(1, 0), kernel(1, 10, 500, stream=20),
        call("cudaStreamWaitEvent", 20, 2, 2),
        launch(3, 30), kernel(3, 40, 5, stream=MAIN),
    ]  # fmt: skip
    assert edges_of(write_trace(tmp_path / "a.json", spans), infer_stream_edges) == set()


def test_handles_are_read_where_they_are_recorded(tmp_path):
    wait = {"cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 20,
            "wait_on_cuda_event_record_corr_id": 2, "wait_on_cuda_event_id": 5}  # fmt: skip
    spans = [
        launch(1, 0), kernel(1, 10, 50, stream=20),
        call("cudaEventRecord", 20, 2, 2),
        call("cudaStreamWaitEvent", 25, 2, 3),
        {"ph": "X", "cat": "cuda_sync", "name": "wait", "pid": 0, "tid": MAIN, "ts": 25, "dur": 0,
         "args": {"correlation": 3, "stream": MAIN, "device": 0, **wait}},
        launch(4, 30), kernel(4, 60, 5, stream=MAIN),
    ]  # fmt: skip
    assert edges_of(write_trace(tmp_path / "a.json", spans), read_stream_edges) == {(4, 1)}
