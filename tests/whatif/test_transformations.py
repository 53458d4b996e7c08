"""Every transformation on a job small enough to work out on paper.

The job is described in `tests.whatif.jobs`: it takes 690 ns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import GraphError, ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.graph.job import Origin, with_own_origins
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import LaneKind
from perfmodel.whatif import apply_all, parse_transformation
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.transformation import apply_one
from tests.builders import JobSketch
from tests.whatif.jobs import span_ns, times, training_job


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
    mask = Selection(Pattern(pattern), LaneWord.DEVICE).mask(named, named.programs[0])

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


def test_names_that_are_offered_stand_on_the_lane_that_was_asked():
    with pytest.raises(ScenarioError, match="There are 'load batch', 'launch layer 0/norm"):
        ask("scale:match=batch_norm,lane=host,factor=2")
    with pytest.raises(ScenarioError, match="There are 'layer 0/norm forward'"):
        ask("scale:match=batch_norm,factor=2")


def test_the_job_takes_what_its_description_says():
    at = times(training_job())

    assert at["0/layer 0/up forward"] == (10, 110)
    assert at["0/layer 0/up backward"] == (190, 390)
    assert at["0/bucket 0"] == (390, 450)
    assert at["0/bucket 1"] == (490, 610)
    assert at["1/optimizer/step b"] == (640, 690)


def test_faster_products_shorten_the_path():
    # Forward 10..140, backward 140..240..290; bucket 0 240..300, bucket 1 behind it 300..420.
    assert span_ns(ask("scale:match=gemm,factor=0.5")) == 420 + 80


def test_scaling_one_rank_makes_the_other_wait():
    # Rank 1 is 400 ns slower; both meet in the buckets.
    job = ask("scale:match=gemm,factor=2,rank=1")

    assert span_ns(job) == 690 + 400
    assert len(job.programs) == 2
    assert times(job)["0/bucket 1"] == times(job)["1/bucket 1"]


def test_a_changed_duration_is_assumed_and_an_unchanged_one_recorded():
    job = ask("scale:match=gemm,factor=0.5")

    kinds = {
        job.labels[label]: job.ops[op].provenance
        for op, label in zip(
            job.programs[0].op.tolist(), job.programs[0].label.tolist(), strict=True
        )
    }
    assert kinds["layer 0/up forward"] is Provenance.ASSUMED
    assert kinds["layer 0/norm forward"] is Provenance.RECORDED


def test_a_duration_can_be_set_for_the_second_task_that_matches():
    # Of the products (100, 200, 100 ns) number 1 takes 50: 690 - 150.
    assert span_ns(ask("set:match=gemm,lane=device,number=1,to=50ns")) == 540


def test_only_tasks_longer_than_a_limit_are_set():
    # On the slow rank only the pause of 500 ns is longer than 400 ns.
    job = ask("set:longer=400ns,lane=host,rank=1,to=20ns", training_job(slow_rank=1))

    assert span_ns(job) == 690 + 20


def test_removed_collectives_leave_the_optimizer_behind_the_backward_pass():
    # The backward pass ends at 490, the optimizer takes 80.
    job = ask("remove:match=all_reduce")

    assert span_ns(job) == 570
    assert "0/launch bucket 0" not in times(job)


def test_deleted_layers_leave_only_what_is_not_theirs():
    job = ask("delete_layers:match=layer 0/")

    # Launches remain for two buckets and two updates: bucket 0 10..70, bucket 1 70..190.
    assert sorted(times(job)) == sorted(
        f"{rank}/{label}" for rank in (0, 1) for label in (
            "load batch", "launch bucket 0", "launch bucket 1", "launch optimizer/step a",
            "launch optimizer/step b", "bucket 0", "bucket 1", "optimizer/step a",
            "optimizer/step b",
        )
    )  # fmt: skip
    assert span_ns(job) == 190 + 80


def test_fused_kernels_read_once_and_write_once():
    # norm and gelu move 400 + 400 bytes in 80 ns; fused they read 300 and write 300: 60 ns.
    job = ask("fuse:match=norm|gelu")

    assert span_ns(job) == 690 - 20
    assert times(job)["0/layer 0/norm forward"] == (110, 170)
    assert "0/launch layer 0/gelu forward" not in times(job)


def test_kernels_are_not_fused_across_a_wait_for_another_stream():
    # `down backward` and `step a` are neighbours, but `step a` waits for the buckets.
    with pytest.raises(ScenarioError, match="touches no task"):
        ask("fuse:match=down backward|step a")


def test_a_fused_optimizer_is_one_kernel_with_one_launch():
    job = ask("optimizer:kind=fused,traffic=0.5")

    # 30 + 50 ns, half of it.
    assert span_ns(job) == 610 + 40
    assert "0/launch optimizer/step b" not in times(job)


def test_a_foreach_optimizer_joins_kernels_of_one_name():
    assert span_ns(ask("optimizer:kind=foreach")) == 690
    assert "0/optimizer/step b" not in times(ask("optimizer:kind=foreach"))


def test_half_the_bytes_of_a_number_make_products_twice_as_fast():
    assert times(ask("dtype:to=bf16")) == times(ask("scale:match=gemm,factor=0.5"))


def test_products_are_priced_by_shape_where_a_machine_is_named():
    # In fp32 and in tf32 on the same machine: the ratio of two predictions, never slower.
    job = ask("dtype:to=bf16,topology=dgx_h100")

    assert span_ns(job) <= 690
    assert "Changed tasks are scaled by the ratio of predictions for dgx_h100." in (
        job.facts.assumptions
    )


def test_a_larger_batch_costs_nothing_in_the_optimizer_and_less_below_the_floor():
    # Compute 480 ns beyond a floor of 20 ns in five kernels doubles: 10 + 2 x 480 - 5 x 20.
    # The buckets double too; bucket 1 starts when compute has ended.
    job = ask("batch:factor=2,floor=20ns")

    compute_end = 10 + 2 * 480 - 5 * 20
    assert times(job)["0/layer 0/down backward"][1] == compute_end
    assert span_ns(job) == compute_end + (2 * 120 - 20) + 80


def test_recomputed_layers_run_forward_again_before_their_backward_pass():
    job = ask("recompute")

    # 100 + 40 + 40 ns more, on a device that is never short of launches.
    assert span_ns(job) == 690 + 180
    assert times(job)["0/recompute layer 0/up forward"] == (190, 290)


def test_without_recomputation_the_job_is_what_it_was():
    again = ask("no_recompute", ask("recompute"))

    assert times(again) == times(training_job())


def test_without_host_time_the_device_starts_at_once():
    assert span_ns(ask("host_overhead")) == 680
    assert span_ns(ask("host_overhead:factor=0.5")) == 685


def test_a_graph_is_one_launch_for_all_kernels():
    job = ask("cuda_graphs:launch=25ns", training_job(slow_rank=1))

    # Loading stood before the first launch and is part of what falls away.
    assert span_ns(job) == 690 - 10 + 25
    assert [label for label in times(job) if label.startswith("1/graph")] == ["1/graph launch"]


def test_a_pause_is_put_before_the_launch_of_a_device_task():
    # The last launch is at 90; the pause of 1000 ns makes `step b` start at 1090.
    job = ask("gap:before=optimizer/step b,lane=compute,to=1us,rank=0")

    assert times(job)["0/optimizer/step b"] == (1090, 1140)
    assert times(job)["1/optimizer/step b"] == (640, 690)


def test_a_pause_that_is_there_is_replaced():
    job = ask("gap:before=launch layer 0/up forward,to=20ns,rank=1", training_job(slow_rank=1))

    assert span_ns(job) == 690 + 20


def test_a_straggler_takes_as_long_as_the_others():
    slow = training_job(slow_rank=1)
    assert span_ns(slow) == 690 + 500

    assert span_ns(ask("no_straggler:rank=1", slow)) == 690


def test_small_buckets_are_joined_and_wait_for_the_last_gradient():
    job = ask("bucket:size=3000B")

    # 1000 and 2000 bytes make 3000; 60 + 120 ns one after the other, from 490 on.
    assert sizes(job) == [3000]
    assert times(job)["0/bucket 1"] == (490, 670)
    assert span_ns(job) == 670 + 80


def test_large_buckets_are_cut_and_start_with_the_first_gradients():
    job = ask("bucket:size=1000B")

    # Bucket 1 becomes two pieces of 60 ns. Its gradients come from one kernel only.
    assert sizes(job) == [1000, 1000, 1000]
    assert span_ns(job) == 690


def test_collectives_can_be_made_to_take_turns_with_kernels():
    job = ask("serialise")

    # bucket 0 390..450, down backward 450..550, bucket 1 550..670.
    assert times(job)["0/layer 0/down backward"] == (450, 550)
    assert span_ns(job) == 670 + 80


def test_overlap_undoes_taking_turns():
    # The optimizer waits for the buckets again, and nothing else does.
    assert times(ask("overlap:until=optimizer/step a", ask("serialise"))) == times(training_job())


def test_compressed_collectives_carry_fewer_bytes():
    job = ask("compress:ratio=0.5")

    # bucket 1 takes 60 ns instead of 120.
    assert sizes(job) == [500, 1000]
    assert span_ns(job) == 690 - 60


def test_quantised_collectives_carry_shorter_numbers():
    job = ask("quantise:to=fp8")

    assert sizes(job) == [250, 500]
    assert span_ns(job) == 690 - 90


def test_more_ranks_send_more_around_the_ring():
    job = ask("ranks:count=4")

    # A ring of p ranks sends 2 (p - 1) / p of the buffer: 1 for two ranks, 1.5 for four.
    assert job.rank_count == 4
    assert job.groups[0].ranks == (0, 1, 2, 3)
    assert span_ns(job) == 690 + 60


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


def test_ranks_are_cloned_in_whole_copies_only():
    with pytest.raises(ScenarioError, match="multiple of the 2 ranks"):
        ask("ranks:count=3")


def test_another_machine_prices_known_work_and_keeps_the_rest():
    job = ask("machine:topology=dgx_h100")

    at = times(job)
    assert at["0/load batch"] == (0, 0)
    assert at["0/launch layer 0/up forward"] == (0, 10)
    assert at["0/layer 0/up forward"][1] - at["0/layer 0/up forward"][0] > 1000


def test_the_same_machine_changes_nothing():
    assert times(ask("machine:topology=dgx_h100,was=dgx_h100")) == times(training_job())


def test_prefetched_input_is_off_the_path():
    job = ask("prefetch:match=load batch", training_job(slow_rank=1))

    # The first batch is there when the job starts.
    assert span_ns(job) == 690


def test_stalls_neither_take_time_nor_wait():
    # `load batch` of the slow rank plays the part of an allocation.
    assert span_ns(ask("no_stalls:match=load", training_job(slow_rank=1))) == 690


def test_a_pattern_that_matches_nothing_is_refused_with_labels_that_exist():
    with pytest.raises(ScenarioError, match=r"no task is like 'convolution'.*There are"):
        ask("scale:match=convolution,factor=2")


def test_a_collective_removed_on_one_rank_only_is_refused():
    with pytest.raises(GraphError, match=r"#1: rank 0 lacks all_reduce"):
        ask("remove:match=bucket 1,rank=0")


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(ScenarioError, match="the job has ranks 0 to 1"):
        ask("scale:match=gemm,factor=2,rank=7")
