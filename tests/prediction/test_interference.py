"""Collectives that overlap on a link slow each other down, and kernels that overlap them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from perfmodel.costs.estimates import Bound
from perfmodel.costs.interference import NOTHING_SLOWED, GenerationSlowdowns, Phase
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.replay import find_period, replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_shared_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Dependency, LaneKind
from perfmodel.prediction import interference as interfering
from perfmodel.prediction.interference import (
    FoldedCosts,
    contention_rules,
    fold_costs,
    overlap_losses,
    settle_costs,
)
from perfmodel.prediction.overlaps import find_overlaps
from tests.builders import job_of
from tests.strategies import JobSize, jobs

GPU_LINK, NIC, NO_LINK = (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)
GEMM = FAMILIES.index("gemm")


def slowdowns(*, waiting: float = 1.0, moving: float = 1.0) -> GenerationSlowdowns:
    factors = {Phase.WAITING: waiting, Phase.MOVING: moving}
    return GenerationSlowdowns(
        "made up", {("gemm", phase): factor for phase, factor in factors.items()}
    )


def settle_interference(replayer, folded: FoldedCosts) -> FoldedCosts:
    return settle_costs(replayer, folded, contention_rules(folded.priced))


def price(job, durations, *, use=None, slowed=None) -> FoldedCosts:
    """Every task as a product; *use* is the use of links by label."""
    count = len(durations.values_ns)
    link_use = np.zeros((count, 2))
    for rank in range(job.rank_count):
        for task in range(job.program_of(rank).task_count):
            row = int(durations.rank_offset[rank]) + task
            link_use[row] = (use or {}).get(job.label_of(rank, task), NO_LINK)
    priced = PricedJob(
        job=job,
        durations=durations,
        float_ns=durations.values_ns[:, 0].astype(np.float64),
        relative_sigma=np.zeros(count),
        provenance=np.zeros(count, dtype=np.int8),
        family=np.full(count, GEMM, dtype=np.int8),
        bound=np.full(count, Bound.LINK, dtype=np.int8),
        link_use=link_use,
        slowdowns=slowed or slowdowns(),
    )
    return FoldedCosts(priced, tuple((rank,) for rank in range(job.rank_count)))


def two_collectives(first_use, second_use, *, second_after_ns: int = 0) -> FoldedCosts:
    """Two ranks that make two all-reduces of 1000 ns on two streams."""
    made = job_of(
        f"2 x gpu before {second_after_ns}; wire *first 1000 <^before;"
        "wire2 *second@1 1000 <before; gpu after 0 <first <second"
    )
    return price(*made, use={"first": first_use, "second": second_use})


def beside_all_reduce(*, arrivals_ns=(400, 400), slowed) -> FoldedCosts:
    """Ranks that work, then make an all-reduce of 600 ns during a GEMM of 1000 ns."""
    ranks = (
        f"gpu first {arrival_ns}; wire *reduce 600 <first; gpu second 1000; gpu *barrier 0"
        for arrival_ns in arrivals_ns
    )
    return price(*job_of(*ranks), slowed=slowed)


def settled_ns(folded: FoldedCosts) -> dict[str, float]:
    """Durations by `rank/label` once everything stands still."""
    priced = settle_interference(replay, folded).priced
    return {
        f"{rank}/{priced.job.label_of(rank, task)}": float(
            priced.float_ns[int(priced.durations.rank_offset[rank]) + task]
        )
        for rank in range(priced.job.rank_count)
        for task in range(priced.job.program_of(rank).task_count)
    }


def period_ns(folded: FoldedCosts) -> int:
    priced = folded.priced
    return int(find_period(replay, priced.job, priced.durations).period_ns[0])


@pytest.mark.parametrize(
    ("uses", "second_after_ns", "time_ns"),
    [
        # On one NIC each gets half of the wire all the time: 2 x 1000.
        ((NIC, NIC), 0, 2000),
        # The first runs 0-500 alone, has 500 left and shares until 1500; the second has shared
        # 1000 by then, that is 500 of work, and ends at 2000.
        ((NIC, NIC), 500, 1500),
        # Different links, 0.4 + 0.5 of one, and one after the other: both fit.
        ((NIC, GPU_LINK), 0, None),
        (((0.0, 0.4), (0.0, 0.5)), 0, None),
        ((NIC, NIC), 3000, None),
    ],
)
def test_collectives_share_a_link_while_they_overlap_on_it(uses, second_after_ns, time_ns):
    folded = two_collectives(*uses, second_after_ns=second_after_ns)
    times = settled_ns(folded)
    for task in ("0/first", "1/second", "0/second"):
        assert times[task] == (1000 if time_ns is None else pytest.approx(time_ns, rel=1e-3))
    is_same = settle_interference(replay, folded).priced is folded.priced
    assert is_same is (time_ns is None)


@pytest.mark.parametrize(
    ("second_ns", "after_ns", "times_ns"),
    [
        # Both have half of the device until the shorter one ends.
        (1000, 0, (2000, 2000)),
        (400, 0, (1400, 800)),
        # 600 are done alone; the rest and the second share it from there on.
        (1000, 600, (1400, 1400)),
        (1000, 1000, (1000, 1000)),
    ],
)
def test_kernels_on_two_streams_share_the_device(second_ns, after_ns, times_ns):
    made = job_of(
        f"host before {after_ns}; gpu first 1000; side second {second_ns} <before;"
        "gpu end 0 <second; host last 0 <end"
    )
    times = settled_ns(price(*made, slowed=slowdowns(moving=1.5)))
    assert (times["0/first"], times["0/second"]) == pytest.approx(times_ns, rel=1e-3)


def test_a_product_beside_a_collective_advances_at_the_pace_it_is_left_with():
    # Both start at 400. Until 1000 the product advances at 1/2 and gets 300 of
    # its 1000 done; the other 700 run alone: 600 + 700 = 1300. The lane then
    # takes 400 + 1300 an iteration instead of 400 + 1000.
    folded = beside_all_reduce(slowed=slowdowns(moving=2.0))
    times = settled_ns(folded)
    assert times == {
        f"{rank}/{label}": length_ns
        for rank in (0, 1)
        for label, length_ns in (("first", 400), ("second", 1300), ("reduce", 600), ("barrier", 0))
    }
    assert period_ns(folded) == 1400
    assert period_ns(settle_interference(replay, folded)) == 1700


def test_a_collective_that_waits_for_others_already_holds_its_share():
    # Rank 0 is ready at 400, rank 1 at 700. On rank 0 the product advances at
    # 1/1.25 for 300 ns (240 done), at 1/2 for 600 (300 done) and has 460 left:
    # 300 + 600 + 460. On rank 1 nothing waits: 600 + 700 as above.
    folded = beside_all_reduce(arrivals_ns=(400, 700), slowed=slowdowns(waiting=1.25, moving=2.0))
    first = settle_interference(replay, folded)
    priced = first.priced
    timeline = replay(priced.job, priced.durations).last
    assert timeline.end_ns[:, 0].max() == 2000
    assert settled_ns(folded)["0/second"] == pytest.approx(1360)
    assert settled_ns(folded)["1/second"] == pytest.approx(1300)


def test_a_chain_of_products_is_slowed_only_as_far_as_the_collective_reaches():
    # Ten products of 100 start with a collective of 600: at half pace three of
    # them fit into it, and seven run alone after it.
    products = "".join(f"; gpu product{number} 100" for number in range(10))
    made = job_of(f"2 x gpu first 400; wire *reduce 600 <first{products}")
    times = settled_ns(price(*made, slowed=slowdowns(moving=2.0)))
    assert [times[f"0/product{number}"] for number in range(10)] == [200] * 3 + [100] * 7


def test_kernels_see_collectives_of_the_next_iteration():
    # The collective of the next iteration starts when `early` ends, beside
    # `late`: 300 ns at half pace do 150 of its 500, and 350 are left: 650.
    made = job_of("2 x gpu early 500; gpu late 500; wire *fetch 300 <early-1")
    times = settled_ns(price(*made, slowed=slowdowns(moving=2.0)))
    assert times["0/early"] == 500
    assert times["0/late"] == 650


def test_without_overlap_nothing_moves_by_a_nanosecond():
    made = job_of("2 x gpu first 400; wire *reduce 600 <first; gpu second 1000 <reduce")
    folded = price(*made, slowed=slowdowns(waiting=1.5, moving=2.0))
    settled = settle_interference(replay, folded)
    assert settled.priced is folded.priced
    assert not settled.has_losses


def test_ranks_that_share_prices_may_lose_differently():
    # Ranks 0, 1 and 3 run one program at one price. Rank 0 meets rank 2, which
    # comes 300 ns later, and waits; ranks 1 and 3 meet each other and do not.
    builder, programs = JobBuilder(), []
    for arrival_ns in (400, 700):
        program = builder.new_program()
        gpu = program.add_lane("gpu", LaneKind.COMPUTE)
        wire = program.add_lane("wire", LaneKind.COMMUNICATION)
        first = program.add_task(gpu, Fixed("first", arrival_ns), label="first")
        program.add_task(
            wire, Fixed("reduce", 600), label="reduce", slot=0, after=[Dependency(first)]
        )
        program.add_task(gpu, Fixed("second", 1000), label="second")
        program.add_task(gpu, Fixed("barrier", 0), label="barrier", slot=1)
        programs.append(builder.add_program(program.build()))
    for number in (0, 0, 1, 0):
        builder.add_rank(programs[number])
    for name, ranks, slot in (("late", (0, 2), 0), ("early", (1, 3), 0), ("all", range(4), 1)):
        builder.add_group(name, ranks, slot=slot)
    job = builder.build(JobFacts("shared"))
    rows = [
        np.array([job.ops[op].duration_ns for op in program.op], dtype=np.int64)
        for program in job.programs
    ]
    folded = price(
        job, build_shared_durations(job, rows), slowed=slowdowns(waiting=1.25, moving=2.0)
    )
    assert folded.priced.durations.rank_offset.tolist() == [0, 0, 4, 0]

    slowed = settle_interference(replay, folded).priced
    times = settled_ns(folded)
    assert times["0/second"] == pytest.approx(1360)
    assert times["1/second"] == times["3/second"] == pytest.approx(1300)
    # Those that lost the same still share what they cost.
    offsets = slowed.durations.rank_offset.tolist()
    assert offsets[1] == offsets[3] != offsets[0]


@given(made=jobs(JobSize(vectors=1)))
def test_interference_never_makes_a_task_or_an_iteration_shorter(made):
    job, durations = made
    folded = price(job, durations, slowed=slowdowns(waiting=1.3, moving=1.9))
    slowed = settle_interference(replay, folded).priced

    before = replay(job, durations, iterations=3)
    after = replay(job, slowed.durations, iterations=3)
    assert (after.iteration_end_ns >= before.iteration_end_ns).all()
    for rank in range(job.rank_count):
        assert (slowed.durations.of_rank(job, rank) >= durations.of_rank(job, rank)).all()


@given(made=jobs(JobSize(vectors=1)))
def test_recorded_kernels_keep_their_nanoseconds(made):
    folded = price(*made, slowed=NOTHING_SLOWED)
    assert settle_interference(replay, folded).priced is folded.priced


@given(made=jobs(JobSize(vectors=1)))
def test_folded_ranks_lose_what_they_lose_unfolded(made):
    job, durations = made
    whole = price(job, durations, slowed=slowdowns(waiting=1.3, moving=1.9))
    folded = fold_costs(whole.priced)
    alone, classes = (settle_interference(replay, one) for one in (whole, folded))
    for place, ranks in enumerate(classes.class_ranks):
        expected = classes.priced.durations.of_rank(classes.priced.job, place)
        for rank in ranks:
            assert (alone.priced.durations.of_rank(job, rank) == expected).all()
    assert replace(classes, priced=folded.priced).class_ranks == folded.class_ranks


def test_losses_to_the_next_iteration_delay_what_follows_on_the_lane():
    # `fetch` of the next iteration runs beside `late`: 650 ns instead of 500. `tail` therefore
    # starts with `reduce`, and its 100 ns take 200; without that delay it would end before.
    made = job_of(
        "2 x gpu early 500; gpu late 500; gpu tail 100; wire *fetch 300 <early-1;"
        "wire2 *reduce@1 250 <late; gpu end 1000"
    )
    times = settled_ns(price(*made, slowed=slowdowns(moving=2.0)))
    assert times["0/late"] == pytest.approx(650, rel=1e-2)
    assert times["0/tail"] == pytest.approx(200, rel=1e-2)


def test_overlaps_that_swap_places_come_to_rest_half_way():
    # Found by trying: without damping the last of eight rounds still moves it by 1.5 %.
    ranks = (
        f"gpu a {a_ns}; wire *first 600; gpu b 700 <first; side s 1000 <a; wire *second 600 <s;"
        "side d 500; gpu e 700"
        for a_ns in (700, 1100)
    )
    folded = price(*job_of(*ranks), slowed=slowdowns(waiting=1.5, moving=1.5))
    settled = settle_interference(replay, folded)
    assert settled.is_settled
    assert settled.has_losses


@pytest.mark.parametrize(
    ("spans", "use", "shares"),
    [
        ([], [], []),
        # Two that ask all of a link all the time get half of it each, also for a nanosecond.
        ([(0, 10), (0, 10)], [1.0, 1.0], [0.5, 0.5]),
        ([(0, 1), (0, 1)], [1.0, 1.0], [0.5, 0.5]),
        ([(0, 900)] * 3, [1.0] * 3, [2 / 3] * 3),
        # The second overlaps for a quarter of its time, and the first for half of it.
        ([(0, 10), (5, 25)], [1.0, 1.0], [0.25, 0.125]),
        # 0.5 + 1 is asked: the call that uses the link all the time loses a third, the one that
        # uses it half of the time half of that.
        ([(0, 10), (0, 10)], [0.5, 1.0], [1 / 6, 1 / 3]),
        # One that asks for twice what there is has lost half alone.
        ([(0, 10), (20, 30)], [2.0, 1.0], [0.5, 0.0]),
        ([(0, 10), (0, 10)], [0.4, 0.6], [0.0, 0.0]),
        # What takes no time loses none, and whoever comes as the other goes neither.
        ([(5, 5), (0, 10), (10, 20)], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    ],
)
def test_the_worst_link_decides_what_an_interval_loses(spans, use, shares):
    moments = np.array(spans, dtype=np.int64).reshape(-1, 2)
    links = np.column_stack([np.array(use) / 4, np.array(use)])
    lost = overlap_losses(moments[:, 0], moments[:, 1], links)
    assert lost == pytest.approx(shares)


def tailed(slowed) -> FoldedCosts:
    """As `beside_all_reduce`, with 300 ns of host work at the end of every iteration."""
    words = "2 x gpu first 400; wire *reduce 600 <first; gpu second 1000; host tail 300 <second"
    return price(*job_of(words), slowed=slowed)


def test_a_round_is_the_last_when_the_third_iteration_stands_still(monkeypatch):
    folded, replays = tailed(slowdowns(moving=2.0)), []

    def count(job, durations, iterations):
        replays.append(iterations)
        return replay(job, durations, iterations)

    # The first round finds the losses, the second that they are right, the third that all is.
    settled = settle_interference(count, folded)
    assert (settled.rounds, settled.moved_ratio) == (3, 0.0)
    assert replays == [3, 3, 3]
    # Three iterations and the tail take 3 x 1400 + 300, then 3 x 1700 + 300: 900 of 5400 more.
    monkeypatch.setattr(interfering, "MOST_ROUNDS", 2)
    stopped = settle_interference(replay, folded)
    assert (stopped.rounds, stopped.moved_ratio) == (2, 900 / 5400)
    assert not stopped.is_settled


def test_no_more_than_eight_rounds_are_tried(monkeypatch):
    monkeypatch.setattr(interfering, "STILL_RATIO", 0.0)
    assert settle_interference(replay, tailed(slowdowns(moving=2.0))).rounds == 8


def test_nothing_is_replayed_where_nothing_can_interfere():
    for folded in (
        price(*job_of("gpu alone 400"), slowed=slowdowns(moving=2.0)),
        beside_all_reduce(slowed=slowdowns()),
        beside_all_reduce(slowed=GenerationSlowdowns("none", {})),
    ):
        assert settle_interference(replay, folded).rounds == 0
    unlinked = two_collectives(NO_LINK, NO_LINK)
    assert settle_interference(replay, unlinked).rounds == 0
    # Collectives on one lane never overlap.
    in_line = price(*job_of("2 x wire *reduce 600"), use={"reduce": NIC})
    assert settle_interference(replay, in_line).rounds == 0


def test_what_a_collective_loses_is_not_lost_by_the_next_of_its_group():
    made = job_of(
        "2 x wire *first 1000; wire2 *second@1 1000; wire *third 1000 <second; wire *fourth 1000;"
        "gpu after 0 <fourth; wire2 *barrier@1 0 <after"
    )
    times = settled_ns(price(*made, use=dict.fromkeys(("first", "second", "third", "fourth"), NIC)))
    assert times["0/first"] == times["1/second"] == pytest.approx(2000, rel=1e-3)
    assert times["0/third"] == times["1/fourth"] == 1000


def test_a_lane_of_one_kernel_is_slowed_too():
    # 600 ns at half pace do 300 of its 1000.
    made = job_of("2 x gpu work 1000; wire *reduce 600; wire *barrier 0 <work")
    times = settled_ns(price(*made, slowed=slowdowns(moving=2.0)))
    assert times["0/work"] == times["1/work"] == 1300


def test_who_moves_bytes_outweighs_who_waits():
    # One collective waits from 0 to 100 and moves until 200, another moves from 50 to 150.
    calls = np.array([(0, 0), (0, 50), (100, 50), (200, 150)], dtype=np.int64)
    found = find_overlaps(calls, 1)
    phases = dict(zip(found.moments_ns.tolist(), found.phase.tolist(), strict=True))
    assert phases == {
        0: Phase.WAITING,
        50: Phase.MOVING,
        100: Phase.MOVING,
        150: Phase.MOVING,
        200: Phase.NONE,
    }


def test_the_link_that_is_asked_for_more_decides():
    # Together 1.5 of the first link and 1.2 of the second: 1 - 1/1.5 is more than
    # 1 - 1/1.2, of the share of time that each uses the link.
    starts, ends = np.zeros(2, dtype=np.int64), np.full(2, 600, dtype=np.int64)
    use = np.array([[1.0, 0.2], [0.5, 1.0]])
    assert overlap_losses(starts, ends, use) == pytest.approx([1 / 3, 1 / 6])
