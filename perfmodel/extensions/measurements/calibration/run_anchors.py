"""Anchoring: from rows of measured runs to a file of anchors, and which rows contradict the others.

A row is compared with what the others say of it. Its time may be three times theirs (a slow GPU or
host, or a fault), or outside what they allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import yaml

from perfmodel.base.cautions import Cautions
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.base.forms import CalibrationHeader
from perfmodel.base.identity import program_identity
from perfmodel.base.units import NS_PER_S
from perfmodel.extensions.measurements.calibration.anchors import (
    FACTORS,
    Anchor,
    AnchorFile,
    Kind,
    learn,
    load_anchors,
)
from perfmodel.extensions.measurements.calibration.observing import observe_run
from perfmodel.extensions.measurements.checking import doubt_scales
from perfmodel.extensions.measurements.measured_kernels import Unsupported
from perfmodel.extensions.measurements.validation.runs_question import read_setting
from perfmodel.extensions.measurements.validation.runs_table import load_runs
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.question import PredictOptions, build_question

LIKE_A_FAULT = 3.0
DEVIATIONS = 3.0
"""Standard deviations beyond which a row contradicts the others."""
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class AnchoredRuns:
    """A file of anchors, rows that could not be used, and rows that the others contradict."""

    file: AnchorFile
    unusable: tuple[Unsupported, ...]
    doubts: tuple[str, ...]
    cautions: Cautions

    @property
    def lines(self) -> tuple[str, ...]:
        """What a user should read: doubts, rows left out, and factors by device and stack."""
        return (
            *self.doubts,
            *(f"Row {one.row} is not used: {one.reason}" for one in self.unusable),
            *iter_factors(self.file.anchors),
        )


def anchor_tables(
    tables: Sequence[Path],
    *,
    out: Path,
    calibration: tuple[str, ...] = (),
    on_phase: OnPhase = ignore_phase,
) -> AnchoredRuns:
    """The anchors in *tables* of runs (CSV) and files of anchors (YAML).

    Runs are predicted with the constants in the files *calibration*, which then belong to them.
    """
    anchors: list[Anchor] = []
    unusable: list[Unsupported] = []
    asked = PredictOptions(samples=0, is_explained=False)
    for number, path in enumerate(tables):
        if path.suffix in (".yaml", ".yml"):
            anchors += load_anchors(path).anchors
            continue
        for row in load_runs(path).rows:
            on_phase(f"predicting run {row.name}", number / len(tables))
            try:
                if row.measured_s is None and not row.faults:
                    raise MeasurementError("no time was measured")
                question = build_question(read_setting(row, asked, calibration=calibration))
                assert row.measured_s is not None
                measured_ns = row.measured_s * NS_PER_S
                anchors.append(observe_run(question, run=str(row.name), measured_ns=measured_ns))
            except InputError as fault:
                unusable.append(Unsupported(row.name, " ".join(str(fault).split())))
    names = " ".join(map(str, tables))
    if not anchors:
        reasons = "; ".join(f"row {one.row}: {one.reason}" for one in unusable[:3])
        raise MeasurementError(f"{names}: no row can be used, so nothing was learnt. {reasons}")
    beside = "".join(f" --calibration {file}" for file in calibration)
    command = f"perfmodel calibrate runs {names}{beside} --out {out}"
    return judge_anchors(anchors, command=command, beside=calibration, unusable=tuple(unusable))


def judge_anchors(
    anchors: Sequence[Anchor],
    *,
    command: str,
    beside: tuple[str, ...] = (),
    unusable: tuple[Unsupported, ...] = (),
) -> AnchoredRuns:
    """*anchors* as a file; refused where their times cannot be in the stated unit."""
    scales = {f"row {one.run}": one.measured_ns / one.predicted_ns for one in anchors}
    middle = float(np.median(list(scales.values())))
    if any(doubt_scales({"": middle})):
        raise MeasurementError(
            f"measured runs: times must be in seconds (iter_time_s) or have their unit in the "
            f"heading, and are {middle:,.4g} times the predicted ones. Correct the unit or the "
            "machine."
        )
    file = AnchorFile(
        source=f"{len(anchors)} measured runs: {', '.join(one.run for one in anchors)}",
        hardware=", ".join(dict.fromkeys(one.device for one in anchors)),
        software=", ".join(dict.fromkeys(one.stack for one in anchors)),
        date=datetime.now(UTC).date().isoformat(),
        licence="measured by the user of this command; no restriction",
        command=command,
        program=program_identity(),
        beside=beside,
        anchors=tuple(anchors),
    )
    cautions = Cautions((*doubt_scales(scales),))
    return AnchoredRuns(file, unusable, tuple(iter_doubts(anchors)), cautions)


def iter_doubts(anchors: Sequence[Anchor]) -> Iterator[str]:
    """Sentences about rows that contradict the others of their device."""
    for one in anchors:
        others = [
            other
            for other in anchors
            if other is not one and other.device == one.device and other.family == one.family
        ]
        if not others:
            continue
        shares = np.array([one.shares[name] for name in FACTORS])
        learnt = learn(others, one, shares)
        off = one.error - learnt.total(shares)
        allowed = learnt.sigma * DEVIATIONS
        times = float(np.exp(abs(off)))
        told = f"{times:.2f} times as {'long' if off > 0 else 'short'} as {len(others)} others say"
        if times >= LIKE_A_FAULT and len(others) >= _FEWEST:
            yield (
                f"Row {one.run} looks like a fault: it took {told}. A slow GPU, host or link would "
                "explain it. It hardly counts; leave it out if it is known to be one."
            )
        elif abs(off) > allowed:
            yield (
                f"Row {one.run} contradicts the others: it took {told}, and {np.exp(allowed):.2f} "
                "is what they allow. It counts less. Check its layout, precision and machine."
            )


def iter_factors(anchors: Sequence[Anchor]) -> Iterator[str]:
    """By device and stack, the factors by which times of runs like its anchors are multiplied."""
    for key in dict.fromkeys((one.device, one.stack, one.family) for one in anchors):
        alike = [one for one in anchors if (one.device, one.stack, one.family) == key]
        related = [one for one in anchors if (one.device, one.family) == (key[0], key[2])]
        shares = np.mean([[one.shares[name] for name in FACTORS] for one in alike], axis=0)
        learnt = learn(related, alike[0], shares)
        factors = ", ".join(
            f"{name} {factor:.3f}"
            for name, factor in zip((*FACTORS, "all"), np.exp(learnt.logs), strict=True)
        )
        device, stack, _ = key
        yield (
            f"{device}, {stack}: {factors}; interval {learnt.ratio:.0%} of its width, from "
            f"{len(related)} run{'s' * (len(related) > 1)}."
        )


def anchors_text(file: AnchorFile) -> str:
    """*file* as YAML; factors are in its comments, because they follow from the anchors."""
    header = {one.name: getattr(file, one.name) for one in fields(CalibrationHeader)}
    document = {**header, "program": file.program, "beside": list(file.beside)}
    document["anchors"] = [_to_document(one) for one in file.anchors]
    comments = "".join(f"# {line}\n" for line in iter_factors(file.anchors))
    return comments + yaml.safe_dump(document, sort_keys=False, width=110, default_flow_style=None)


def _to_document(anchor: Anchor) -> dict[str, object]:
    about = {one.name: getattr(anchor, one.name) for one in fields(Kind)}
    return {
        "run": anchor.run,
        **about,
        "measured": f"{anchor.measured_ns / NS_PER_S:.6g} s",
        "predicted": f"{anchor.predicted_ns / NS_PER_S:.6g} s",
        "shares": dict(anchor.shares),
    }
