"""Every optimisation of the list on a job of twelve tasks, each answer worked out on paper.

One rank has six launches of 10 ns and six kernels. Compute stream: `forward conv`
100, `forward batch_norm` 40, `forward relu` 20, `backward conv` 200, `optimizer/step` 30; the
bucket (1,000 bytes, 60 ns) is reduced on a stream of its own once `backward conv` has ended,
and the optimizer waits for it:

    launches  0..60 (10 ns each)
    compute   conv 10..110, norm 110..150, relu 150..170, backward 170..370
    bucket    370..430
    optimizer 430..460
"""

from __future__ import annotations

import pytest

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.replay import replay
from perfmodel.extensions.whatif import apply_all, parse_transformation
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, Origin
from perfmodel.graph.ops import Communication, Convolution, Fixed, MemoryBound
from perfmodel.graph.program import Dependency, LaneKind
from tests.extensions.whatif.jobs import span_ns, times

CONV = Convolution(64, 64, 64, DType.FP32, read_bytes=3000, write_bytes=1000)
NORM = MemoryBound("batch_norm", 1000, 1000, DType.FP32)
RELU = MemoryBound("relu", 500, 500, DType.FP32)
ADAM = MemoryBound("adam", 400, 300, DType.FP32)
BUCKET = Communication(Collective(CollectiveKind.ALL_REDUCE, 1000, DType.FP32))
TASKS = [
    ("forward conv", 100, CONV, ""),
    ("forward batch_norm", 40, NORM, ""),
    ("forward relu", 20, RELU, ""),
    ("backward conv", 200, CONV, ""),
    ("bucket", 60, BUCKET, ""),
    ("optimizer/step", 30, ADAM, "Optimizer.step#Adam.step"),
]


def twelve_tasks(*, ranks=2, buckets=True, threads=1):
    """The job of the description, on *ranks* ranks; without *buckets* it needs no other rank.

    Of two *threads* the second launches the backward convolution.
    """
    job = JobBuilder()
    program = job.new_program()
    host = program.add_lane("main thread", LaneKind.HOST)
    compute = program.add_lane("stream 7", LaneKind.COMPUTE)
    stream = program.add_lane("stream 20", LaneKind.COMMUNICATION)
    other = host if threads == 1 else program.add_lane("autograd", LaneKind.HOST)
    kernel, waits = None, []
    for label, duration_ns, work, span in TASKS:
        if label == "bucket" and not buckets:
            continue
        thread = other if label.startswith("backward") else host
        launch = program.add_task(thread, Fixed("launch", 10), label=f"launch {label}")
        op, origin = Fixed(label, duration_ns, work=work), Origin(label, span=span)
        if label == "bucket":
            after = [Dependency(launch), Dependency(kernel)]
            waits = [program.add_task(stream, op, label=label, slot=0, after=after, origin=origin)]
        else:
            own = waits if label.startswith("optimizer") else []
            kernel = program.add_task(compute, op, label=label, after=[launch, *own], origin=origin)
    number = job.add_program(program.build())
    for _ in range(ranks):
        job.add_rank(number)
    if buckets:
        job.add_group("data", range(ranks), slot=0)
    return job.build(JobFacts("twelve tasks"))


def ask(*texts, **how):
    return apply_all(twelve_tasks(**how), [parse_transformation(text) for text in texts])


def test_the_job_has_twelve_tasks_and_takes_460_ns():
    job = twelve_tasks()

    assert job.programs[0].task_count == 12
    assert span_ns(job) == 460


