"""What layouts are made of: sizes of groups, stages, micro-batches and the rest, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.planning.layouts import candidates
from perfmodel.planning.layouts.candidates import (
    _complete,
    _divides,
    _iter_changes,
    _iter_further,
    _iter_rest,
    _micro_batches,
    _powers,
    _stage_counts,
    _tensor_sizes,
)
from perfmodel.workloads.transformer.spec import Recompute, StateSharding


def spec(
    *, batch: int = 64, sequence_length: int = 1024, recompute: Any = None, **more: Any
) -> Any:
    """A workload of which only what is asked for is there."""
    model = {"layers": 8, "heads": 16, "experts": 0, "has_experts": False}
    parallel = {"tp": None, "pp": None, "cp": 1, "ep": 1, "micro_batch": None, "interleaving": 1,
                "sharding": StateSharding.ZERO2, "sequence_parallel": None}  # fmt: skip
    return SimpleNamespace(
        batch=batch,
        sequence_length=sequence_length,
        model=SimpleNamespace(**{key: more.get(key, value) for key, value in model.items()}),
        parallel=SimpleNamespace(**{key: more.get(key, value) for key, value in parallel.items()}),
        training=SimpleNamespace(recompute=recompute),
    )


def cluster(rank_count: int, ranks_per_host: int) -> Any:
    return SimpleNamespace(rank_count=rank_count, ranks_per_host=ranks_per_host)


def test_powers_of_two_up_to_a_number():
    assert [_powers(most) for most in (0, 1, 2, 5, 8)] == [[], [1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("ranks", "per_host", "heads", "sizes"),
    [
        (32, 8, 48, [1, 2, 4, 8, 16]),
        (32, 8, 12, [1, 2, 4]),
        # Eight divides neither twelve ranks nor, above, twelve heads.
        (12, 8, 64, [1, 2, 4]),
        # Two hosts of three GPUs at most.
        (24, 3, 64, [1, 2, 4]),
        (4, 8, 64, [1, 2, 4]),
        (64, 8, 2, [1, 2]),
    ],
)
def test_tensor_groups_divide_ranks_and_heads_and_span_two_hosts_at_most(
    ranks, per_host, heads, sizes
):
    there = cluster(ranks, per_host)
    assert _tensor_sizes(spec(heads=heads), there, ()) == sizes
    assert _tensor_sizes(spec(heads=heads), there, {"tp"}) == sizes
    assert _tensor_sizes(spec(heads=heads, tp=3), there, ()) == sizes
    assert _tensor_sizes(spec(heads=heads, tp=3), there, {"tp"}) == [3]


@pytest.mark.parametrize(
    ("layers", "rest", "counts"),
    [
        (8, 8, [1, 2, 4, 8]),
        # Four stages of two if the embedding and the head count as layers.
        (6, 8, [1, 2, 4]),
        (3, 8, [1]),
        # Eleven stages of three would hold 33 layers, a tenth more than there are; four hold 32.
        (30, 44, [1, 2, 4, 11]),
        (29, 11, [1]),
        (128, 256, [1, 2, 4, 8, 16, 32, 64]),
    ],
)
def test_stages_are_even_or_nearly_so(layers, rest, counts):
    assert _stage_counts(spec(layers=layers), rest, ()) == counts
    assert _stage_counts(spec(layers=layers), rest, {"pp"}) == counts
    assert _stage_counts(spec(layers=layers, pp=rest // 2), rest, ()) == counts


def test_stages_that_are_stated_must_divide_the_ranks():
    assert _stage_counts(spec(pp=3), 6, {"pp"}) == [3]
    assert _stage_counts(spec(pp=4), 6, {"pp"}) == []
    assert [_divides(6, pp) for pp in (1, 2, 3, 4, 5, 8)] == [True, True, True, True, False, True]


@pytest.mark.parametrize(
    ("length", "rest", "per_host", "shares"),
    [
        (8192, 64, 8, [1]),
        (16383, 64, 8, [1]),
        (16384, 64, 8, [1, 2]),
        (131072, 64, 8, [1, 2, 4, 8, 16]),
        # No more than two hosts of three, and no more than there are and that divide them.
        (131072, 64, 3, [1, 2, 4]),
        (131072, 4, 8, [1, 2, 4]),
        (131072, 6, 8, [1, 2]),
        (1024, 1, 8, [1]),
    ],
)
def test_only_long_sequences_are_shared(monkeypatch, length, rest, per_host, shares):
    def found(fixed: Any = (), *, unfuses: bool = False, **more: Any) -> list[dict[str, int]]:
        monkeypatch.setattr(candidates, "unfuses_attention", lambda *given: unfuses)
        asked = spec(sequence_length=length, **more)
        stack: Any = None
        return list(_iter_further(asked, cluster(64, per_host), stack, rest, fixed))

    assert found() == [{"cp": cp, "ep": 1} for cp in shares]
    # What is stated, or cannot be shared without a fused kernel, stays.
    assert found({"cp"}) == found(unfuses=True) == [{"cp": 1, "ep": 1}]
    assert found({"cp"}, cp=4) == ([{"cp": 4, "ep": 1}] if rest % 4 == 0 else [])


@pytest.mark.parametrize(
    ("experts", "rest", "per_host", "divisions"),
    [
        (8, 64, 8, [1, 2, 4, 8]),
        (12, 64, 8, [1, 2, 4]),
        (64, 4, 8, [1, 2, 4]),
        # Eight hosts of two at most.
        (64, 64, 2, [1, 2, 4, 8, 16]),
    ],
)
def test_experts_are_divided_evenly_over_a_few_hosts(
    monkeypatch, experts, rest, per_host, divisions
):
    monkeypatch.setattr(candidates, "unfuses_attention", lambda *given: False)
    stack: Any = None
    there = cluster(64, per_host)
    asked = spec(experts=experts, has_experts=True, ep=3)
    found = list(_iter_further(asked, there, stack, rest, ()))
    assert found == [{"cp": 1, "ep": ep} for ep in divisions]
    for same in (list(_iter_further(asked, there, stack, rest, {"ep"})),
                 list(_iter_further(spec(ep=3), there, stack, rest, ()))):  # fmt: skip
        assert same == [{"cp": 1, "ep": 3}]


def test_micro_batches_divide_the_sequences_of_a_rank():
    assert _micro_batches(spec(), 48, ()) == [1, 2, 4, 8, 16]
    assert _micro_batches(spec(), 128, ()) == [1, 2, 4, 8, 16, 32]
    assert _micro_batches(spec(), 3, {"micro_batch"}) == [1]
    assert _micro_batches(spec(micro_batch=5), 20, {"micro_batch"}) == [5]
    assert _micro_batches(spec(micro_batch=5), 2, ()) == [1, 2]


def rest_of(dp: int, fixed: Any = (), *, tp: int = 1, pp: int = 1, **more: Any) -> Any:
    found = list(_iter_rest(spec(**more), {"tp": tp, "pp": pp}, dp, fixed))
    return {
        word: list(dict.fromkeys(one[word] for one in found)) for word in found[0]
    } | {"count": len(found)}  # fmt: skip


def test_what_else_is_tried_depends_on_the_split():
    none, zero1, zero3 = StateSharding.NONE, StateSharding.ZERO1, StateSharding.ZERO3
    again = [Recompute.NONE, Recompute.ATTENTION, Recompute.FULL]
    assert rest_of(1) == {
        "sharding": [none], "recompute": again, "interleaving": [1], "sequence_parallel": [None],
        "count": 3,
    }  # fmt: skip
    # Copies may share their state, and in one stage their weights.
    assert rest_of(2)["sharding"] == [zero1, zero3]
    assert rest_of(2, pp=2)["sharding"] == [zero1]
    assert rest_of(1, pp=2)["interleaving"] == [1, 2, 4]
    assert rest_of(1, tp=2)["sequence_parallel"] == [True, False]
    assert rest_of(2, tp=2, pp=2)["count"] == 1 * 3 * 3 * 2
    fixed = {"sharding", "recompute", "interleaving", "sequence_parallel"}
    stated = rest_of(
        2, fixed, tp=2, pp=2, recompute=Recompute.OPS, interleaving=3, sequence_parallel=False
    )
    assert stated == {
        "sharding": [StateSharding.ZERO2], "recompute": [Recompute.OPS], "interleaving": [3],
        "sequence_parallel": [False], "count": 1,
    }  # fmt: skip


def test_a_batch_is_divided_among_copies_that_share_sequences():
    split = {"tp": 2, "pp": 2, "cp": 2}
    found = list(_iter_changes(spec(batch=12), split, 32, ()))
    # 32 ranks are four copies: three sequences each, and eight ranks to share state.
    assert {one["micro_batch"] for one in found} == {1}
    assert {one["sharding"] for one in found} == {StateSharding.ZERO1}
    assert list(_iter_changes(spec(batch=13), split, 32, ())) == []
    one_copy = list(_iter_changes(spec(batch=8), {"tp": 4, "pp": 4, "cp": 2}, 32, ()))
    assert {one["micro_batch"] for one in one_copy} == {1, 2, 4, 8}
    assert {one["sharding"] for one in one_copy} == {StateSharding.ZERO1}


@pytest.mark.parametrize(("layers", "pp", "runs"), [(8, 2, 3), (8, 4, 4), (9, 3, 2)])
def test_runs_of_layers_are_equal(layers, pp, runs):
    nothing: Any = None
    changes = {"interleaving": runs, "pp": pp, "recompute": Recompute.NONE}
    assert _complete(spec(layers=layers), nothing, nothing, changes) is None
