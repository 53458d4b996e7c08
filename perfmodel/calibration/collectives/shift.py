"""Shifting: the shipped constants moved to a machine of which only a few rows are known.

Three factors a block: how much longer its latencies take, how much of its bandwidth is reached,
and what exchanges in pairs reach beside that. Each is drawn towards one, the less the more
rows speak for it, so that six rows can move a network and cannot bend it out of shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np

from collectives.calibration import Calibration, regime_of
from collectives.collective import CollectiveKind
from collectives.constants import FabricConstants, FabricEntry, HostConstants, HostEntry
from collectives.measurements import CollectiveMeasurement
from collectives.movement import FloatArray
from collectives.wiring import Wiring
from perfmodel.base.errors import CalibrationError
from perfmodel.calibration.collectives.fit import (
    SMALLEST_SIGMA,
    Batch,
    build_batches,
    log_residuals,
)
from perfmodel.calibration.collectives.rows import HeldOut, measured_spans

FEWEST_ROWS = 3
NOISE = 0.08
"""How much repeated measurements of one machine differ, in the logarithm."""
LATENCY_PRIOR, BANDWIDTH_PRIOR, PAIR_PRIOR = 0.5, 0.35, 0.2
"""How far machines lie from the shipped constants of their kind, in the logarithm."""
_BANDWIDTHS = ("ll_ratio", "ll128_ratio", "simple_ratio", "nvls_ratio")
_Z_OF_90_PCT = 1.6448536269514722

Constants = TypeVar("Constants", HostConstants, FabricConstants)


@dataclass(frozen=True, slots=True)
class Shift:
    """Logarithms of the three factors of a block."""

    latency: float = 0.0
    bandwidth: float = 0.0
    pair: float = 0.0

    def apply(self, constants: Constants) -> Constants:
        """*constants*, moved."""
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
        """In words, for whoever fitted it."""
        words = f"latencies x {math.exp(self.latency):.2f}, bandwidth x "
        words += f"{math.exp(self.bandwidth):.2f}"
        return words + (f", in pairs x {math.exp(self.pair):.2f} more" if self.pair else "")


@dataclass(frozen=True, slots=True)
class Shifted:
    """A calibration for the machines of some rows, and what was done to each block."""

    calibration: Calibration
    sentences: tuple[str, ...]


def shift_collectives(measurements: Sequence[CollectiveMeasurement], base: Calibration) -> Shifted:
    """*base* with blocks of their own for the machines of *measurements*."""
    # Somebody else's odd host is nothing to start from.
    usual = tuple(entry for entry in base.hosts if not entry.is_odd)
    calibration, sentences = replace(base, hosts=usual), []
    uncertainty = dict(base.uncertainty)
    spans = list(base.spans)
    for name, several, rows in _blocks(measurements):
        if len(rows) < FEWEST_ROWS:
            raise CalibrationError(
                f"{name}: must have {FEWEST_ROWS} rows or more "
                f"{'on several hosts' if several else 'on one host'}, got {len(rows)}. Measure "
                "a few sizes more, small ones and large ones."
            )
        shift = _fit(rows, calibration)
        held = _held_out(rows, calibration)
        calibration = _with_block(calibration, rows[0].wiring(), shift)
        scope = f"{name}/{'several_hosts' if several else 'one_host'}/"
        uncertainty = {key: one for key, one in uncertainty.items() if not key.startswith(scope)}
        uncertainty |= _uncertainty(held, scope)
        spans = [one for one in spans if one.topology != name or (one.hosts > 1) != several]
        spans += measured_spans([replace(row, topology=name) for row in rows])
        where = "between hosts" if several else "inside a host"
        worst = max((abs(_log_error(one)) for one in held), default=0.0)
        sentences.append(
            f"{name}, {where}, {len(rows)} rows: {shift.describe()}; each size predicted "
            f"from the others is off by {math.expm1(worst):.0%} at most"
        )
    done = replace(calibration, uncertainty=uncertainty, spans=tuple(spans))
    return Shifted(done, tuple(sentences))


def _blocks(
    measurements: Sequence[CollectiveMeasurement],
) -> list[tuple[str, bool, list[CollectiveMeasurement]]]:
    """Rows by machine, and by whether hosts were crossed; one host first."""
    gathered: dict[tuple[str, bool], list[CollectiveMeasurement]] = {}
    for row in measurements:
        gathered.setdefault((row.wiring().topology_name, row.hosts > 1), []).append(row)
    return [(name, several, rows) for (name, several), rows in sorted(gathered.items())]


def _fit(rows: Sequence[CollectiveMeasurement], base: Calibration) -> Shift:
    from scipy.optimize import least_squares  # heavy, and only fitting needs it

    batches = build_batches(rows, base)
    has_pairs = any(row.kind is CollectiveKind.ALL_TO_ALL for row in rows)
    has_others = any(row.kind is not CollectiveKind.ALL_TO_ALL for row in rows)
    # Where only exchanges in pairs were measured, their bandwidth is the bandwidth.
    priors = np.array([LATENCY_PRIOR, BANDWIDTH_PRIOR, PAIR_PRIOR])
    priors = priors if has_pairs and has_others else priors[:2]

    def cost(place: FloatArray) -> FloatArray:
        errors = log_residuals(batches, _predict(batches, base, Shift(*place)))
        return np.concatenate([errors / NOISE, place / priors])

    # While wires inside the hosts decide, a slower network makes no difference: a fit that
    # begins with the shipped bandwidth would not find out that it has to go far below it.
    starts = [np.array([0.0, bandwidth, 0.0][: len(priors)]) for bandwidth in (0.0, -0.7)]
    fits = [least_squares(cost, at, loss="soft_l1", f_scale=2.0, max_nfev=60) for at in starts]
    return Shift(*(float(value) for value in min(fits, key=lambda fit: float(fit.cost)).x))


def _predict(batches: Sequence[Batch], base: Calibration, shift: Shift) -> list[FloatArray]:
    predicted = []
    for batch in batches:
        host = base.host_constants(batch.wiring)
        fabric = base.fabric_constants(batch.wiring)
        if fabric is None:
            host = shift.apply(host)
        else:
            fabric = shift.apply(fabric)
        predicted.append(batch.predict_ns(host, fabric, base.software_constants))
    return predicted


def _held_out(rows: Sequence[CollectiveMeasurement], base: Calibration) -> list[HeldOut]:
    held: list[HeldOut] = []
    for size in sorted({row.size_bytes for row in rows}):
        others = [row for row in rows if row.size_bytes != size]
        if not others:
            continue
        shift = _fit(others, base)
        apart = [row for row in rows if row.size_bytes == size]
        batches = build_batches(apart, base)
        empty = [replace(one, movement=one.movement.without_bytes()) for one in batches]
        floors = _predict(empty, base, shift)
        for batch, times, floor in zip(
            batches, _predict(batches, base, shift), floors, strict=True
        ):
            latency = floor * np.ones_like(times)
            held += [
                HeldOut(apart[row], float(time), float(least / time))
                for row, time, least in zip(batch.rows, times, latency, strict=True)
            ]
    return held


def _log_error(held: HeldOut) -> float:
    return math.log(held.predicted_ns / held.measurement.duration_ns)


def _uncertainty(held: Sequence[HeldOut], scope: str) -> dict[str, float]:
    """Standard deviations of what was measured, wide for few rows.

    Kinds and regimes without rows have none, and fall back to what machines left out show.
    """
    errors: dict[str, list[float]] = {}
    kinds = {one.measurement.kind for one in held}
    for one in held:
        regime = regime_of(one.latency_ratio)
        errors.setdefault(f"{scope}{one.measurement.kind.value}/{regime}", []).append(
            _log_error(one)
        )
        if len(kinds) > 1:
            errors.setdefault(f"{scope}any/{regime}", []).append(_log_error(one))
    whole = _sigma([_log_error(one) for one in held])
    # A regime of one or two rows says little by itself: all rows speak with it.
    return {key: round(max(_sigma(one), whole if len(one) < 4 else 0.0), 4)
            for key, one in sorted(errors.items())}  # fmt: skip


def _sigma(errors: Iterable[float]) -> float:
    """What covers a further row with 90 %, as a normal distribution's; Student's for few rows."""
    from scipy.stats import t  # heavy, and only fitting needs it

    values = np.array(list(errors))
    count = len(values)
    if not count:
        return SMALLEST_SIGMA
    spread = math.sqrt(float(np.mean(values**2)))
    factor = float(t.ppf(0.95, max(count - 1, 1))) / _Z_OF_90_PCT * math.sqrt(1 + 1 / count)
    # Two rows would make it six times as wide, and say nothing more.
    return max(SMALLEST_SIGMA, spread * min(factor, 3.0))


def _with_block(base: Calibration, wiring: Wiring, shift: Shift) -> Calibration:
    """*base*, in which the machine of *wiring* has a block of its own and stands in no other."""
    name = wiring.topology_name
    if wiring.host_count > 1:
        found = base.fabric_entry(wiring)
        fabric = replace(
            found, name=f"{name}_own", machines=(name,), constants=shift.apply(found.constants)
        )
        kept = [replace(one, machines=_without(one, name)) for one in base.fabrics]
        return replace(base, fabrics=(*kept, fabric))
    near = base.host_entry(wiring)
    host = replace(
        near,
        name=f"{name}_own",
        machines=(name,),
        is_odd=False,
        constants=shift.apply(near.constants),
    )
    # An entry that loses its only machine must not become one for everybody.
    hosts = [
        replace(one, machines=_without(one, name))
        for one in base.hosts
        if not one.machines or _without(one, name)
    ]
    return replace(base, hosts=(*hosts, host))


def _without(entry: HostEntry | FabricEntry, name: str) -> tuple[str, ...]:
    return tuple(machine for machine in entry.machines if machine != name)
