"""Several steps explained as one of them."""

from fractions import Fraction

from perfmodel.prediction.answer import CriticalPath, Explanation, PathShare, RankWait, TimeParts
from perfmodel.prediction.explain import shrink_to_iteration
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


def test_an_empty_path_stays_empty():
    whole = explanation()

    assert shrink_to_iteration(whole, iteration_ns=7, window_ns=7) == whole


def test_weights_of_nothing_get_nothing():
    assert share_out([Fraction(0), Fraction(0)], 10) == [0, 0]
