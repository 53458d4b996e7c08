"""One iteration: the explanation of several steps, shrunk to one of them.

The critical path adds up to the iteration, and waits shrink as the breakdown
does, so that those of a rank still add up to its waiting part.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from perfmodel.prediction.answer import CriticalPath, Explanation
from perfmodel.prediction.time_parts import share_out


def shrink_to_iteration(
    explanation: Explanation, *, iteration_ns: int, window_ns: int
) -> Explanation:
    """*explanation* of a window of *window_ns* as that of an iteration of *iteration_ns*."""
    ratio = Fraction(iteration_ns, max(window_ns, 1))
    return replace(
        explanation,
        critical_path=_shrink_path(explanation.critical_path, iteration_ns),
        waits=tuple(
            replace(wait, duration_ns=round(wait.duration_ns * ratio)) for wait in explanation.waits
        ),
    )


def _shrink_path(path: CriticalPath, iteration_ns: int) -> CriticalPath:
    if not path.length_ns:
        return path
    weights = [Fraction(share.duration_ns) for share in path.by_kind]
    ratio = Fraction(iteration_ns, path.length_ns)
    return replace(
        path,
        by_kind=tuple(
            replace(share, duration_ns=duration_ns)
            for share, duration_ns in zip(
                path.by_kind, share_out(weights, iteration_ns), strict=True
            )
        ),
        by_label=tuple(
            replace(share, duration_ns=round(share.duration_ns * ratio)) for share in path.by_label
        ),
    )
