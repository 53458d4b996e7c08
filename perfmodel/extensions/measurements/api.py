"""The Python interface of measurements: constants fitted to them, and scores against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from perfmodel.api.details import KernelKind
from perfmodel.api.questions import AUTO, File, Files, Where, build_scenario, open_place
from perfmodel.base.cautions import Cautions
from perfmodel.base.errors import MeasurementError
from perfmodel.base.units import NS_PER_S
from perfmodel.base.writing import check_writable, write_file
from perfmodel.extensions.measurements.checking import check_tables, doubt_scales
from perfmodel.prediction.phases import OnPhase, ignore_phase
from topologies import load_device

if TYPE_CHECKING:
    from collectives.measurements import RunPlace
    from perfmodel.extensions.measurements.calibration.collective_fit import HeldOut
    from perfmodel.extensions.measurements.calibration.embedding import EmbeddingFit
    from perfmodel.extensions.measurements.calibration.run_anchors import AnchoredRuns
    from perfmodel.extensions.measurements.measuring import MeasurePlan
    from perfmodel.extensions.measurements.validation.fits import FitBoard
    from perfmodel.extensions.measurements.validation.scoreboard import Scoreboard
    from perfmodel.prediction.scenario import JobScenario, Scenario
    from perfmodel.stacks.stack import SoftwareStack

FOLDS = 5
RECORDED_LICENCE = "figures of the recordings under their own licences; this file Apache-2.0"


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A fit that was written: how many *sets* of constants, about it, and its *cautions*."""

    sets: int
    lines: tuple[str, ...]
    cautions: Cautions


def calibrate_collectives(
    tables: Files,
    out: File,
    *,
    place: RunPlace | None = None,
    licence: str = "that of the sources",
    is_strict: bool = False,
    on_phase: OnPhase = ignore_phase,
) -> Calibrated:
    """Fit collectives to the machines of *tables* and write the constants to *out*.

    Tables are CSV or output of nccl-tests; *place* names the machine of such output. A few rows
    shift the shipped constants; 200 or more rows of known machines are fitted from scratch. Rows
    that cannot be true are left out, or refused if *is_strict*. The file is a `calibration` of
    scenarios.
    """
    from collectives.calibration import load_default_calibration
    from perfmodel.extensions.measurements.calibration.collective_shift import shift_collectives
    from perfmodel.extensions.measurements.calibration.collectives import (
        about_tables,
        fit_with_uncertainty,
        is_enough,
        write_calibration,
    )

    check_writable("--out", Path(out))
    measurements, cautions = check_tables(tables, place)
    if is_strict:
        cautions.refuse()
    if alone := [one.row for one in measurements if one.ranks == 1]:
        raise MeasurementError(
            f"{', '.join(map(str, tables))}: nranks must be at least 2 to fit a collective, and is "
            f"1 in row {alone[0]}. Leave such rows out."
        )
    if is_enough(measurements):
        fitted = fit_with_uncertainty(measurements, folds=FOLDS, on_phase=on_phase)
        blocks = f"{len(fitted.hosts)} host and {len(fitted.fabrics)} fabric blocks"
        sentences: tuple[str, ...] = (f"Fitted {blocks} from {len(measurements)} rows.",)
    else:
        fitted, sentences = shift_collectives(measurements, load_default_calibration())
    words = [str(table) for table in tables]
    if place is not None:
        said = (("topology", place.topology), ("hosts", place.hosts), ("kind", place.kind))
        words += [f"--{option} {value}" for option, value in said if value is not None]
    made = _made(licence, f"perfmodel calibrate collectives {' '.join(words)} --out {out}")
    write_calibration(fitted, Path(out), about={**about_tables(measurements), **made})
    return Calibrated(1, sentences, cautions)


def calibrate_kernels(
    tables: Files, out: File, *, device: str | None = None, is_strict: bool = False
) -> Calibrated:
    """Write the kernels and collectives timed in *tables*, of all kinds, to *out*.

    Tables are those of the script that `measure` writes, and other tables of kernels; *device* is
    the GPU of those that do not name it. The file is a `calibration` of scenarios.
    """
    from perfmodel.extensions.measurements.calibration import kernel_rows

    check_writable("--out", Path(out))
    rows, cautions = kernel_rows.read_tables([Path(one) for one in tables], device)
    if is_strict:
        cautions.refuse()
    names = " ".join(map(str, tables))
    made = _made("that of the tables", f"perfmodel calibrate kernels {names} --out {out}")
    write_file(Path(out), kernel_rows.kernels_text(rows, {"source": f"tables {names}", **made}))
    return Calibrated(len(rows.kernels), tuple(kernel_rows.iter_lines(rows)), cautions)


