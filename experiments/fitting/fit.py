"""Fit constants that ship with perfmodel, from the tables that `choices.yaml` lists.

    python experiments/fitting/fit.py NAME ../shared/data [--out PLACE]

Kernels are fitted by `kernels`, collectives and lookups by what `perfmodel calibrate` uses. Here
are the choices: which tables, which rows, and what the header of the file says.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from collectives.measurements import load_measurements
from experiments.fitting.interference import (
    about_traces,
    fit_interference,
    to_text,
)
from experiments.fitting.kernels.fits import (
    HARDWARE,
    fit_entries,
    load_tables,
    write_entries,
)
from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import MeasurementError
from perfmodel.base.fields import Line
from perfmodel.base.forms import Document, Form
from perfmodel.base.writing import write_file
from perfmodel.extensions.measurements.calibration.collectives import (
    about_tables,
    fit_with_uncertainty,
    write_calibration,
)
from perfmodel.extensions.measurements.calibration.embedding import fit_embedding, write_constants
from perfmodel.extensions.measurements.calibration.embedding_cases import load_cases
from perfmodel.extensions.measurements.checking import disagrees
from perfmodel.extensions.measurements.measured_kernels import KernelTable
from topologies import list_devices

CHOICES = Path(__file__).with_name("choices.yaml")
CHECKOUT = Path(__file__).resolve().parents[2]
FOLDS = 5
PLAIN_OPERATORS = ("linear", "bmm")
"""Operators of the fp32 tables, which have no collector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Form):
    """One fit: what it reads, where it writes, and what the tables do not say themselves.

    With *dtypes*, only rows of these formats on GPUs of the catalog count. *cast_apart* says that
    times of quantised GEMMs are without the cast of the activation.
    """

    kind: Line
    out: Line
    tables: tuple[Line, ...] = ()
    own_tables: tuple[Line, ...] = ()
    cases: Line = ""
    preferred_collector: Line = ""
    dtypes: tuple[Line, ...] = ()
    cast_apart: bool = False
    device: Line | None = None
    source: Line = ""
    software: Line = ""
    licence: Line = ""


def load_choices() -> dict[str, Choice]:
    """Every fit by its name."""
    return {
        name: Document(f"{CHOICES.name}, {name}", content, MeasurementError).read(Choice)
        for name, content in load_yaml(CHOICES).items()
    }


def choose_rows(table: KernelTable, choice: Choice) -> KernelTable:
    """Kernels of the formats of *choice* on GPUs of the catalog whose rate agrees with the time."""
    kept = tuple(
        one
        for one in table.kernels
        if one.device in list_devices()
        and one.op.dtype.value in choice.dtypes
        and not disagrees(one.column_ratio)
    )
    return KernelTable(kept, table.unsupported)


def prefer_collector(table: KernelTable, collector: str) -> KernelTable:
    """For devices that *collector* measured, only its GEMMs and the plain operators."""
    preferred = {one.device for one in table.kernels if one.group[0].startswith(collector)}
    kept = tuple(
        one
        for one in table.kernels
        if one.device not in preferred
        or one.group[0].startswith(collector)
        or one.group[0] in PLAIN_OPERATORS
    )
    return KernelTable(kept, table.unsupported)


Made = Mapping[str, str]
"""When and by which command a file was made."""


def fit_kernels(choice: Choice, data: Path, out: Path, made: Made) -> None:
    """Constants of one kind of kernel."""
    paths = [data / name for name in choice.tables]
    table = load_tables(choice.kind, [*paths, *(CHECKOUT / name for name in choice.own_tables)])
    if choice.dtypes:
        table = choose_rows(table, choice)
    if choice.preferred_collector:
        table = prefer_collector(table, choice.preferred_collector)
    words = {"source": choice.source, "software": choice.software, "licence": choice.licence}
    about = {**words, "hardware": HARDWARE, **made}
    entries = fit_entries(choice.kind, table, has_cast=not choice.cast_apart, on_phase=_print_phase)
    write_entries(entries, out, about)


def fit_lookups(choice: Choice, data: Path, out: Path, made: Made) -> None:
    """Constants of embedding kernels; the file of cases says where its times are from."""
    cases, about = load_cases(CHECKOUT / choice.cases, data=data)
    write_constants(fit_embedding(cases), {**about, **made}, out)


def fit_slowdowns(choice: Choice, data: Path, out: Path, made: Made) -> None:
    """How much kernels slow down while collectives run."""
    fitted = fit_interference([data / name for name in choice.tables], device=choice.device)
    about = {**about_traces(fitted), "software": choice.software, "date": made["date"]}
    write_file(out, to_text(fitted, {**about, "licence": choice.licence, **made}))


def fit_calls(choice: Choice, data: Path, out: Path, made: Made) -> None:
    """Constants of collectives."""
    rows = load_measurements([data / name for name in choice.tables])
    fitted = fit_with_uncertainty(rows, folds=FOLDS, on_phase=_print_phase)
    about = {**about_tables(rows), "date": made["date"], "licence": choice.licence, **made}
    write_calibration(fitted, out, about=about)


def _print_phase(what: str, share: float) -> None:
    print(f"{share:4.0%} {what}", flush=True)


FITS: dict[str, Callable[[Choice, Path, Path, Made], None]] = {
    **dict.fromkeys(("gemm", "attention", "experts", "memory"), fit_kernels),
    "embedding": fit_lookups,
    "interference": fit_slowdowns,
    "collectives": fit_calls,
}


def main() -> None:
    """Fit what is named."""
    choices = load_choices()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=choices)
    parser.add_argument("data", type=Path, help="the folder that the tables are in")
    parser.add_argument("--out", type=Path, help="instead of the file that ships")
    words = parser.parse_args()
    choice = choices[words.name]
    command = f"python experiments/fitting/fit.py {words.name} {words.data}"
    made = {"date": datetime.now(UTC).date().isoformat(), "command": command}
    FITS[choice.kind](choice, words.data, words.out or CHECKOUT / choice.out, made)


if __name__ == "__main__":
    main()
