"""Measuring: the kernels and collectives on which an interval depends most, and a script for them.

A kernel counts by the variance of its family (`perfmodel/stacks/anchors.yaml`) and its share of the
family's time. The list promises the half-width that is left once it was timed, by the rule that
narrows the interval then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import MeasurementError
from perfmodel.base.writing import check_writable, write_file
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.extensions.measurements.calibration.anchors import (
    FACTORS,
    Anchor,
    Kind,
    Parts,
    TimedCall,
    learn,
    learnt_of,
)
from perfmodel.extensions.measurements.calibration.own_kernels import (
    NOISE,
    SIGMA,
    Learning,
    covariance,
    row_of,
)
from perfmodel.graph.ops import Attention, Communication, EmbeddingOp, Gemm, GroupedGemm
from perfmodel.prediction.answer import Narrowing, Prediction
from perfmodel.prediction.question import Question

SCRIPT = Path(__file__).parent / "calibration" / "timing_script.py"
MOST_KERNELS, MOST_CALLS, MOST_TRIED = 40, 6, 120
LEAST = 0.002
"""Of the variance: what carries less is not worth timing."""
SECONDS, LAYOUTS = 5, 2
"""How long the script repeats a kernel, and in how many layouts a product."""
_KIND_OF = {Gemm: "gemm", GroupedGemm: "grouped", Attention: "attention", EmbeddingOp: "lookup"}


@dataclass(frozen=True, slots=True)
class Listed:
    """A kernel or collective to time: its row, its *share* of the time of kernels, what it buys.

    *left* is what remains of the width of the interval with it and all before it.
    """

    row: dict[str, Any]
    share: float
    left: float


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """What to time for a *prediction*, most telling first."""

    prediction: Prediction
    device: str
    listed: tuple[Listed, ...]

    @property
    def half_width(self) -> float:
        """Half of the interval over the iteration, today."""
        return self.prediction.interval.half_width_ns / self.prediction.iteration_ns

    @property
    def expected(self) -> float:
        """The same once all of it was timed."""
        return self.half_width * self.listed[-1].left

    @property
    def minutes(self) -> float:
        """How long the script runs."""
        times = sum(LAYOUTS if one.row["kind"] == "gemm" else 1 for one in self.listed)
        return times * SECONDS / 60

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "schema_version": 1,
            "half_width_pct": round(100 * self.half_width, 2),
            "expected_half_width_pct": round(100 * self.expected, 2),
            "minutes": round(self.minutes, 1),
            "device": self.device,
            "kernels": [
                {**one.row, "share": round(one.share, 4), "left": round(one.left, 4)}
                for one in self.listed
            ],
        }


def plan_measuring(question: Question, prediction: Prediction) -> MeasurePlan:
    """What to time for the *prediction* of *question*."""
    if question.cluster is None or question.stack is None:
        raise MeasurementError(
            "measure: a job that states its durations has no kernels to time. Give a model, or a "
            "job with shapes and --topology."
        )
    priced = price_job(question.jobs[0], cluster=question.cluster, stack=question.stack)
    parts = Parts.of(priced, question.cluster, question.stack)
    topology = question.cluster.topology.name
    known = learnt_of(question.cluster, question.stack)
    listed = tuple(_list(parts, known, topology))
    if not listed:
        raise MeasurementError("measure: no kernel of this job is worth timing.")
    return MeasurePlan(prediction, question.cluster.device.name, listed)


def expected_ratio(parts: Parts, known: Sequence[Learning], chosen: Sequence[int]) -> float:
    """What is left of the width beside what is *known*, once *chosen* were timed."""
    spots = tuple(parts.spots[place] for place in chosen)
    more = Learning(spots, (0.0,) * len(spots))
    return parts.width(known, more) / parts.width(known)


def list_narrowings(
    question: Question, priced: PricedJob, found: Prediction
) -> Iterator[Narrowing]:
    """What to measure for *found*, whose job has prices *priced*, and what is expected of it."""
    cluster, stack = question.cluster, question.stack
    if cluster is None or stack is None or not found.drawn_ns or question.known is not None:
        return
    half_ns = found.interval.half_width_ns
    parts = Parts.of(priced, cluster, stack)
    run = Anchor(
        **{one.name: getattr(parts.kind, one.name) for one in fields(Kind)},
        run="the next",
        measured_ns=1.0,
        predicted_ns=1.0,
        shares=dict(zip(FACTORS, parts.shares.tolist(), strict=True)),
    )
    ratio = learn([run], parts.kind, parts.shares).ratio
    what = "measure an iteration, also of another layout: `--measured TIME --anchor-out FILE`"
    yield Narrowing("run", f"{what}, or `perfmodel calibrate runs`.", half_ns * ratio)
    if chosen := choose(parts):
        ratio = expected_ratio(parts, learnt_of(cluster, stack), chosen)
        what = "time the kernels that `perfmodel measure` lists."
        yield Narrowing("kernels", what, half_ns * ratio)


def choose(parts: Parts) -> list[int]:
    """The kernels and collectives of *parts* worth timing, most telling first."""
    variance = (parts.variances.machine + parts.variances.run) * parts.shares**2
    worth = np.zeros(len(parts.spots))
    for place, name in enumerate(FACTORS):
        rows = parts.families == name
        if (whole := float(parts.times_ns[rows].sum())) > 0:
            worth[rows] = variance[place] * parts.times_ns[rows] / whole
    least = LEAST * parts.variances.total(parts.shares)
    places = np.argsort(-worth, kind="stable")[: min(MOST_TRIED, np.sum(worth > least))]
    spots, worth = [parts.spots[place] for place in places], worth[places]
    is_call = np.array([isinstance(parts.calls[place].op, Communication) for place in places])
    is_open, chosen = np.ones(len(places), dtype=bool), list[int]()
    unknown = covariance(spots)
    while is_open.any():
        # What a kernel says of itself and of like ones, beside those that were chosen before.
        said = worth @ (unknown**2 / (np.diag(unknown) + NOISE**2)) / SIGMA**2
        best = int(np.argmax(np.where(is_open, said, 0.0)))
        if said[best] <= least:
            break
        chosen.append(best)
        is_open[best] = False
        for is_alike, most in ((is_call, MOST_CALLS), (~is_call, MOST_KERNELS)):
            is_open &= ~is_alike | (np.sum(is_alike[chosen]) < most)
        own = unknown[:, best]
        unknown = unknown - np.outer(own, own) / (own[best] + NOISE**2)
    return [int(places[one]) for one in chosen]


def _list(parts: Parts, known: Sequence[Learning], topology: str) -> Iterator[Listed]:
    whole, chosen = float(parts.times_ns.sum()), choose(parts)
    for number, place in enumerate(chosen, 1):
        left = expected_ratio(parts, known, chosen[:number])
        row = _row(parts.calls[place], topology)
        yield Listed(row, float(parts.times_ns[place]) / whole, left)


def _row(call: TimedCall, topology: str) -> dict[str, Any]:
    if isinstance(call.op, Communication):
        cells = row_of(call.op.collective)
        place = {"topology": topology, "ranks": call.ranks, "hosts": call.hosts}
        return {"kind": "collective", "collective": cells.pop("kind"), **cells, **place}
    return {"kind": _KIND_OF.get(type(call.op), "memory"), **row_of(call.op)}


def write_plan(plan: MeasurePlan, folder: Path) -> tuple[Path, Path]:
    """Write the script and the list that it reads into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    script, kernels = folder / "measure.py", folder / "kernels.json"
    check_writable("--out", script)
    write_file(script, SCRIPT.read_text(encoding="utf-8"))
    write_file(kernels, json.dumps(plan.to_dict(), indent=1) + "\n")
    return script, kernels
