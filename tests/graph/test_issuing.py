"""What issued calls put on host threads and streams."""

from __future__ import annotations

from itertools import pairwise

import pytest

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.issuing import T1, Issuer
from perfmodel.graph.job import Origin
from perfmodel.graph.ops import Communication, Fixed, Gemm
from perfmodel.graph.program import LaneKind

KERNEL = Gemm(1, 2, 3, DType.FP32)


class Sketch(Issuer):
    """Two host threads, a compute and a communication stream; `done` shows what was written."""

    def __init__(self, **options):
        self.job = JobBuilder()
        super().__init__(self.job.new_program(), **options)
        self.main, self.autograd = (self.add_lane(name, LaneKind.HOST) for name in ("m", "a"))
        self.compute = self.add_lane("compute", LaneKind.COMPUTE)
        self.wire = self.add_lane("wire")

    def run(self, operator, *kernels):
        self.begin(operator)
        task = [self.launch(kernel, stream=self.compute, label=operator) for kernel in kernels][-1]
        self.end()
        return task

    def done(self):
        """By lane, each task as its host parts or its label, and the tasks that it waits for."""
        program, ops = self.finish(), list(self.job.tables.op_index)
        labels = list(self.job.tables.label_index)

        def shown(task):
            parts = getattr(ops[program.op[task]], "parts", ())
            words = [f"{part.operator} {part.part.value}" for part in parts]
            deps = slice(program.dep_start[task], program.dep_start[task + 1])
            return words or labels[program.label[task]], program.dep_task[deps].tolist()

        bounds = pairwise(program.lane_start.tolist())
        return program, [[shown(task) for task in range(*pair)] for pair in bounds]


def test_host_time_up_to_a_launch_is_one_task_and_its_kernel_waits_for_it():
    sketch = Sketch()
    sketch.run("linear", KERNEL, KERNEL)
    sketch.note("view")
    sketch.run("relu", KERNEL)
    program, (main, autograd, compute, _) = sketch.done()
    assert not program.dep_lag_ns.any()
    assert main == [
        (["linear t1", "linear t2", "linear t4"], []),
        (["linear t5", "linear t4"], []),
        (["linear t3", "view t1", "view t5", "relu t1", "relu t2", "relu t4"], []),
        (["relu t3"], []),
    ]
    assert autograd == []
    assert compute == [("linear", [0]), ("linear", [1]), ("relu", [2])]


def test_threads_hand_over_both_ways_and_to_one_that_is_new():
    sketch = Sketch()
    sketch.run("linear", KERNEL)
    sketch.switch(sketch.autograd, label="backward")
    sketch.run("AddmmBackward", KERNEL)
    sketch.switch(sketch.lane("third", LaneKind.HOST), label="hook")
    sketch.switch(sketch.main, label="optimizer")
    _, (main, autograd, _, _, third) = sketch.done()
    # Main: launch 0, hand-over 1, and 2, which waits for the third thread. Autograd: 3, 4.
    assert main[1:] == [(["linear t3", "hand_over t1"], []), (["hand_over t1"], [7])]
    assert [deps for _, deps in autograd] == [[1], []]
    assert third == [(["hand_over t1"], [4])]


def test_a_stream_waits_for_another_only_where_told_and_once():
    sketch = Sketch()
    before = sketch.run("linear", KERNEL)
    reduce = Communication(Collective(CollectiveKind.ALL_REDUCE, 8))
    sketch.hold(sketch.wire, before, None, before)
    sketch.begin("all_reduce")
    task = sketch.launch(reduce, stream=sketch.wire, label="r", slot=0)
    sketch.end()
    sketch.run("relu", KERNEL)
    sketch.hold(sketch.compute, task)
    sketch.run("relu", KERNEL, KERNEL)
    program, (*_, compute, wire) = sketch.done()
    # Main 0 to 5, compute 6 to 9, communication 10.
    assert wire == [("r", [1, 6])]
    assert [deps for _, deps in compute] == [[0], [2], [3, 10], [4]]
    assert program.slot.tolist() == [-1] * 10 + [0]


def test_a_synchronisation_is_a_wait_of_the_host():
    sketch = Sketch()
    sketch.synchronize(sketch.run("linear", KERNEL), label="read")
    _, (main, *_) = sketch.done()
    assert main[1:] == [(["linear t3"], []), (["synchronize wait"], [3])]


def test_a_captured_iteration_is_one_launch_and_one_more_after_a_wait():
    sketch = Sketch(is_captured=True, latency_ns=7)
    sketch.run("linear", KERNEL, KERNEL)
    sketch.switch(sketch.autograd, label="backward")
    sketch.synchronize(sketch.run("AddmmBackward", KERNEL), label="loss")
    sketch.run("step", KERNEL)
    program, (main, autograd, compute, _) = sketch.done()
    assert [words for words, _ in main] == [
        ["graph_launch t4"], ["synchronize wait"], ["graph_launch t4"]
    ]  # fmt: skip
    assert autograd == []
    assert [deps for _, deps in compute] == [[0], [0], [0], [2]]
    assert program.dep_lag_ns[program.dep_start[3]] == 7


@pytest.mark.parametrize("origin", [None, Origin("aten::mm", span="forward")])
def test_one_call_may_launch_several_kernels_or_none(origin):
    sketch = Sketch()
    sketch.hold(sketch.compute, sketch.run("first", KERNEL))
    sketch.begin("conv")
    sketch.launch(KERNEL, KERNEL, stream=sketch.compute, label="x", origin=origin)
    sketch.launch(stream=sketch.compute, label="nothing")
    sketch.end()
    program, (main, _, compute, _) = sketch.done()
    assert compute[1:] == [("x", [1, 4]), ("x", [1])]
    assert main[2][0] == ["conv t5", "conv t4"]
    labels = list(sketch.job.tables.label_index)
    assert labels[program.label[1]] == ("x" if origin is None else "aten::mm")


def test_stated_times_are_put_on_lanes_by_name_and_a_loader_waits_for_room():
    sketch = Sketch()
    lane = sketch.lane("loader", LaneKind.LOADER)
    assert sketch.lane("loader", LaneKind.LOADER) is lane
    load = sketch.put(lane, Fixed("load", 5), label="load")
    sketch.spend(("next", T1))
    sketch.hold(sketch.main, load)
    sketch.make_room(load, sketch.write_spent("take"))
    program, lanes = sketch.done()
    assert lanes[0] == [(["next t1"], [1])]
    assert lanes[-1] == [("load", [0])]
    # Two batches are ready: one is loaded when the one before the last has been taken.
    assert (program.dep_distance.tolist(), program.dep_anchor.tolist()) == ([0, 2], [0, 1])