def calibrate_runs(
    tables: Files,
    out: File,
    *,
    calibration: Sequence[str] = (),
    is_strict: bool = False,
    on_phase: OnPhase = ignore_phase,
) -> Calibrated:
    """Learn from measured runs in *tables* what they say of other runs on the same GPUs.

    Tables are those of `validate_runs`, or files that this function or `anchor_run` wrote. Runs
    are predicted with the constants in the files *calibration*: give those to predictions too.
    The file *out* is a `calibration` of scenarios.
    """
    from perfmodel.extensions.measurements.calibration.run_anchors import anchor_tables

    check_writable("--out", Path(out))
    found = anchor_tables(
        [Path(one) for one in tables],
        out=Path(out),
        calibration=tuple(calibration),
        on_phase=on_phase,
    )
    return _write_anchors(found, out, is_strict=is_strict)


def anchor_run(scenario: Scenario | JobScenario, measured_ns: float, out: File) -> Calibrated:
    """Learn from one run, that of *scenario*, which took *measured_ns* per iteration."""
    from perfmodel.extensions.measurements.calibration.observing import observe_run
    from perfmodel.extensions.measurements.calibration.run_anchors import judge_anchors

    check_writable("--anchor-out", Path(out))
    question = build_scenario(scenario)
    anchor = observe_run(question, run=question.job.facts.name, measured_ns=measured_ns)
    command = f"perfmodel predict ... --measured {measured_ns / NS_PER_S:.6g}s --anchor-out {out}"
    found = judge_anchors([anchor], command=command, beside=tuple(scenario.calibration))
    return _write_anchors(found, out, is_strict=False)


def _write_anchors(found: AnchoredRuns, out: File, *, is_strict: bool) -> Calibrated:
    from perfmodel.extensions.measurements.calibration.run_anchors import anchors_text

    if is_strict:
        found.cautions.refuse()
    write_file(Path(out), anchors_text(found.file))
    count = len(found.file.anchors)
    return Calibrated(count, found.lines, found.cautions)


def calibrate_embedding(
    cases: File, *, data: File = ".", device: str | None = None, out: File | None = None
) -> EmbeddingFit:
    """Fit lookups and updates to measured *cases*, whose files are in *data*.

    With a *device* they are what FBGEMM's own benchmark printed on it, and the constants are for
    `--calibration`. Every case is also predicted by constants that were fitted without it. The
    constants are written to *out* if it is given.
    """
    from perfmodel.extensions.measurements.calibration.embedding import (
        fit_device,
        fit_embedding,
        to_own_text,
        write_constants,
    )
    from perfmodel.extensions.measurements.calibration.embedding_cases import load_cases
    from perfmodel.extensions.measurements.calibration.fbgemm_log import load_benchmark

    if out is not None:
        check_writable("--out", Path(out))
    if device is None:
        loaded, about = load_cases(Path(cases), data=Path(data))
        fit = fit_embedding(loaded)
    else:
        chip = load_device(device)
        loaded = load_benchmark(Path(cases), chip)
        about = {
            "source": str(cases), "hardware": chip.description, "software": "FBGEMM",
            "licence": "yours",
        }  # fmt: skip
        fit = fit_device(loaded)
    scales = {
        f"{one.case} {one.part}": one.measured_ns / max(one.held_out_ns, 1.0)
        for one in fit.errors
        if one.is_whole
    }
    if wrong := [*doubt_scales(scales)]:
        raise MeasurementError(
            f"{cases}: times must be in the unit that they state. {wrong[0]} times. Correct it."
        )
    if out is not None:
        named = f"--data {data}" if device is None else f"--device {device}"
        made = _made(about["licence"], f"perfmodel calibrate embedding {cases} {named}")
        if device is None:
            write_constants(fit, {**about, **made}, Path(out))
        else:
            write_file(Path(out), to_own_text(fit, {**about, **made}, chip))
    return fit


def calibrate_host(table: File, out: File, *, extends: str = "pytorch_eager") -> SoftwareStack:
    """Make a software stack from host overheads that `trace_extract` wrote, in the file *out*.

    Everything but host times comes from the stack *extends*.
    """
    from perfmodel.extensions.measurements.calibration.host import build_host_stack, load_host_lines
    from perfmodel.stacks.profiles import load_stack

    target = Path(out)
    check_writable("--out", target)
    text = build_host_stack(
        load_host_lines(Path(table)),
        name=target.stem,
        extends=extends,
        source=f"perfmodel calibrate host {Path(table).name}",
        date=_today(),
        licence=RECORDED_LICENCE,
    )
    write_file(target, text)
    return load_stack(target)


