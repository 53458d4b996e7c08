"""Every transformation on a job small enough to work out on paper.

The job is described in `tests.extensions.whatif.jobs`: it takes 690 ns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import GraphError, ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.extensions.whatif import apply_all, parse_transformation
from perfmodel.extensions.whatif.durations import enlarge
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.selection import LaneWord, Selection
from perfmodel.extensions.whatif.transformation import apply_one
from perfmodel.graph.job import Origin, with_own_origins
from perfmodel.graph.ops import Communication, Fixed, Gemm, MemoryBound
from perfmodel.graph.program import LaneKind
from tests.builders import JobSketch
from tests.extensions.whatif.jobs import span_ns, times, training_job


def ask(text, job=None):
    return apply_all(job or training_job(), [parse_transformation(text)])


def sizes(job):
    works = [job.ops[op].work for op in job.programs[0].op.tolist()]
    return [work.collective.size_bytes for work in works if isinstance(work, Communication)]


@pytest.mark.parametrize(
    ("pattern", "tasks"),
    [
        ("gemm", 3), ("kernel:up", 2), ("operator:addmm", 2), ("addmm", 2), ("stream:nccl", 2),
        ("stream:cl", 0), ("range:update", 2), ("range:step", 2), ("module:mlp", 1),
        ("like:up forward", 2), ("kernel:gelu|range:update", 3), ("kernel:launch", 0),
    ],
)  # fmt: skip
def test_tasks_are_chosen_by_where_their_name_stands(pattern, tasks):
    job = training_job(ranks=1)

    def placed(origin):
        name = origin.operator
        return Origin(
            "addmm" if "0/up" in name else name,
            module="mlp" if "gelu" in name else "",
            span="step > update" if name.startswith("optimizer") else "",
        )

    named = replace(job, origins=tuple(placed(origin) for origin in job.origins))
    mask = Selection(LabelPattern(pattern), LaneWord.DEVICE).mask(named, named.programs[0])

    assert np.count_nonzero(mask) == tasks


def test_a_change_says_what_it_touched():
    job = with_own_origins(training_job())
    wish = parse_transformation("optimizer:traffic=0.5")

    touched = apply_one(job, wish, name="optimizer").touched

    # On each rank: one kernel of two left, one launch of two, 80 ns -> 40 ns and the launch's 10.
    assert (touched.retimed, touched.removed) == (2, 4)
    assert (touched.before.launches, touched.after.launches) == (4, 2)
    assert (touched.before.duration_ns, touched.after.duration_ns) == (2 * 90, 2 * 40)
    # 400 + 300 bytes each.
    assert (touched.before.size_bytes, touched.after.size_bytes) == (2 * 1400, 2 * 700)


def test_what_matches_and_stays_as_it_is_was_still_asked_for():
    job = with_own_origins(training_job())
    touched = apply_one(job, parse_transformation("scale:match=gemm,factor=1"), name="x").touched

    assert (touched.tasks, touched.retimed) == (6, 0)


def test_the_job_takes_what_its_description_says():
    at = times(training_job())

    assert at["0/layer 0/up forward"] == (10, 110)
    assert at["0/layer 0/up backward"] == (190, 390)
    assert at["0/bucket 0"] == (390, 450)
    assert at["0/bucket 1"] == (490, 610)
    assert at["1/optimizer/step b"] == (640, 690)


SPANS = [
    # Forward 10..140, backward 140..240..290; bucket 0 240..300, bucket 1 behind it 300..420.
    ("scale:match=gemm,factor=0.5", 420 + 80),
    # Of the products (100, 200, 100 ns) number 1 takes 50.
    ("set:match=gemm,lane=device,number=1,to=50ns", 690 - 150),
    # The backward pass ends at 490, the optimizer takes 80.
    ("remove:match=all_reduce", 490 + 80),
    # norm and gelu move 400 + 400 bytes in 80 ns; fused they read 300 and write 300: 60 ns.
    ("fuse:match=norm|gelu", 690 - 20),
    # 30 + 50 ns, half of it.
    ("optimizer:kind=fused,traffic=0.5", 610 + 40),
    ("optimizer:kind=foreach", 690),
    # 100 + 40 + 40 ns more, on a device that is never short of launches.
    ("recompute", 690 + 180),
    ("host_overhead", 680),
    ("host_overhead:factor=0.5", 685),
    ("host_overhead:up_to=9ns", 690),
    # 1000 and 2000 bytes make 3000; 60 + 120 ns one after the other, from 490 on.
    ("bucket:size=3000B", 670 + 80),
    # Bucket 1 becomes two pieces of 60 ns. Its gradients come from one kernel only.
    ("bucket:size=1000B", 690),
    # A ring of p ranks sends 2 (p - 1) / p of the buffer: 1 for two ranks, 1.5 for four.
    ("ranks:count=4", 690 + 60),
]
SLOW_SPANS = [
    # Only the pause of 500 ns is longer than 400 ns.
    ("set:longer=400ns,lane=host,rank=1,to=20ns", 690 + 20),
    # A pause that is there is replaced.
    ("gap:before=launch layer 0/up forward,to=20ns,rank=1", 690 + 20),
    # The launches of 10 ns take nothing, the pause of 500 ns stays.
    ("host_overhead:up_to=10ns", 690 + 500 - 10),
    ("no_straggler:rank=1", 690),
    # The first batch is there when the job starts.
    ("prefetch:match=load batch", 690),
    # `load batch` plays the part of an allocation.
    ("no_stalls:match=load", 690),
]


@pytest.mark.parametrize(("text", "expected_ns"), SPANS)
def test_it_takes_as_long_as_on_paper(text, expected_ns):
    assert span_ns(ask(text)) == expected_ns


@pytest.mark.parametrize(("text", "expected_ns"), SLOW_SPANS)
def test_it_takes_as_long_as_on_paper_with_a_rank_that_starts_500_ns_late(text, expected_ns):
    slow = training_job(slow_rank=1)
    assert span_ns(slow) == 690 + 500

    assert span_ns(ask(text, slow)) == expected_ns


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        ("fuse:match=norm|gelu", "layer 0/norm forward", (110, 170)),
        ("recompute", "recompute layer 0/up forward", (190, 290)),
        ("bucket:size=3000B", "bucket 1", (490, 670)),
        # The last launch is at 90; the pause of 1000 ns makes `step b` start at 1090.
        (
            "gap:before=optimizer/step b,lane=compute,to=1us,rank=0",
            "optimizer/step b",
            (1090, 1140),
        ),
        # Another machine prices known work and keeps the rest.
        ("machine:topology=dgx_h100", "load batch", (0, 0)),
        ("machine:topology=dgx_h100", "launch layer 0/up forward", (0, 10)),
        # Launches go with what they launch.
        ("remove:match=all_reduce", "launch bucket 0", None),
        ("fuse:match=norm|gelu", "launch layer 0/gelu forward", None),
        ("optimizer:kind=fused,traffic=0.5", "launch optimizer/step b", None),
        ("optimizer:kind=foreach", "optimizer/step b", None),
    ],
)
def test_a_task_runs_when_it_does_on_paper_or_is_gone(text, label, expected):
    assert times(ask(text)).get(f"0/{label}") == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Half the bytes of a number make products twice as fast.
        (["dtype:to=bf16"], ["scale:match=gemm,factor=0.5"]),
        (["recompute", "remove:match=recompute"], []),
        (["machine:topology=dgx_h100,was=dgx_h100"], []),
    ],
)
def test_two_ways_to_say_it_give_the_same_times(one, other):
    first, second = (
        apply_all(training_job(), [parse_transformation(text) for text in texts])
        for texts in (one, other)
    )
    assert times(first) == times(second)


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("bucket:size=3000B", [3000]), ("bucket:size=1000B", [1000, 1000, 1000]),
    ],
)  # fmt: skip
def test_collectives_carry_what_is_asked(text, carried):
    assert sizes(ask(text)) == carried


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        # `down backward` and `step a` are neighbours, but `step a` waits for the buckets.
        ("fuse:match=down backward|step a", ScenarioError, "touches no task"),
        ("ranks:count=3", ScenarioError, "multiple of the 2 ranks"),
        ("scale:match=convolution,factor=2", ScenarioError, "no task is like 'conv.*There are"),
        ("remove:match=bucket 1,rank=0", GraphError, "rank 0 lacks all_reduce"),
        ("scale:match=gemm,factor=2,rank=7", ScenarioError, "the job has ranks 0 to 1"),
        ("scale:match=batch_norm,factor=2", ScenarioError, "There are 'layer 0/norm forward'"),
        (
            "scale:match=batch_norm,lane=host,factor=2",
            ScenarioError,
            "There are 'load batch', 'launch layer 0/norm",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(text, error, words):
    with pytest.raises(error, match=words):
        ask(text)


def test_scaling_one_rank_makes_the_other_wait():
    # Rank 1 is 400 ns slower; both meet in the buckets.
    job = ask("scale:match=gemm,factor=2,rank=1")

    assert span_ns(job) == 690 + 400
    assert len(job.programs) == 2
    assert times(job)["0/bucket 1"] == times(job)["1/bucket 1"]


def test_a_changed_duration_is_assumed_and_an_unchanged_one_recorded():
    job = ask("scale:match=gemm,factor=0.5")
    program = job.programs[0]

    pairs = zip(program.op.tolist(), program.label.tolist(), strict=True)
    kinds = {job.labels[label]: job.ops[op].provenance for op, label in pairs}
    assert kinds["layer 0/up forward"] is Provenance.ASSUMED
    assert kinds["layer 0/norm forward"] is Provenance.RECORDED


def test_products_are_priced_by_shape_where_a_machine_is_named():
    # In fp32 and in tf32 on the same machine: the ratio of two predictions, never slower.
    job = ask("dtype:to=bf16,topology=dgx_h100")

    assert span_ns(job) <= 690
    assert "Changed tasks are scaled by the ratio of predictions for dgx_h100." in (
        job.facts.assumptions
    )
    start_ns, end_ns = times(ask("machine:topology=dgx_h100"))["0/layer 0/up forward"]
    assert end_ns - start_ns > 1000


def test_a_larger_batch_costs_nothing_in_the_optimizer_and_less_below_the_floor():
    # Compute 480 ns beyond a floor of 20 ns in five kernels doubles: 10 + 2 x 480 - 5 x 20.
    # The buckets double too; bucket 1 starts when compute has ended.
    job = ask("batch:factor=2,floor=20ns")

    compute_end = 10 + 2 * 480 - 5 * 20
    assert times(job)["0/layer 0/down backward"][1] == compute_end
    assert span_ns(job) == compute_end + (2 * 120 - 20) + 80


def enlarged(waves, factor, work=None):
    """102 ns of a kernel of so many *waves*, 2 of them its floor, with *factor* times the batch."""
    kernel = Fixed("device work", 102, work=work, waves=waves)
    return enlarge(kernel, (), factor=factor, beyond_ns=2)


@pytest.mark.parametrize(
    ("waves", "factor", "takes_ns"),
    [
        # It fills a quarter of the device, then half of it.
        (0.25, 2, 102),
        # It fills half of the device, then two of it: twice the 100 ns beyond the floor.
        (0.5, 4, 202),
        (4, 2, 202),
        # Of four waves one is left, and then only a part of one.
        (4, 0.25, 27),
        (4, 0.1, 27),
    ],
)
def test_a_kernel_that_does_not_fill_the_device_does_not_grow_with_the_batch(
    waves, factor, takes_ns
):
    grown = enlarged(waves, factor)
    assert (grown.duration_ns, grown.waves) == (takes_ns, waves * factor)


@given(st.floats(0.01, 100), st.floats(0, 8), st.floats(0, 8))
def test_more_samples_never_take_less_time(waves, one, other):
    few, many = (enlarged(waves, factor).duration_ns for factor in sorted((one, other)))
    assert few <= many


def test_a_larger_batch_moves_more_bytes():
    half = MemoryBound("relu", 600, 300, DType.FP32)
    assert enlarged(1, 2, half).work == MemoryBound("relu", 1200, 600, DType.FP32)
    product = enlarged(1, 2, Gemm(10, 20, 30, DType.FP32)).work
    assert product == Gemm(20, 20, 30, DType.FP32)


def test_one_rank_alone_gets_a_pause():
    paused = ask("gap:before=optimizer/step b,lane=compute,to=1us,rank=0")
    assert times(paused)["1/optimizer/step b"] == (640, 690)


def test_more_ranks_join_the_group():
    job = ask("ranks:count=4")

    assert job.rank_count == 4
    assert job.groups[0].ranks == (0, 1, 2, 3)


def test_groups_that_are_not_data_parallel_are_cloned():
    sketch = JobSketch()
    for _ in range(4):
        rank = sketch.rank(stream=LaneKind.COMMUNICATION)
        rank.meet("tensor", "stream", 10, slot=0)
        rank.meet("data", "stream", 30, slot=1)
    for name, pairs, slot in (("tensor", [(0, 1), (2, 3)], 0), ("data", [(0, 2), (1, 3)], 1)):
        for pair in pairs:
            sketch.group(*pair, slot=slot, name=f"{name} {pair}")
    job, _ = sketch.build()

    grown = parse_transformation("ranks:count=8,groups=data").apply(job)

    assert [group.ranks for group in grown.groups] == [
        (0, 1), (4, 5), (2, 3), (6, 7), (0, 2, 4, 6), (1, 3, 5, 7),
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match="with `groups`"):
        ask("ranks:count=8", job)
    # Nobody says what the collectives carry, so that more ranks would cost nothing.
    with pytest.raises(ScenarioError, match=r"only 0\.0% of the time of collectives.*--force"):
        ask("ranks:count=8,groups=data", job)
