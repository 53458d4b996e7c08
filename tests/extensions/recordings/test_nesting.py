"""Which interval of a thread is around a moment."""

import numpy as np

from perfmodel.extensions.recordings.nesting import NOTHING, Nesting
from tests.traces.builders import span, write_trace
from traces.kineto import load_kineto

# On thread 1: a 0..100 holds b 10..50, which holds c 20..30; d 60..90; thread 2 has e 0..40.
SPANS = [
    span("cpu_op", "a", 0, 100),
    span("cpu_op", "e", 0, 40, tid=2),
    span("cpu_op", "b", 10, 40),
    span("cpu_op", "c", 20, 10),
    span("cpu_op", "d", 60, 30),
]


def names_around(tmp_path, moments_us, thread, *, is_outermost=False):
    trace = load_kineto(write_trace(tmp_path / "a.json", SPANS))
    nesting = Nesting(trace.columns, np.arange(len(SPANS)))
    moments_ns = np.array(moments_us, dtype=np.int64) * 1000
    threads = np.full(len(moments_us), thread)
    found = nesting.around(moments_ns, threads, is_outermost=is_outermost)
    return ["-" if row == NOTHING else trace.name_of(row) for row in found.tolist()]


def test_the_innermost_interval_that_has_not_ended_is_around_a_moment(tmp_path):
    moments = [0, 10, 25, 30, 49, 50, 60, 90, 100]

    assert names_around(tmp_path, moments, 1) == ["a", "b", "c", "b", "b", "a", "d", "a", "-"]
    assert names_around(tmp_path, [25, 40], 2) == ["e", "-"]
    assert names_around(tmp_path, [25], 3) == ["-"]


def test_the_outermost_one_holds_all_others(tmp_path):
    assert names_around(tmp_path, [25, 60, 100], 1, is_outermost=True) == ["a", "a", "-"]


def test_parents_are_by_row(tmp_path):
    trace = load_kineto(write_trace(tmp_path / "a.json", SPANS))
    parents = Nesting(trace.columns, np.arange(len(SPANS))).parents()
    names = {trace.name_of(row): outer for row, outer in parents.items()}
    inside = {name: "-" if row == NOTHING else trace.name_of(row) for name, row in names.items()}

    assert inside == {"a": "-", "b": "a", "c": "b", "d": "a", "e": "-"}
