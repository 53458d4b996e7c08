"""What layouts are made of: sizes of groups, stages, micro-batches and the rest, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.prediction.layouts import candidates
from perfmodel.prediction.layouts.candidates import LayoutOptions, searched_fields
from perfmodel.workloads.transformer.axes import AXES
from perfmodel.workloads.transformer.words import Recompute, StateSharding
from tests.workloads.reading import tiny

PARALLEL = {
    "tp": None, "pp": None, "cp": 1, "ep": 1, "micro_batch": None, "interleaving": 1,
    "sharding": StateSharding.ZERO2, "sequence_parallel": None,
    "dispatcher": None, "expert_overlap": False, "schedule": "1f1b",
}  # fmt: skip


def options(
    *fixed: str, ranks: int = 64, per_host: int = 8, recompute: Any = Recompute.NONE, **more: Any
) -> LayoutOptions:
    """Those of a workload of which only what is asked for is there; *fixed* fields are stated."""
    parallel = SimpleNamespace(**{key: more.get(key, value) for key, value in PARALLEL.items()})
    heads, experts = more.get("heads", 16), more.get("experts", 1)
    model = tiny(
        layers=more.get("layers", 8), heads=heads, kv_heads=heads, hidden=2 * heads,
        experts=experts if more.get("has_experts") else 1,
    ).model  # fmt: skip
    spec: Any = SimpleNamespace(
        batch=more.get("batch", 64),
        sequence_length=more.get("sequence_length", 1024),
        model=model,
        parallel=parallel,
        training=SimpleNamespace(recompute=recompute),
    )
    cluster: Any = SimpleNamespace(rank_count=ranks, ranks_per_host=per_host)
    stack: Any = SimpleNamespace(schedules=("1f1b",), dispatchers=(), overlaps=())
    return LayoutOptions(spec, cluster, stack, [searched_fields()[word] for word in fixed])


@pytest.mark.parametrize(
    ("ranks", "per_host", "heads", "sizes"),
    [(32, 8, 48, [1, 2, 4, 8, 16]), (32, 8, 12, [1, 2, 4]),
     # Eight divides neither twelve ranks nor, above, twelve heads.
     (12, 8, 64, [1, 2, 4]),
     # Two hosts of three GPUs at most.
     (24, 3, 64, [1, 2, 4]), (4, 8, 64, [1, 2, 4]), (64, 8, 2, [1, 2])],
)  # fmt: skip
def test_tensor_groups_divide_ranks_and_heads_and_span_two_hosts_at_most(
    ranks, per_host, heads, sizes
):
    there = {"ranks": ranks, "per_host": per_host, "heads": heads}
    assert options(**there).sizes(AXES["tp"], {}) == sizes
    assert options("tp", **there).sizes(AXES["tp"], {}) == sizes
    assert options(tp=3, **there).sizes(AXES["tp"], {}) == sizes
    assert options("tp", tp=3, **there).sizes(AXES["tp"], {}) == ([] if ranks % 3 else [3])


@pytest.mark.parametrize(
    ("layers", "rest", "counts"),
    [(8, 8, [1, 2, 4, 8]),
     # Four stages of two if the embedding and the head count as layers, or five or eight.
     (6, 8, [1, 2, 4]), (6, 5, [1]), (3, 8, [1]),
     # Eleven stages of three would hold 33 layers, a tenth more than there are; four hold 32.
     (30, 44, [1, 2, 4, 11]), (29, 11, [1]), (128, 256, [1, 2, 4, 8, 16, 32, 64])],
)  # fmt: skip
def test_stages_are_even_or_nearly_so(layers, rest, counts):
    for asked in (
        options(ranks=2 * rest, layers=layers),
        options("pp", ranks=2 * rest, layers=layers),
        options(ranks=2 * rest, layers=layers, pp=rest // 2),
    ):
        assert asked.sizes(AXES["pp"], {"tp": 2}) == counts


def test_stages_that_are_stated_must_divide_the_ranks():
    assert options("pp", ranks=6, pp=3).sizes(AXES["pp"], {"tp": 1}) == [3]
    assert options("pp", ranks=6, pp=4).sizes(AXES["pp"], {"tp": 1}) == []


@pytest.mark.parametrize(
    ("length", "rest", "per_host", "shares"),
    [(8192, 64, 8, [1]), (16383, 64, 8, [1]), (16384, 64, 8, [1, 2]),
     (131072, 64, 8, [1, 2, 4, 8, 16]),
     # No more than two hosts of three, and no more than there are and that divide them.
     (131072, 64, 3, [1, 2, 4]), (131072, 4, 8, [1, 2, 4]), (131072, 6, 8, [1, 2]),
     (1024, 1, 8, [1])],
)  # fmt: skip
def test_only_long_sequences_are_shared(monkeypatch, length, rest, per_host, shares):
    def found(*fixed: str, unfuses: bool = False, **more: Any) -> list[int]:
        monkeypatch.setattr(candidates, "unfuses_attention", lambda *given: unfuses)
        asked = options(*fixed, ranks=4 * rest, sequence_length=length, per_host=per_host, **more)
        return asked.sizes(AXES["cp"], {"tp": 2, "pp": 2})

    assert found() == shares
    # What is stated, or cannot be shared without a fused kernel, stays.
    assert found("cp") == found(unfuses=True) == [1]
    assert found("cp", cp=4) == ([4] if rest % 4 == 0 else [])


@pytest.mark.parametrize(
    ("experts", "rest", "per_host", "divisions"),
    # The last: eight hosts of two at most.
    [(8, 64, 8, [1, 2, 4, 8]), (12, 64, 8, [1, 2, 4]), (64, 4, 8, [1, 2, 4]),
     (64, 64, 2, [1, 2, 4, 8, 16])],
)  # fmt: skip
def test_experts_are_divided_evenly_over_a_few_hosts(
    monkeypatch, experts, rest, per_host, divisions
):
    monkeypatch.setattr(candidates, "unfuses_attention", lambda *given: False)
    given = {"ep": 3, "per_host": per_host, "experts": experts, "ranks": 2 * rest}
    split = {"tp": 1, "pp": 2, "cp": 1}
    assert options(has_experts=True, **given).sizes(AXES["ep"], split) == divisions
    for same in (options("ep", has_experts=True, **given), options(**given)):
        assert same.sizes(AXES["ep"], split) == [3]


def test_micro_batches_divide_the_sequences_of_a_rank():
    assert options().micro_batches(48) == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert options().micro_batches(60)[-3:] == [15, 20, 30]
    assert options().micro_batches(128) == [1, 2, 4, 8, 16, 32]
    assert options("micro_batch").micro_batches(3) == [1, 3]
    assert options("micro_batch", micro_batch=5).micro_batches(20) == [5]
    assert options(micro_batch=5).micro_batches(2) == [1, 2]


def tried(dp: int, *fixed: str, tp: int = 1, pp: int = 1, cp: int = 1, **more: Any) -> Any:
    """The values of every field on *dp* copies with one sequence each, and how many layouts."""
    asked = options(*fixed, ranks=dp * tp * pp * cp, **{"batch": dp, **more})
    found = list(asked.iter_changes({"tp": tp, "pp": pp, "cp": cp, "ep": 1}))
    words = ("micro_batch", "sharding", "recompute", "interleaving", "sequence_parallel")
    return {word: list(dict.fromkeys(one[word] for one in found)) for word in words} | {
        "count": len(found)
    }


def test_what_else_is_tried_depends_on_the_split():
    none, zero1 = StateSharding.NONE, StateSharding.ZERO1
    zero2, zero3 = StateSharding.ZERO2, StateSharding.ZERO3
    again = [Recompute.NONE, Recompute.ATTENTION, Recompute.FULL]
    assert tried(1) == {
        "micro_batch": [1], "sharding": [none], "recompute": again, "interleaving": [1],
        "sequence_parallel": [None], "count": 3,
    }  # fmt: skip
    # Copies may share their state, and in one stage their weights; so do ranks of a sequence.
    # The workload's own way is tried wherever it can be, and so is what it recomputes.
    assert tried(2)["sharding"] == tried(1, cp=2)["sharding"] == [zero1, zero3, zero2]
    assert tried(2, pp=2)["sharding"] == [zero1, zero2]
    assert tried(2, pp=2, sharding=zero3)["sharding"] == [zero1]
    assert tried(2, sharding=none)["sharding"] == [zero1, zero3, none]
    assert tried(1, recompute=Recompute.OPS)["recompute"] == [*again, Recompute.OPS]
    assert tried(1, pp=2)["interleaving"] == [1, 2, 4]
    assert tried(1, tp=2)["sequence_parallel"] == [True, False]
    assert tried(2, tp=2, pp=2)["count"] == 2 * 3 * 3 * 2
    fixed = ("sharding", "recompute", "interleaving", "sequence_parallel")
    stated = tried(
        2, *fixed, tp=2, pp=2, recompute=Recompute.OPS, interleaving=3, sequence_parallel=False
    )
    assert stated == {
        "micro_batch": [1], "sharding": [zero2], "recompute": [Recompute.OPS],
        "interleaving": [3], "sequence_parallel": [False], "count": 1,
    }  # fmt: skip


def test_a_batch_is_divided_among_copies_that_share_sequences():
    # 32 ranks are four copies: three sequences each, and eight ranks to share state.
    assert tried(4, tp=2, pp=2, cp=2, batch=12)["micro_batch"] == [1, 3]
    assert tried(4, tp=2, pp=2, cp=2, batch=13)["count"] == 0
    assert tried(1, tp=4, pp=4, cp=2, batch=8)["micro_batch"] == [1, 2, 4, 8]


@pytest.mark.parametrize(("layers", "pp", "runs"), [(8, 2, 3), (8, 4, 4), (9, 3, 2)])
def test_runs_of_layers_are_equal(layers, pp, runs):
    changes = {"interleaving": runs, "pp": pp, "recompute": Recompute.NONE}
    assert options(layers=layers).complete(changes) is None