@pytest.mark.parametrize(
    ("texts", "expected_ns"),
    [
        # select, scale: both convolutions halve, 100 + 200 -> 50 + 100.
        (["scale:match=convolution,factor=0.5"], 460 - 150),
        # insert: 15 ns behind the norm.
        (["insert:takes=15ns,after=batch_norm"], 460 + 15),
        (["insert:takes=15ns,before=kernel:optimizer"], 460 + 15),
        # remove: relu's 20 ns.
        (["remove:match=kernel:relu"], 460 - 20),
        # AMP: products a third (100 -> 33, 200 -> 67), memory-bound a half (60 -> 30).
        (["amp"], 10 + 33 + 20 + 10 + 67 + 60 + 30),
        # Batch-norm restructuring: norm 40 -> 20, relu inside the convolution.
        (["batch_norm"], 460 - 20 - 20),
        # vDNN: conv writes 1,000 bytes: at 10 GB/s 100 ns away (110..210) and 100 back
        # (210..310), so that backward runs 310..510.
        (["offload:rate=10GB/s,forward=forward conv,backward=backward conv"], 460 + 140),
        # Gist: 1,000 bytes at 100 GB/s, 10 ns to pack and 10 to unpack.
        (["gist:rate=100GB/s,forward=forward conv,backward=backward conv"], 460 + 20),
        # Deep gradient compression over two ranks: an all-reduce sends 2 * 1/2 * 1000 = 1000, the
        # all-gather of 2 * 2 % * 2 ranks * 1000 = 80 bytes sends half of that: 60 * 40/1000 = 2.4;
        # the codec takes 1,000 B / 100 GB/s = 10 ns on either side.
        (["dgc:ratio=0.02,rate=100GB/s"], 460 - 60 + 10 + 2 + 10),
        # MetaFlow-like: norm and relu as one kernel that reads 1000 and writes 500 of 3000 bytes.
        (["fuse:match=batch_norm|relu"], 460 - 30),
        # Buckets of 500 bytes: two of 30 ns one after the other; no kernels lie between.
        (["bucket:size=500B"], 460),
        # Data parallelism over four of the two: 2 (p-1)/p is 1 for two and 1.5 for four.
        (["ranks:count=4"], 460 + 30),
        (["set:match=bucket,lane=device,to=100ns"], 460 + 40),
        # The optimizer waits for the bucket only: its launch and the step stay where they are.
        (["host_overhead"], 450),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_it_takes_as_long_as_on_paper(texts, expected_ns):
    assert span_ns(ask(*texts)) == expected_ns


def test_an_all_reduce_by_levels_is_three_calls_on_links_of_a_machine():
    job = ask("blueconnect:inner=2,topology=dgx_h100", ranks=4)

    # One after the other on the stream of the bucket, which began at 370 ns.
    at = times(job)
    parts = [f"0/bucket: {kind}" for kind in ("reduce_scatter", "all_reduce", "all_gather")]
    assert at[parts[0]][0] == 370
    assert [at[one][1] for one in parts[:2]] == [at[one][0] for one in parts[1:]]
    assert [group.ranks for group in job.groups[1:]] == [(0, 1), (2, 3), (0, 2), (1, 3)]


def test_levels_without_a_machine_are_refused_because_only_links_tell_them_apart():
    with pytest.raises(ScenarioError, match="machine must be known"):
        ask("blueconnect:inner=2", ranks=4)


def test_one_rank_made_data_parallel_waits_for_its_buckets():
    wish = (
        "data_parallel:count=4,gradients=1kB,topology=dgx_h100,backward=backward conv,launch=10ns"
    )

    job = ask(wish, ranks=1, buckets=False)

    # One copy and one bucket, whatever they cost on that machine, between backward and optimizer;
    # all launches of 10 ns end long before.
    at = times(job)
    start_ns, end_ns = at["3/bucket of 1000 B"]
    assert job.rank_count == 4
    assert at["3/copy to a bucket"] == (370, start_ns)
    assert end_ns > start_ns
    assert at["3/optimizer/step"] == (end_ns, end_ns + 30)


def test_collectives_in_hooks_are_launched_by_the_backward_thread():
    # The only bucket carries all gradients, so it still begins when backward has ended, and its
    # launch follows the one of the backward convolution: 0..10, 10..20.
    at = times(ask("hooks", threads=2))

    assert at["0/launch bucket"] == (10, 20)
    assert at["0/bucket"] == (370, 430)
    with pytest.raises(ScenarioError, match="touches no task"):
        ask("hooks")


def period_ns(job):
    """The time from the end of one iteration to the end of the next, far from the first."""
    ends = replay(job, stated_durations(job), iterations=6).iteration_end_ns[:, 0]
    return int(ends[5] - ends[4])


def test_what_is_needed_first_goes_first_and_forward_waits_for_its_own_alone():
    # From the end of backward: bucket 60, optimizer 30, then forward 160 and backward 200.
    assert period_ns(twelve_tasks()) == 60 + 30 + 160 + 200

    # Two buckets of 30 ns, each with half of the update (15 ns) behind it. The convolution uses
    # what was made last, which is there after 45 ns; the other is there after 90, before the norm
    # asks for it at 45 + 100.
    assert period_ns(ask("bucket:size=500B", "priority")) == 45 + 160 + 200


def test_a_job_in_sixteen_bits_is_not_trained_in_sixteen_bits_again():
    with pytest.raises(ScenarioError, match="in 16 bits already: 100 % of the time"):
        ask("amp", "amp")
