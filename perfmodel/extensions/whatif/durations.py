"""Primitives that give single tasks other durations and other work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif.drafts import Ranks
from perfmodel.extensions.whatif.recosting import (
    Recosted,
    carry,
    count_recosted,
    enlarged,
    filling,
    retime,
    time_ratio,
)
from perfmodel.extensions.whatif.selection import Selection
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Fixed,
    Gemm,
    MemoryBound,
    Op,
    Work,
    duration_of,
    work_of,
)
from perfmodel.prediction.saved_jobs import PricingMachine

_WIDE = (DType.FP32, DType.TF32)
_INDEX_AND_VALUE = 2
"""A number that is sent alone needs its index too."""


class WorkWord(Enum):
    """Which work is priced again."""

    PRODUCTS = "products"
    MEMORY = "memory"
    COLLECTIVES = "collectives"


_WORKS: dict[WorkWord, tuple[type[Work], ...]] = {
    WorkWord.PRODUCTS: (Gemm, Attention, Convolution),
    WorkWord.MEMORY: (MemoryBound,),
    WorkWord.COLLECTIVES: (Communication,),
}


def set_duration(op: Op, _: Ranks, *, to_ns: int) -> Op:
    """The tasks take *to*."""
    return retime(op, to_ns)


def scale(
    op: Op,
    _: Ranks,
    *,
    factor: float,
    up_to_ns: int = -1,
    scales_traffic: bool = False,
) -> Op:
    """The tasks take *factor* times as long; those that take longer than *up_to* stay.

    With *scales_traffic* they also read and write that much.
    """
    duration_ns = duration_of(op)
    if 0 <= up_to_ns < duration_ns:
        return op
    work = op.work if isinstance(op, Fixed) else None
    if scales_traffic and isinstance(work, MemoryBound):
        work = enlarged(work, factor)
    return retime(op, duration_ns * factor, work=work)


def enlarge(op: Op, _: Ranks, *, factor: float, beyond_ns: int = 0) -> Op:
    """The tasks work on *factor* times as many samples, which takes longer beyond *beyond*."""
    duration_ns, longer = duration_of(op), filling(op, factor)
    assert isinstance(op, Fixed)
    work = op.work and enlarged(op.work, factor)
    grown_ns = duration_ns + max(duration_ns - beyond_ns, 0) * (longer - 1)
    return retime(replace(op, waves=op.waves * factor), grown_ns, work=work)


def reprice(
    op: Op,
    ranks: Ranks,
    *,
    work: WorkWord,
    to: DType | None = None,
    ratio: float = 1.0,
    share: float | None = None,
    sparse: bool = False,
    machine: PricingMachine | None = None,
) -> Op:
    """Tasks with known *work* of a kind have *ratio* of the bytes, and numbers in the format *to*.

    With *share* only work of 32 bits changes, and takes that share of its time if no machine is
    named. Sparse collectives gather *ratio* of the numbers with their indices. Tasks whose work
    is not known are scaled like their bytes.
    """
    duration_ns = duration_of(op)
    old = Communication(collective_of(op)) if sparse else work_of(op)
    if not isinstance(old, _WORKS[work]):
        is_unknown = old is None or work is WorkWord.COLLECTIVES
        return retime(op, duration_ns * ratio) if is_unknown else op
    if share is not None and getattr(old, "dtype", None) not in _WIDE:
        return op
    new: Work
    if isinstance(old, Communication):
        whole = old.collective
        if sparse:
            sent = whole.size_bytes * ratio * _INDEX_AND_VALUE * len(ranks)
            new = Communication(Collective(CollectiveKind.ALL_GATHER, round(sent), whole.dtype))
        else:
            new = Communication(carry(whole, ratio=ratio))
    elif isinstance(old, MemoryBound):
        new = replace(enlarged(old, ratio), dtype=to or old.dtype)  # type: ignore[arg-type]
    else:
        new = replace(old, dtype=to or old.dtype)  # type: ignore[arg-type, union-attr]
    if share is None or machine is not None:
        share = time_ratio(old, new, ranks, machine=machine)
    if isinstance(old, MemoryBound):
        share = filling(op, share)
    return retime(op, duration_ns * share, work=new)


def refuse_narrow(job: JobGraph, selection: Selection) -> JobGraph:
    """Raise if most of the GEMM time is already in 16 bits or narrower."""
    spent_ns = {True: 0, False: 0}
    for program, mask, ranks in selection.by_program(job):
        numbers, counts = np.unique(program.op[mask], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            op = job.ops[number]
            work = work_of(op)
            if isinstance(work, _WORKS[WorkWord.PRODUCTS]):
                is_wide = getattr(work, "dtype", None) in _WIDE
                spent_ns[is_wide] += duration_of(op) * count * ranks
    narrow_ns, total_ns = spent_ns[False], sum(spent_ns.values())
    if 2 * narrow_ns > total_ns:
        share_pct = 100 * narrow_ns / total_ns
        raise ScenarioError(
            f"the job runs under autocast or in 16 bits already: {share_pct:.0f} % of the time of "
            "its GEMMs, convolutions and attention is in 16 bits or narrower. `dtype:to=fp8` asks "
            "for a narrower format."
        )
    return job


def count_repriced(
    job: JobGraph, selection: Selection, what: str, steps: Sequence[dict[str, Any]]
) -> Recosted:
    """How much of the time of *selection* is of works that *steps* reprice; *what* names it."""
    known = tuple(kind for step in steps for kind in _WORKS[step["work"]])
    return count_recosted(
        job, selection.by_program(job), lambda op: isinstance(op.work, known), what=what
    )


def collective_of(op: Op) -> Collective:
    """The collective of *op*; a task without a known one is refused."""
    duration_of(op)
    if isinstance(op, Fixed) and isinstance(op.work, Communication):
        return op.work.collective
    name = op.name if isinstance(op, Fixed) else type(op).__name__
    raise ScenarioError(
        f"{name!r}: matches, but is not a collective whose bytes are known. Narrow the pattern, "
        "or change the duration itself with `scale`."
    )
