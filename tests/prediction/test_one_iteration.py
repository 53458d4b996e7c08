"""Several steps explained as one of them."""

from types import SimpleNamespace

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.engine.reasons import Window
from perfmodel.prediction.answer import CriticalPath, Explanation, PathShare, RankWait, TimeParts
from perfmodel.prediction.explain import _path_start_ns, _provenance, shrink_to_iteration
from perfmodel.prediction.time_parts import share_out


def explanation(*by_kind: int) -> Explanation:
    shares = tuple(PathShare(f"kind {place}", ns, 1) for place, ns in enumerate(by_kind))
    waits = (RankWait((0,), 1, "all_reduce", 90),)
    return Explanation(TimeParts({}), (), CriticalPath(shares, shares, 2), waits, {})


def test_the_path_adds_up_to_the_iteration():
    # 310 ns of path in 300 ns of window, for an iteration of 100: 100/310 of each share is
    # 32.26, 32.26 and 35.48, and the nanosecond that rounding down leaves goes to the last.
    shrunk = shrink_to_iteration(explanation(100, 100, 110), iteration_ns=100, window_ns=300)

    assert [share.duration_ns for share in shrunk.critical_path.by_kind] == [32, 32, 36]
    assert shrunk.critical_path.rank_changes == 2


def test_waits_shrink_as_the_window_does():
    shrunk = shrink_to_iteration(explanation(300), iteration_ns=100, window_ns=300)

    assert [wait.duration_ns for wait in shrunk.waits] == [30]
    for window_ns in (0, 1):
        grown = shrink_to_iteration(explanation(1), iteration_ns=3, window_ns=window_ns)
        assert [wait.duration_ns for wait in grown.waits] == [270]


def test_an_empty_path_stays_empty():
    whole = explanation()

    assert shrink_to_iteration(whole, iteration_ns=7, window_ns=7) == whole


def test_weights_of_nothing_get_nothing():
    assert share_out([0, 0], 10) == [0, 0]


def test_provenance_is_by_the_time_that_the_path_spends():
    def row_of(job, rank, task):
        return rank + task

    priced = SimpleNamespace(
        job=None,
        durations=SimpleNamespace(row_of=row_of),
        provenance=[Provenance.RECORDED, Provenance.ASSUMED, Provenance.RECORDED],
    )
    steps = [
        SimpleNamespace(at=SimpleNamespace(rank=0, task=0), from_ns=100, to_ns=150),
        SimpleNamespace(at=SimpleNamespace(rank=0, task=1), from_ns=150, to_ns=450),
        SimpleNamespace(at=SimpleNamespace(rank=1, task=1), from_ns=450, to_ns=500),
        SimpleNamespace(at=SimpleNamespace(rank=1, task=0), from_ns=500, to_ns=500),
    ]
    assert _provenance(priced, steps) == {Provenance.RECORDED: 0.25, Provenance.ASSUMED: 0.75}
    assert _provenance(priced, []) == {}


def test_the_path_is_that_of_the_last_iteration():
    def start_ns(*ends_ns):
        ends = np.array(ends_ns)[:, None]
        replay = SimpleNamespace(iteration_end_ns=ends)
        return _path_start_ns(
            SimpleNamespace(history=SimpleNamespace(replay=replay), window=Window(7, 9))
        )

    assert (start_ns(30), start_ns(30, 60), start_ns(30, 60, 95)) == (7, 30, 60)