def measure(scenario: Scenario | JobScenario, out: File) -> MeasurePlan:
    """What to time for *scenario*, and a script that does, written with its list to folder *out*.

    `calibrate_kernels` takes the table that the script writes.
    """
    from perfmodel.api.questions import predict
    from perfmodel.extensions.measurements.measuring import plan_measuring, write_plan

    plan = plan_measuring(build_scenario(scenario), predict(scenario))
    write_plan(plan, Path(out))
    return plan


def cross_validate(
    tables: Files,
    *,
    folds: int = FOLDS,
    by: str = "size_bytes",
    place: RunPlace | None = None,
    on_phase: OnPhase = ignore_phase,
) -> Scoreboard:
    """Predict every collective of *tables* by a fit that has not seen it.

    Rows that are equal in the column *by* share one of the *folds*.
    """
    from perfmodel.extensions.measurements.calibration import collectives as fitting

    rows, cautions = check_tables(tables, place)
    held = fitting.cross_validate(rows, folds=folds, by=by, on_phase=on_phase)
    return _collectives_board(held, cautions)


def leave_out_collectives(
    tables: Files, machines: Sequence[str], *, place: RunPlace | None = None
) -> Scoreboard:
    """Predict *machines* of *tables* (`dgx_h100`, or `dgx_h100:10` hosts) by a fit without them."""
    from perfmodel.extensions.measurements.calibration import collectives as fitting

    rows, cautions = check_tables(tables, place)
    return _collectives_board(fitting.predict_left_out(rows, machines), cautions)


def _collectives_board(held: Sequence[HeldOut], cautions: Cautions) -> Scoreboard:
    from perfmodel.extensions.measurements.validation.scoreboard import Scoreboard
    from perfmodel.extensions.measurements.validation.tables import collective_deviation

    deviations = tuple(
        collective_deviation(one.measurement, one.predicted_ns, one.relative_sigma) for one in held
    )
    return Scoreboard("collectives", deviations, cautions=cautions)


def validate(
    kind: Literal["collectives"] | KernelKind,
    tables: Files,
    *,
    place: RunPlace | None = None,
    calibration: Sequence[str] = (),
) -> Scoreboard:
    """Compare predictions with *tables* of measured collectives or kernels.

    Kernels come in one table, collectives in one or more; *place* says what output of
    nccl-tests does not. Constants of the files *calibration* override the shipped ones.
    """
    from perfmodel.extensions.measurements.validation.tables import (
        validate_collectives,
        validate_kernels,
    )

    if kind != "collectives":
        [table] = tables
        return validate_kernels(kind, Path(table), calibration=calibration)
    from collectives.calibration import load_calibration

    own = [load_calibration(Path(file)) for file in calibration]
    rows, cautions = check_tables(tables, place)
    board = validate_collectives(rows, calibration=own[0] if own else None)
    return replace(board, cautions=cautions)


def validate_embeddings(cases: File, *, data: File = ".") -> Scoreboard:
    """Compare predictions with measured lookups and updates, those that *cases* describe.

    It is a file as `calibrate embedding` reads it; files that it names are in the folder *data*.
    """
    from perfmodel.extensions.measurements.calibration.embedding import compare_embedding
    from perfmodel.extensions.measurements.calibration.embedding_cases import load_cases

    return compare_embedding(load_cases(Path(cases), data=Path(data))[0])


def validate_fits(tables: Files) -> FitBoard:
    """Compare the memory verdict with *tables* of runs; rows without a time failed."""
    from perfmodel.extensions.measurements.validation.fits import judge_fits
    from perfmodel.extensions.measurements.validation.runs_table import load_runs

    return judge_fits([load_runs(Path(table)) for table in tables])


def validate_runs(
    table: File | None = None,
    *,
    source: str | None = None,
    calibration: Sequence[str] = (),
    **where: Unpack[Where],
) -> Scoreboard:
    """Compare predictions with a *table* of measured training runs, or those of one *source*.

    The default is the core tables of a clone of the repository. Constants of the files
    *calibration* override the shipped ones.
    """
    from perfmodel.extensions.measurements.validation import runs
    from perfmodel.extensions.measurements.validation.runs_table import (
        find_core_tables,
        load_runs,
        of_source,
    )

    paths = [Path(table)] if table is not None else find_core_tables()
    tables = of_source([load_runs(path) for path in paths], source)
    on_phase = where.get("on_phase", ignore_phase)
    with open_place(**AUTO | where) as place:
        return runs.validate_tables(
            tables, executor=place, calibration=tuple(calibration), on_phase=on_phase
        )


def _made(licence: str, command: str) -> dict[str, str]:
    """The end of a header: when and how a file was made."""
    return {"date": _today(), "licence": licence, "command": command}


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
