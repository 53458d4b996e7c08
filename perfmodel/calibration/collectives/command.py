"""Calibration of collectives: from tables of measurements to constants, and held-out checks.

One-host rows decide the host blocks, then rows of several hosts the fabric blocks. Folds are made
of sizes, so that a held-out row has no twin in the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from collectives.calibration import Calibration, load_default_calibration
from collectives.constants import (
    FabricConstants,
    FabricEntry,
    HostConstants,
    HostEntry,
    SoftwareConstants,
)
from collectives.measurements import CollectiveMeasurement
from collectives.wiring import HostLinkClass
from perfmodel.base.errors import CalibrationError
from perfmodel.calibration.collectives.fit import (
    Batch,
    build_batches,
    fit_constants,
    fit_uncertainty,
    log_residuals,
    with_sigma,
)
from perfmodel.calibration.collectives.rows import HeldOut, LeftOut, measured_spans
from perfmodel.calibration.collectives.shift import shift_collectives
from perfmodel.calibration.collectives.specs import (
    ALL_PROTOCOLS,
    FABRIC_FROZEN,
    FABRIC_PRIOR,
    FABRIC_SPECS,
    HOST_PRIOR,
    HOST_SPECS,
    PCIE_PRIOR,
    SOFTWARE_PRIOR,
    FabricSpec,
    HostSpec,
)
from perfmodel.prediction.phases import OnPhase, ignore_phase

# Machines whose generation or network others share: what leaving them out costs is what an
# unseen machine can expect. Odd hosts say nothing about others.
TRANSFER_MACHINES = (
    "dgx_a100", "dgx_h100", "dgx_b200", "alps_gh200", "aws_p4d", "azure_nd_a100_v4",
)  # fmt: skip


def fit_collectives(measurements: Sequence[CollectiveMeasurement]) -> Calibration:
    """Fit all blocks that *measurements* have rows for; the others keep their priors."""
    if not measurements:
        raise CalibrationError("calibration of collectives: must be given measurements, got none.")
    skeleton = _skeleton()
    batches = build_batches(measurements, skeleton)
    software = SOFTWARE_PRIOR
    hosts: dict[str, HostConstants] = {}
    for spec in HOST_SPECS:
        rows = [batch for batch in batches if _is_host_row(batch, spec)]
        prior = hosts.get(spec.prior) or (HOST_PRIOR if spec.link_class.is_nvlink else PCIE_PRIOR)
        if not rows:
            continue
        hosts[spec.name] = _fit_host(rows, prior, software, spec)
        if any(batch.software.is_before_2_24 for batch in rows):
            software = _fit_software(rows, hosts[spec.name], software)
            hosts[spec.name] = _fit_host(rows, hosts[spec.name], software, spec)
    entries = _host_entries(hosts)
    partial = replace(skeleton, hosts=entries, software_constants=software)
    return replace(partial, fabrics=_fit_fabrics(batches, partial))


def _skeleton() -> Calibration:
    """A calibration of priors only, with the structure of the specs."""
    default = load_default_calibration()
    return replace(
        default,
        hosts=_host_entries({spec.name: HOST_PRIOR for spec in HOST_SPECS}),
        fabrics=tuple(_fabric_entry(spec, FABRIC_PRIOR) for spec in FABRIC_SPECS),
        software_constants=SOFTWARE_PRIOR,
        spans=(),
        uncertainty={},
    )


def _host_entries(constants: dict[str, HostConstants]) -> tuple[HostEntry, ...]:
    entries = [
        HostEntry(
            name=spec.name,
            architecture=spec.architecture,
            link_class=spec.link_class,
            machines=spec.machines,
            is_odd=spec.is_odd,
            constants=constants[spec.name],
        )
        for spec in HOST_SPECS
        if spec.name in constants
    ]
    return (*entries, *_pcie_entries(constants))


def _pcie_entries(constants: dict[str, HostConstants]) -> list[HostEntry]:
    """Other PCIe machines: latencies of the measured one, but not its odd loss of bandwidth."""
    odd = constants.get("l40s_pcie", PCIE_PRIOR)
    usual = replace(
        odd,
        simple_ratio=PCIE_PRIOR.simple_ratio,
        pair_ratio=PCIE_PRIOR.pair_ratio,
        ll_ratio=PCIE_PRIOR.ll_ratio,
        ll128_ratio=PCIE_PRIOR.ll128_ratio,
        ll128_hop_ns=PCIE_PRIOR.ll128_hop_ns,
        crowding=0.0,
        pair_crowding=0.0,
    )
    kinds = [("ada", HostLinkClass.PCIE_HOST), ("ampere", HostLinkClass.PCIE_PEER)]
    return [
        HostEntry(
            name=link_class.value,
            architecture=architecture,
            link_class=link_class,
            machines=(),
            constants=usual,
        )
        for architecture, link_class in kinds
    ]


def _fabric_entry(spec: FabricSpec, constants: FabricConstants) -> FabricEntry:
    return FabricEntry(
        name=spec.name,
        machines=spec.machines,
        protocols=spec.protocols,
        tree_protocols=spec.tree_protocols,
        pair_ll_bytes=spec.pair_ll_bytes,
        constants=constants,
    )


def _is_host_row(batch: Batch, spec: HostSpec) -> bool:
    return batch.wiring.host_count == 1 and batch.wiring.topology_name in spec.learns_from


def _fit_host(
    rows: list[Batch], prior: HostConstants, software: SoftwareConstants, spec: HostSpec
) -> HostConstants:
    return fit_constants(
        prior,
        lambda host: log_residuals(
            rows, [batch.predict_ns(host, None, software) for batch in rows]
        ),
        frozen=spec.frozen,
    )


def _fit_software(
    rows: list[Batch], host: HostConstants, prior: SoftwareConstants
) -> SoftwareConstants:
    return fit_constants(
        prior,
        lambda software: log_residuals(
            rows, [batch.predict_ns(host, None, software) for batch in rows]
        ),
    )


def _fit_fabrics(batches: Sequence[Batch], partial: Calibration) -> tuple[FabricEntry, ...]:
    entries: list[FabricEntry] = []
    prior = FABRIC_PRIOR
    for spec in FABRIC_SPECS:
        rows = [
            batch
            for batch in batches
            if batch.wiring.host_count > 1 and batch.wiring.topology_name in spec.learns_from
        ]
        constants = _fit_fabric(rows, prior, partial) if rows else _between(prior, entries)
        prior = constants if spec.protocols == ALL_PROTOCOLS else prior
        entries.append(_fabric_entry(spec, constants))
    return tuple(entries)


def _between(first: FabricConstants, entries: Sequence[FabricEntry]) -> FabricConstants:
    """*first* with the bandwidth halfway to what the entry fitted last reaches.

    Two ranks share a NIC there, and slow each other down.
    """
    if not entries:
        return first
    last = entries[-1].constants
    reached = last.simple_ratio / (1.0 + last.nic_crowding)
    return replace(first, simple_ratio=(first.simple_ratio + reached) / 2)


def _fit_fabric(rows: list[Batch], prior: FabricConstants, partial: Calibration) -> FabricConstants:
    hosts = [partial.host_constants(batch.wiring) for batch in rows]
    return fit_constants(
        prior,
        lambda fabric: log_residuals(
            rows,
            [
                batch.predict_ns(host, fabric, partial.software_constants)
                for batch, host in zip(rows, hosts, strict=True)
            ],
        ),
        frozen=FABRIC_FROZEN,
    )


def predict_rows(
    measurements: Sequence[CollectiveMeasurement], calibration: Calibration
) -> list[HeldOut]:
    """Predict every row with *calibration*, in order."""
    found: dict[int, HeldOut] = {}
    for batch in build_batches(measurements, calibration):
        host = calibration.host_constants(batch.wiring)
        fabric = calibration.fabric_constants(batch.wiring)
        predicted = batch.predict_ns(host, fabric, calibration.software_constants)
        empty = replace(batch, movement=batch.movement.without_bytes())
        latency = empty.predict_ns(host, fabric, calibration.software_constants) * np.ones_like(
            predicted
        )
        for row, duration, floor in zip(batch.rows, predicted, latency, strict=True):
            ratio = float(floor / duration)
            measured = measurements[row]
            sigma = calibration.relative_sigma(batch.wiring, batch.kind, measured.size_bytes, ratio)
            found[row] = HeldOut(measured, float(duration), ratio, sigma)
    return [found[number] for number in range(len(measurements))]


def cross_validate(
    measurements: Sequence[CollectiveMeasurement],
    *,
    folds: int,
    by: str = "size_bytes",
    on_phase: OnPhase = ignore_phase,
) -> list[HeldOut]:
    """Predict every row that a fold holds from a fit on all others; see `deal_folds`."""
    fold_of_row = deal_folds(measurements, folds, by=by)
    held: dict[int, HeldOut] = {}
    for fold in range(folds):
        on_phase(f"fitting without fold {fold + 1} of {folds}", 0.6 * fold / folds)
        inside = [row for row, of in zip(measurements, fold_of_row, strict=True) if of != fold]
        places = [place for place, of in enumerate(fold_of_row) if of == fold]
        fitted = fit_collectives(inside) if is_enough(measurements) else shift_shipped(inside)
        predicted = predict_rows([measurements[place] for place in places], fitted)
        held.update(zip(places, predicted, strict=True))
    places = sorted(held)
    return with_sigma([held[place] for place in places], [fold_of_row[one] for one in places])


def shift_shipped(measurements: Sequence[CollectiveMeasurement]) -> Calibration:
    """The shipped constants, moved to the machines of *measurements*."""
    return shift_collectives(measurements, load_default_calibration()).calibration


def predict_left_out(
    measurements: Sequence[CollectiveMeasurement], left_out: Sequence[LeftOut]
) -> list[HeldOut]:
    """Predict the rows of machines left out from a fit on all others and the datasheet."""
    kept = [row for row in measurements if not any(one.covers(row) for one in left_out)]
    rest = [row for row in measurements if any(one.covers(row) for one in left_out)]
    if not rest:
        names = ", ".join(one.name for one in left_out)
        raise CalibrationError(f"leave-out {names}: no row of the tables is of that machine.")
    return predict_rows(rest, fit_collectives(kept))


ENOUGH_ROWS = 200
"""Fewer rows, or rows of other machines, shift the shipped constants by a few factors."""


def is_enough(measurements: Sequence[CollectiveMeasurement]) -> bool:
    """Whether *measurements* can be fitted from priors: many rows, of machines that are specified.

    Anything less moves the shipped constants (`perfmodel.calibration.collectives.shift`).
    """
    known = {name for spec in (*HOST_SPECS, *FABRIC_SPECS) for name in spec.learns_from}
    return len(measurements) >= ENOUGH_ROWS and all(row.topology in known for row in measurements)


def fit_with_uncertainty(
    measurements: Sequence[CollectiveMeasurement], *, folds: int, on_phase: OnPhase = ignore_phase
) -> Calibration:
    """Fit all rows, with the uncertainty that held-out sizes and left-out machines show."""
    held = cross_validate(measurements, folds=folds, on_phase=on_phase)
    unseen: list[HeldOut] = []
    for machine in TRANSFER_MACHINES:
        left_out = LeftOut(machine)
        if any(left_out.covers(row) for row in measurements):
            on_phase(f"fitting without {machine}", 0.7)
            unseen += predict_left_out(measurements, [left_out])
    on_phase("fitting all rows", 0.9)
    fitted = fit_collectives(measurements)
    spans = measured_spans(measurements)
    return replace(fitted, uncertainty=fit_uncertainty(held, unseen), spans=spans)


FOLD_COLUMNS: Mapping[str, Callable[[CollectiveMeasurement], int]] = {
    "size_bytes": lambda row: row.size_bytes,
    "hosts": lambda row: row.hosts,
    "nranks": lambda row: row.ranks,
}
IN_EVERY_FIT = -1


def deal_folds(
    measurements: Sequence[CollectiveMeasurement], folds: int, *, by: str = "size_bytes"
) -> list[int]:
    """The fold of each row: values of the column *by* in order, dealt round.

    Folding by hosts asks how far a network carries: rows of one host are fitted always.
    """
    value_of = FOLD_COLUMNS[by]
    is_kept = [by == "hosts" and row.hosts == 1 for row in measurements]
    values = sorted(
        {value_of(row) for row, kept in zip(measurements, is_kept, strict=True) if not kept}
    )
    if not 2 <= folds <= len(values):
        raise CalibrationError(
            f"cross-validation: folds must be from 2 to the number of values of {by} "
            f"({len(values)}), got {folds}."
        )
    fold_of = {value: number % folds for number, value in enumerate(values)}
    return [
        IN_EVERY_FIT if kept else fold_of[value_of(row)]
        for row, kept in zip(measurements, is_kept, strict=True)
    ]
