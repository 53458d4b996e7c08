"""Embedding fit: a few physical constants per GPU generation from measured cases.

Each constant stays between limits and is pulled weakly to its start, so one that no case
determines keeps it. Constants without a case in a generation are borrowed from another one, or
assumed; the file says which.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from perfmodel.base.errors import MeasurementError
from perfmodel.base.units import NS_PER_MS
from perfmodel.costs.calibration_files import HEADER_KEYS, Entry
from perfmodel.costs.corrections import Matrix
from perfmodel.costs.embedding import LookupPricer, lookups_terms
from perfmodel.costs.embedding_constants import CONSTANTS, EmbeddingConstants, constants_for
from perfmodel.costs.embedding_terms import Int64s
from perfmodel.costs.estimates import interval_of
from perfmodel.extensions.measurements.calibration.bounded_fit import load_limits, minimise
from perfmodel.extensions.measurements.calibration.constants_file import (
    documents_to_text,
    entry_to_document,
)
from perfmodel.extensions.measurements.calibration.embedding_cases import EmbeddingCase
from perfmodel.extensions.measurements.validation.scoreboard import Deviation, Scoreboard
from perfmodel.graph.ops import Pass
from topologies import Device

_HEADING = """\
# Constants of fused embedding kernels, one set a GPU generation. Others take those of ampere,
# scaled by their datasheets. Ratios are of the datasheet's bandwidths. Made by the command below.
"""


def to_text(fit: EmbeddingFit, about: Mapping[str, str]) -> str:
    """The file; *about* has every key of the header."""
    missing = [key for key in HEADER_KEYS if not about.get(key)]
    if missing:
        raise MeasurementError(f"calibrate embedding: the header needs {', '.join(missing)}.")
    lines = [_HEADING.rstrip()]
    for key in HEADER_KEYS:
        folded = textwrap.wrap(about[key], 96)
        lines += [f"{key}: >-", *(f"  {line}" for line in folded)]
    lines.append("generations:")
    for name, constants in fit.generations.items():
        lines.append(f"  {name}:")
        lines += [f"    {_line(name, constants, one.name)}" for one in fields(constants)]
    return "\n".join(lines) + "\n"


def write_constants(fit: EmbeddingFit, about: Mapping[str, str], path: Path) -> None:
    """Write the file to *path*."""
    path.write_text(to_text(fit, about), encoding="utf-8")


def to_own_text(fit: EmbeddingFit, about: Mapping[str, str], device: Device) -> str:
    """The file of constants of one *device*, for `--calibration`."""
    (constants,) = fit.generations.values()
    values = asdict(constants)
    entry = Entry(
        device.name,
        device.generation,
        device.compute_capability,
        "",
        {name: values[name] for name in CONSTANTS},
        None,
        constants.relative_sigma,
    )
    return documents_to_text(about, [entry_to_document(entry)])


def _line(generation: str, constants: EmbeddingConstants, name: str) -> str:
    """The constant *name* as the file has it, with where it is from."""
    value, key, unit = getattr(constants, name), name, ""
    if name.endswith("_ns"):
        key, unit = name.removesuffix("_ns"), " ns"
        key = key if key == "floor" else f"{key}_time"
    origins = {
        "tail_row_ns": "  # latency of the L2, not fitted",
        "fetched_ns": "  # latency of memory over 16 rows in flight, not fitted",
        "row_updates_per_clock": "  # atomics to one row on a B200, not fitted",
        "update_ratio": "  # HugeCTR's update on a B200, not fitted",
        "relative_sigma": "  # from held-out errors",
    }
    borrowed = "" if name in load_limits()[generation] else f"  # that of {LENDERS[generation]}"
    return f"{key}: {value:g}{unit}{origins.get(name, borrowed)}"


PULL = 0.02
"""Weight of a factor e away from the start, relative to a factor e of error of a time."""
SMALLEST_SIGMA = 0.05
MEAN_OF_NORMAL = 0.798
"""Mean absolute value of a normal draw, over its standard deviation."""
DIGITS = 4
TAIL_ROW_NS = {"volta": 154.0, "ampere": 146.0}
"""Constants without a case: the latency of the L2, 212 clocks of 1,380 MHz on a V100 and 206
of 1,410 MHz on an A100 (RRZE-HPC/gpu-benches, 2026-11-16; figures quoted as facts)."""
IN_FLIGHT = 16
FETCHED_NS = {"volta": 308 / IN_FLIGHT, "ampere": 400 / IN_FLIGHT}
"""The latency of memory (as above; an A100's between 80 and 140 MB) over rows that a
multiprocessor has in flight: with 15 of 512 bytes FBGEMM's forward kernel reaches the 2.525 TB/s,
65 % of peak, of one published production workload (meta-pytorch/torchrec 4757)."""
ROW_UPDATES_PER_CLOCK = 17.0
"""Numbers added to one row by atomics. `index_add` of fp32 on a B200 with half of 7.77 million
indices on one row takes 19.8, 36.8, 46.0 and 98.9 ms for rows of 128 to 1,024 numbers (PyTorch pull
request 182818): 12.8, 13.7, 22.0 and 20.5 per clock of 1,965 MHz, in the geometric mean 17."""
UPDATE_RATIO = 0.65
"""Of memory bandwidth for rows that a sorted update reads and writes back. `embedding update4` of
HugeCTR, Adagrad on fp32 rows of 128, takes 136 and 226 us per iteration and GPU under two plans on
8 x B200 (profiles of 2026), of which 127 and 126 us are rows and state at 0.90 of the bandwidth:
in the geometric mean 1.39 times as long."""
LENDERS = {"volta": "ampere", "ampere": "volta"}
"""The generation that lends constants without a case."""


@dataclass(frozen=True, slots=True)
class CaseError:
    """One time of a case, as measured, predicted, held out, and by another method."""

    case: str
    generation: str
    part: str
    measured_ns: float
    predicted_ns: float
    held_out_ns: float
    heuristic_ns: float | None
    is_fitted: bool

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole pass and not one of its kernels."""
        return self.part in (Pass.FORWARD.value, Pass.BACKWARD.value)

    @property
    def error_pct(self) -> float:
        """Error of the prediction."""
        return self._pct(self.predicted_ns)

    @property
    def held_out_pct(self) -> float:
        """Error of a prediction whose constants did not see this case."""
        return self._pct(self.held_out_ns)

    @property
    def heuristic_pct(self) -> float | None:
        """Error of the other method."""
        return None if self.heuristic_ns is None else self._pct(self.heuristic_ns)

    def _pct(self, predicted_ns: float) -> float:
        return 100 * (predicted_ns / self.measured_ns - 1)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingFit:
    """Constants by generation, and how well each case is met."""

    generations: Mapping[str, EmbeddingConstants]
    errors: tuple[CaseError, ...]


@cache
def _terms(case: EmbeddingCase) -> Int64s:
    """The terms of *case*, which do not depend on the constants."""
    return lookups_terms([case.lookup], case.device)


def _predict_ns(case: EmbeddingCase, constants: EmbeddingConstants) -> dict[str, float]:
    """Every part of *case*."""
    pricer, terms, kernel = LookupPricer(case.device, constants), _terms(case), case.lookup.kernel
    found = {one.value: float(pricer.times(terms, one, kernel)[0][0]) for one in Pass}
    parts = pricer.update_parts(terms.T.astype(np.float64), kernel)
    return {**found, **{part: float(times_ns[0]) for part, times_ns in parts.items()}}


def compare_embedding(cases: Sequence[EmbeddingCase]) -> Scoreboard:
    """Each time of *cases* beside the prediction with the constants that ship, in milliseconds."""
    rows = []
    for case in cases:
        constants = constants_for(case.device)
        predicted_ns = _predict_ns(case, constants)
        for part, measured_ns in case.measured_ns.items():
            low_ns, high_ns = interval_of(predicted_ns[part], constants.relative_sigma)
            rows.append(
                Deviation(
                    row=f"{case.name} {part}",
                    group=f"{case.device.name} {part}",
                    measured=measured_ns / NS_PER_MS,
                    predicted=predicted_ns[part] / NS_PER_MS,
                    low=low_ns / NS_PER_MS,
                    high=high_ns / NS_PER_MS,
                )
            )
    return Scoreboard("embeddings", tuple(rows))


_Fit = Callable[[Sequence[EmbeddingCase]], dict[str, EmbeddingConstants]]


def fit_device(cases: Sequence[EmbeddingCase]) -> EmbeddingFit:
    """Fit the device of all *cases*, from the constants that it would borrow."""
    start = asdict(constants_for(cases[0].device))
    limits = {
        name: limit._replace(start=min(max(start[name], limit.low), limit.high))
        for name, limit in load_limits()["lookups"].items()
    }

    def fit(some: Sequence[EmbeddingCase]) -> dict[str, EmbeddingConstants]:
        found = minimise(
            limits, partial(_errors, some, start), evaluations=200, step=1e-4, pull=PULL
        )
        return {cases[0].generation: _constants({**start, **_rounded(found)})}

    return fit_embedding(cases, fit)


def fit_embedding(cases: Sequence[EmbeddingCase], fit: _Fit | None = None) -> EmbeddingFit:
    """Fit all generations, and each once more without each of its cases."""
    fit_all = fit or _fit_all
    fitted = fit_all(cases)
    errors: list[CaseError] = []
    for case in cases:
        held_out = fit_all([other for other in cases if other is not case])
        predicted_ns, held_out_ns = (
            _predict_ns(case, generations[case.generation]) for generations in (fitted, held_out)
        )
        errors += [
            CaseError(
                case.name,
                case.generation,
                part,
                measured,
                predicted_ns[part],
                held_out_ns[part],
                case.heuristic_ns.get(part),
                part in case.fitted or part == Pass.BACKWARD.value,
            )
            for part, measured in case.measured_ns.items()
        ]
    return EmbeddingFit(
        {name: _with_sigma(constants, name, errors) for name, constants in fitted.items()},
        tuple(errors),
    )


def _fit_all(cases: Sequence[EmbeddingCase]) -> dict[str, EmbeddingConstants]:
    """The constants of every generation, rounded as they will be written."""
    own: dict[str, dict[str, float]] = {}
    for generation in LENDERS:
        members = [case for case in cases if case.generation == generation]
        own[generation] = _fit_generation(generation, members)
    return {
        generation: _constants({**own[lender], **own[generation]})
        for generation, lender in LENDERS.items()
    }


def _fit_generation(generation: str, cases: Sequence[EmbeddingCase]) -> dict[str, float]:
    stated = {
        "tail_row_ns": TAIL_ROW_NS[generation],
        "fetched_ns": FETCHED_NS[generation],
        "row_updates_per_clock": ROW_UPDATES_PER_CLOCK,
        "update_ratio": UPDATE_RATIO,
    }
    # Borrowed constants do not affect the times that are fitted here.
    known = load_limits()
    every = {**known["volta"], **known["ampere"]}
    others = {**{name: limit.start for name, limit in every.items()}, **stated}
    errors = partial(_errors, cases, others)
    found = minimise(known[generation], errors, evaluations=200, step=1e-4, pull=PULL)
    return {**stated, **_rounded(found)}


def _errors(
    cases: Sequence[EmbeddingCase], others: Mapping[str, float], tried: Mapping[str, float]
) -> Matrix:
    """Logarithms of predicted over measured, with the constants *tried* and *others*."""
    constants = _constants({**others, **tried})
    logs = []
    for case in cases:
        predicted = _predict_ns(case, constants)
        logs += [np.log(predicted[part] / case.measured_ns[part]) for part in case.fitted]
    return np.array(logs, dtype=np.float64)


def _rounded(found: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.{DIGITS}g}") for name, value in found.items()}


def _constants(values: Mapping[str, float]) -> EmbeddingConstants:
    return EmbeddingConstants(**{**values, "relative_sigma": SMALLEST_SIGMA})


def _with_sigma(
    constants: EmbeddingConstants, generation: str, errors: Sequence[CaseError]
) -> EmbeddingConstants:
    """*constants* with the spread of held-out errors of whole passes, weighted by time."""
    own = [
        error
        for error in errors
        if error.generation == generation and error.is_fitted and error.is_whole
    ]
    if not own:
        return constants
    sizes = [abs(np.log(error.held_out_ns / error.measured_ns)) for error in own]
    mean = float(np.average(sizes, weights=[error.measured_ns for error in own]))
    return replace(constants, relative_sigma=max(SMALLEST_SIGMA, round(mean / MEAN_OF_NORMAL, 3)))
