"""Shifting: the shipped constants scaled to a machine with only a few measured rows.

Three factors per block: on latencies, on bandwidth, and on the bandwidth of pairwise exchanges.
Each is pulled towards one, less so with more rows. From there every constant moves alone as far as
rows demand it, so those that a log says nothing of stay with the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np

from collectives.calibration import REGIMES, Calibration, regime_of
from collectives.collective import CollectiveKind
from collectives.constants import (
    FabricConstants,
    FabricEntry,
    HostConstants,
    HostEntry,
    MeasuredSpan,
)
from collectives.measurements import CollectiveMeasurement
from collectives.movement import FloatArray
from collectives.wiring import Wiring
from perfmodel.base.errors import CalibrationError
from perfmodel.costs.estimates import INTERVAL_SIGMAS
from perfmodel.extensions.measurements.calibration.collective_fit import (
    SMALLEST_SIGMA,
    FitRows,
    HeldOut,
    build_batches,
    fit_constants,
    log_residuals,
    predict_rows,
)

FEWEST_ROWS = 3
NOISE = 0.08
"""How much repeated measurements of one machine differ, in the logarithm."""
LATENCY_PRIOR, BANDWIDTH_PRIOR, PAIR_PRIOR = 0.5, 0.35, 0.2
"""How much machines differ from the shipped constants of their kind, in the logarithm."""
LOG_PULL = 0.1
"""How strongly a constant is held to the three factors, against an error of a row of one."""
_BANDWIDTHS = ("ll_ratio", "ll_bytes_per_s", "ll128_ratio", "simple_ratio", "nvls_ratio")

Block = TypeVar("Block", HostConstants, FabricConstants)


@dataclass(frozen=True, slots=True)
class Shift:
    """Logarithms of the three factors of a block."""

    latency: float = 0.0
    bandwidth: float = 0.0
    pair: float = 0.0

    def apply(self, constants: Block) -> Block:
        """*constants*, scaled."""
        changed: dict[str, float] = {}
        for name, value in asdict(constants).items():
            if name.endswith("_ns"):
                changed[name] = value * math.exp(self.latency)
            elif name in _BANDWIDTHS:
                changed[name] = value * math.exp(self.bandwidth)
            elif name == "pair_ratio":
                changed[name] = value * math.exp(self.bandwidth + self.pair)
        return replace(constants, **changed)

    def describe(self) -> str:
        """The factors as text."""
        words = f"latencies x {math.exp(self.latency):.2f}, bandwidth x "
        words += f"{math.exp(self.bandwidth):.2f}"
        return words + (f", in pairs x {math.exp(self.pair):.2f} more" if self.pair else "")


def shift_collectives(
    measurements: Sequence[CollectiveMeasurement], base: Calibration
) -> tuple[Calibration, tuple[str, ...]]:
    """*base* with own blocks for the machines of *measurements*, and a sentence about each."""
    # An odd host of another machine is not a starting point.
    usual = tuple(entry for entry in base.hosts if not entry.is_odd)
    calibration, sentences = replace(base, hosts=usual), []
    uncertainty = dict(base.uncertainty)
    spans = list(base.spans)
    # Rows by machine, and by whether hosts were crossed.
    blocks: dict[tuple[str, bool], list[CollectiveMeasurement]] = {}
    for row in measurements:
        blocks.setdefault((row.wiring().topology_name, row.hosts > 1), []).append(row)
    for (name, several), rows in sorted(blocks.items()):
        if len(rows) < FEWEST_ROWS:
            raise CalibrationError(
                f"{name}: must have {FEWEST_ROWS} rows or more "
                f"{'on several hosts' if several else 'on one host'}, got {len(rows)}. Measure "
                "a few sizes more, small ones and large ones."
            )
        shift = _fit_shift(rows, calibration)
        held = _held_out(rows, calibration)
        calibration = _fit(rows, calibration, shift)
        scope = f"{name}/{'several_hosts' if several else 'one_host'}/"
        uncertainty = {key: one for key, one in uncertainty.items() if not key.startswith(scope)}
        uncertainty |= _uncertainty(held, scope)
        spans = [one for one in spans if one.topology != name or (one.hosts > 1) != several]
        spans += measured_spans([replace(row, topology=name) for row in rows])
        where = "between hosts" if several else "inside a host"
        worst = max((one.log_error for one in held), default=0.0)
        sentences.append(
            f"{name}, {where}, {len(rows)} rows: {shift.describe()}; each size predicted "
            f"from the others is off by {math.expm1(worst):.0%} at most"
        )
    return replace(calibration, uncertainty=uncertainty, spans=tuple(spans)), tuple(sentences)


def measured_spans(measurements: Sequence[CollectiveMeasurement]) -> tuple[MeasuredSpan, ...]:
    """The curves that *measurements* hold, each from its smallest to its largest size."""
    sizes: dict[tuple[str, CollectiveKind, int, int], list[int]] = {}
    for row in measurements:
        sizes.setdefault((row.topology, row.kind, row.hosts, row.ranks), []).append(row.size_bytes)
    return tuple(
        MeasuredSpan(*key, low_bytes=min(values), high_bytes=max(values))
        for key, values in sorted(sizes.items(), key=lambda item: (str(item[0]),))
    )


def _fit(rows: Sequence[CollectiveMeasurement], base: Calibration, shift: Shift) -> Calibration:
    """*base* with a block of its own for the machine of *rows*."""
    batches, wiring = build_batches(rows, base), rows[0].wiring()
    near = base.constants(wiring)

    def fit(block: Block, predict: Callable[[FitRows, Block], FloatArray]) -> Calibration:
        moved = shift.apply(block)
        frozen = ("crowding", "nic_crowding")
        found = fit_constants(moved, batches, predict, frozen=frozen, pull=LOG_PULL)
        return _with_block(base, wiring, found)

    if near.fabric is None:
        return fit(near.host, lambda batch, tried: batch.predict_ns(near._replace(host=tried)))
    return fit(near.fabric, lambda batch, tried: batch.predict_ns(near._replace(fabric=tried)))


def _fit_shift(rows: Sequence[CollectiveMeasurement], base: Calibration) -> Shift:
    from scipy.optimize import least_squares  # heavy, and only fitting needs it

    batches = build_batches(rows, base)
    has_pairs = any(row.kind is CollectiveKind.ALL_TO_ALL for row in rows)
    has_others = any(row.kind is not CollectiveKind.ALL_TO_ALL for row in rows)
    # If only pairwise exchanges were measured, their bandwidth is the bandwidth.
    priors = np.array([LATENCY_PRIOR, BANDWIDTH_PRIOR, PAIR_PRIOR])
    priors = priors if has_pairs and has_others else priors[:2]

    def cost(place: FloatArray) -> FloatArray:
        errors = log_residuals(batches, lambda batch: _predict(batch, base, Shift(*place)))
        return np.concatenate([errors / NOISE, place / priors])

    # While links inside the hosts are the bottleneck, a slower network makes no difference: a fit
    # that starts at the shipped bandwidth would not find a value far below it.
    starts = [np.array([0.0, bandwidth, 0.0][: len(priors)]) for bandwidth in (0.0, -0.7)]
    fits = [least_squares(cost, at, loss="soft_l1", f_scale=2.0, max_nfev=60) for at in starts]
    return Shift(*(float(value) for value in min(fits, key=lambda fit: float(fit.cost)).x))


def _predict(batch: FitRows, base: Calibration, shift: Shift) -> FloatArray:
    constants = base.constants(batch.wiring)
    if constants.fabric is None:
        return batch.predict_ns(constants._replace(host=shift.apply(constants.host)))
    return batch.predict_ns(constants._replace(fabric=shift.apply(constants.fabric)))


def _held_out(rows: Sequence[CollectiveMeasurement], base: Calibration) -> list[HeldOut]:
    """Each size, predicted by what was fitted to the others."""
    held: list[HeldOut] = []
    for size in sorted({row.size_bytes for row in rows}):
        others = [row for row in rows if row.size_bytes != size]
        if others:
            apart = [row for row in rows if row.size_bytes == size]
            held += predict_rows(apart, _fit(others, base, _fit_shift(others, base)))
    return held


def _uncertainty(held: Sequence[HeldOut], scope: str) -> dict[str, float]:
    """Standard deviations of what was measured, wide for few rows.

    Kinds without rows have none, and fall back to those of machines left out; regimes without rows
    have that of all rows.
    """
    kinds = {one.measurement.kind for one in held}
    words = [kind.value for kind in kinds] + (["any"] if len(kinds) > 1 else [])
    errors: dict[str, list[float]] = {
        f"{scope}{word}/{regime}": [] for word in words for regime in REGIMES
    }
    for one in held:
        for word in {one.measurement.kind.value, *words[len(kinds) :]}:
            errors[f"{scope}{word}/{regime_of(one.latency_ratio)}"].append(one.log_error)
    whole = _sigma([one.log_error for one in held])
    # A regime of one or two rows says little by itself, so the spread of all rows is its least.
    return {key: round(max(_sigma(one), whole if len(one) < 4 else 0.0), 4)
            for key, one in sorted(errors.items())}  # fmt: skip


def _sigma(errors: Sequence[float]) -> float:
    """The sigma whose interval covers a new row with 90 %; Student's t for few rows."""
    from scipy.stats import t  # heavy, and only fitting needs it

    count = len(errors)
    if not count:
        return SMALLEST_SIGMA
    spread = math.sqrt(float(np.mean(np.array(errors) ** 2)))
    factor = float(t.ppf(0.95, max(count - 1, 1))) / INTERVAL_SIGMAS * math.sqrt(1 + 1 / count)
    # Two rows would make it six times as wide, which is no information.
    return max(SMALLEST_SIGMA, spread * min(factor, 3.0))


def _with_block(
    base: Calibration, wiring: Wiring, constants: HostConstants | FabricConstants
) -> Calibration:
    """*base*, in which the machine of *wiring* has its own block and is in no other."""
    name = wiring.topology_name
    if isinstance(constants, FabricConstants):
        found = base.fabric_entry(wiring)
        fabric = replace(found, name=f"{name}_own", machines=(name,), constants=constants)
        kept = [replace(one, machines=_without(one, name)) for one in base.fabrics]
        return replace(base, fabrics=(*kept, fabric))
    near = base.host_entry(wiring)
    host = replace(
        near,
        name=f"{name}_own",
        machines=(name,),
        is_odd=False,
        constants=constants,
    )
    # An entry that loses its only machine must not become one for all machines.
    hosts = [
        replace(one, machines=_without(one, name))
        for one in base.hosts
        if not one.machines or _without(one, name)
    ]
    return replace(base, hosts=(*hosts, host))


def _without(entry: HostEntry | FabricEntry, name: str) -> tuple[str, ...]:
    return tuple(machine for machine in entry.machines if machine != name)
