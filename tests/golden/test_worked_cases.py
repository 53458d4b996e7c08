"""Cases worked out on paper: each test shows the arithmetic it checks."""

from __future__ import annotations

import numpy as np

from perfmodel.engine.replay import Replay, find_period, replay
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Anchor, Dependency, LaneKind, Role
from tests.builders import JobSketch, RankSketch, times_by_label

HOST, COMPUTE, COMM, LOADER = (
    LaneKind.HOST,
    LaneKind.COMPUTE,
    LaneKind.COMMUNICATION,
    LaneKind.LOADER,
)


def run(job: JobGraph, durations: DurationTable, iterations: int) -> Replay:
    return replay(job, durations, iterations=iterations)


def times(sketch: JobSketch) -> dict[str, tuple[int, int]]:
    return times_of(*sketch.build())


def times_of(job: JobGraph, durations: DurationTable) -> dict[str, tuple[int, int]]:
    return times_by_label(job, durations, replay(job, durations).last)


def launch(rank: RankSketch, name: str, host_ns: int, kernel_ns: int) -> None:
    rank.task(f"launch {name}", "host", host_ns)
    rank.task(name, "gpu", kernel_ns, after=[f"launch {name}"])


def test_a_host_that_runs_ahead_leaves_the_gpu_busy_all_the_time():
    sketch = JobSketch()
    rank = sketch.rank(host=HOST, gpu=COMPUTE)
    for name in "abc":
        launch(rank, name, host_ns=10, kernel_ns=100)
    job, durations = sketch.build()

    found = times_of(job, durations)

    # The host is done at 3 x 10. The first kernel starts after its launch, at
    # 10; from then on each waits for the one before: 10, 110, 210, end 310.
    assert found["0/launch c"] == (20, 30)
    assert found["0/a"] == (10, 110)
    assert found["0/c"] == (210, 310)

    # Iterations overlap: the host launches the next ones while the GPU works,
    # so that the period is the GPU's 3 x 100, not the 310 of one alone.
    steady = find_period(run, job, durations)
    assert steady.period_ns == [300]
    assert steady.is_settled


def test_a_gpu_that_starves_waits_for_every_launch():
    sketch = JobSketch()
    rank = sketch.rank(host=HOST, gpu=COMPUTE)
    for name in "abc":
        launch(rank, name, host_ns=100, kernel_ns=10)
    job, durations = sketch.build()

    found = times_of(job, durations)

    # Every kernel starts when its launch ends: 100, 200, 300.
    assert found["0/b"] == (200, 210)
    assert found["0/c"] == (300, 310)
    # The host sets the pace: 3 x 100.
    assert find_period(run, job, durations).period_ns == [300]


def test_a_prefetched_copy_is_hidden_behind_the_iteration_before():
    def period_ns(distance: int) -> int:
        sketch = JobSketch()
        rank = sketch.rank(gpu=COMPUTE, copy=LaneKind.COPY)
        copied = rank.task("copy", "copy", 40)
        step = rank.task("step", "gpu", 100, after=[Dependency(copied, distance=distance)])
        # A buffer is written again only when the step that read it has ended.
        rank.builder.add_dependency(copied, Dependency(step, distance=1))
        return int(find_period(run, *sketch.build()).period_ns[0])

    # Copied in the same iteration: the copy waits for the last step and the
    # step for the copy: 40 + 100. Prefetched: the copy overlaps a step.
    assert period_ns(distance=0) == 140
    assert period_ns(distance=1) == 100


def test_a_grouped_send_recv_ring_neither_deadlocks_nor_over_synchronises():
    sketch = JobSketch()
    # Three ranks in a ring; each has one lane to send to the right and one to
    # receive from the left: fork after `before`, join in `after`.
    for rank_index, before_ns in enumerate((5, 20, 50)):
        rank = sketch.rank(gpu=COMPUTE, right=COMM, left=COMM)
        rank.task("before", "gpu", before_ns)
        rank.meet(f"send {rank_index}", "right", 10, slot=0, after=["before"])
        rank.meet(f"recv {rank_index}", "left", 10, slot=1, after=["before"])
        rank.task("after", "gpu", 1, after=[f"send {rank_index}", f"recv {rank_index}"])
    for sender in range(3):
        receiver = (sender + 1) % 3
        sketch.group(sender, receiver, slot=[0, 1], name=f"{sender} to {receiver}")

    found = times(sketch)

    # 0 -> 1 starts at max(5, 20) = 20; 1 -> 2 at max(20, 50) = 50; 2 -> 0 at
    # max(50, 5) = 50. Rank 0's send is over at 30 though its receive is not.
    assert found["0/send 0"] == (20, 30)
    assert found["1/recv 1"] == (20, 30)
    assert found["1/send 1"] == found["2/recv 2"] == (50, 60)
    assert found["2/send 2"] == found["0/recv 0"] == (50, 60)
    assert found["0/after"] == (60, 61)


def test_the_root_of_a_broadcast_that_is_early_does_not_wait():
    sketch = JobSketch()
    for before_ns, role in ((10, Role.SIGNALS), (30, Role.WAITS), (5, Role.WAITS)):
        rank = sketch.rank(gpu=COMPUTE)
        rank.task("before", "gpu", before_ns)
        rank.meet("broadcast", "gpu", 7, role=role)
    sketch.group(0, 1, 2)

    found = times(sketch)

    # The root goes at 10 and is done at 17; rank 1 comes at 30 and finds the
    # data there; rank 2 comes at 5 and waits for the root until 10.
    assert found["0/broadcast"] == (10, 17)
    assert found["1/broadcast"] == (30, 37)
    assert found["2/broadcast"] == (10, 17)


def test_a_cuda_graph_costs_one_launch_and_keeps_its_own_dependencies():
    sketch = JobSketch()
    rank = sketch.rank(host=HOST, one=COMPUTE, two=COMPUTE)
    rank.task("launch graph", "host", 8)
    rank.task("a", "one", 10, after=["launch graph"])
    rank.task("b", "two", 30, after=["a"])
    rank.task("c", "one", 5, after=["a"])
    rank.task("d", "one", 2, after=["b", "c"])

    found = times(sketch)

    # One launch ends at 8; then a 8-18, b 18-48 overlaps c 18-23, d after both.
    assert found["0/b"] == (18, 48)
    assert found["0/c"] == (18, 23)
    assert found["0/d"] == (48, 50)


def test_a_loader_with_a_queue_of_two_is_held_back_by_its_consumer():
    sketch = JobSketch()
    rank = sketch.rank(loader=LOADER, gpu=COMPUTE)
    produce = rank.task("produce", "loader", 10)
    consume = rank.task("consume", "gpu", 100, after=["produce"])
    # The loader may be two batches ahead: producing batch k waits until batch
    # k - 2 has been taken, that is, until its step has started.
    rank.builder.add_dependency(produce, Dependency(consume, anchor=Anchor.START, distance=2))
    job, durations = sketch.build()

    answer = replay(job, durations, iterations=6)
    loader_ns, gpu_ns = answer.lane_now_ns[:, 0, 0], answer.lane_now_ns[:, 1, 0]

    # Steps start at 10, 110, 210, ... Batches 0 and 1 are made at once (10,
    # 20); batch 2 when step 0 starts (10), after batch 1: 20-30; batch 3 when
    # step 1 starts: 110-120; batch 4: 210-220; batch 5: 310-320.
    assert list(gpu_ns) == [110, 210, 310, 410, 510, 610]
    assert list(loader_ns) == [10, 20, 30, 120, 220, 320]
    assert find_period(run, job, durations).period_ns == [100]


def test_a_slow_loader_sets_the_pace():
    sketch = JobSketch()
    rank = sketch.rank(loader=LOADER, gpu=COMPUTE)
    rank.task("produce", "loader", 150)
    rank.task("consume", "gpu", 100, after=["produce"])
    # 150 > 100: a batch every 150.
    assert find_period(run, *sketch.build()).period_ns == [150]


def test_an_uneven_all_to_all_starts_together_and_ends_apart():
    sketch = JobSketch()
    for before_ns, exchange_ns in ((10, 40), (25, 90), (5, 15)):
        rank = sketch.rank(gpu=COMPUTE)
        rank.task("before", "gpu", before_ns)
        rank.meet("all-to-all", "gpu", exchange_ns)
        rank.task("after", "gpu", 1)
    sketch.group(0, 1, 2)

    found = times(sketch)

    # All start when the last is ready, at 25; ends 25 + 40, 25 + 90, 25 + 15.
    assert found["0/all-to-all"] == (25, 65)
    assert found["1/all-to-all"] == (25, 115)
    assert found["2/all-to-all"] == (25, 40)
    assert found["2/after"] == (40, 41)


def test_a_rhythm_of_two_iterations_is_averaged_over_both():
    sketch = JobSketch()
    rank = sketch.rank(first=COMPUTE, second=COMPUTE)
    one = rank.task("one", "first", 10)
    two = rank.task("two", "second", 3, after=["one"])
    # `one` waits for the end of `two` two iterations ago plus 17: a loop of
    # 10 + 3 + 17 = 30 over 2 iterations, so 15 an iteration on average.
    rank.builder.add_dependency(one, Dependency(two, lag_ns=17, distance=2))
    steady = find_period(run, *sketch.build())
    assert steady.is_settled
    assert np.array_equal(steady.period_ns, [15])
