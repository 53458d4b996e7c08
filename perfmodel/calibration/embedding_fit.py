"""Embedding fit: a few physical constants a GPU generation from measured cases.

Each constant stays between limits and is pulled a little to where it starts,
so that one that no case decides keeps its start. Constants that a generation
has no case for are another's, or assumed, and the file says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibration.bounded_fit import Limit
from perfmodel.calibration.embedding_cases import EmbeddingCase
from perfmodel.costs.embedding import LookupPricer, lookup_terms
from perfmodel.costs.embedding_constants import EmbeddingConstants
from perfmodel.costs.embedding_terms import Int64s
from perfmodel.graph.ops import EmbeddingOp, Pass

PULL = 0.02
"""Weight of an e-fold away from the start beside an e-fold of error of a time."""
SMALLEST_SIGMA = 0.05
MEAN_OF_NORMAL = 0.798
"""Mean of the size of a normal draw, over its deviation."""
DIGITS = 4
_SORTED = {
    "sort_ratio": Limit(0.6, 0.2, 1.0),
    "block_ns": Limit(100.0, 20.0, 500.0),
    "long_row_ns": Limit(10_000.0, 1_000.0, 50_000.0),
}
_COMMON = {"floor_ns": Limit(4_000.0, 1_000.0, 10_000.0), "cache_ratio": Limit(0.6, 0.2, 1.0)}
FITTED: dict[str, dict[str, Limit]] = {
    "volta": {
        **_COMMON,
        "memory_ratio": Limit(0.85, 0.5, 1.0),
        "updates_per_clock": Limit(64.0, 10.0, 200.0),
    },
    "ampere": {**_COMMON, **_SORTED},
}
"""Constants that the cases of a generation decide."""
ASSUMED = {"long_row_entry_ns": 250.0, "tail_row_ns": 500.0}
"""Constants that no case decides."""
LENDERS = {"volta": "ampere", "ampere": "volta"}
"""Whose constants a generation takes where it has no case for them."""


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
        return 100 * (self.predicted_ns / self.measured_ns - 1)

    @property
    def held_out_pct(self) -> float:
        """Error of a prediction whose constants did not see this case."""
        return 100 * (self.held_out_ns / self.measured_ns - 1)

    @property
    def heuristic_pct(self) -> float | None:
        """Error of the other method."""
        if self.heuristic_ns is None:
            return None
        return 100 * (self.heuristic_ns / self.measured_ns - 1)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingFit:
    """Constants by generation, and how well each case is met."""

    generations: Mapping[str, EmbeddingConstants]
    errors: tuple[CaseError, ...]


class _Case:
    """A case with its terms, so that only constants have to be tried."""

    def __init__(self, case: EmbeddingCase) -> None:
        self.case = case
        self.generation = case.device.architecture.value
        op = EmbeddingOp(case.lookup, Pass.FORWARD)
        self._terms: Int64s = lookup_terms(op, case.device)[None, :]

    def predict_ns(self, constants: EmbeddingConstants) -> dict[str, float]:
        """Every part of the case."""
        pricer = LookupPricer(self.case.device, constants)
        kernel = self.case.lookup.kernel
        found = {
            direction.value: float(pricer.times(self._terms, direction, kernel)[0][0])
            for direction in Pass
        }
        parts = pricer.update_parts(self._terms)
        return {
            **found,
            "prepared": float(parts.prepared_ns[0]),
            "long": float(parts.long_ns[0]),
            "short": float(parts.short_ns[0]),
        }


def fit_embedding(cases: Sequence[EmbeddingCase]) -> EmbeddingFit:
    """Fit all generations, and each once more without each of its cases."""
    known = [_Case(case) for case in cases]
    fitted = _fit_all(known)
    held_out = {case.case.name: _fit_all([other for other in known if other is not case])
                for case in known}  # fmt: skip
    errors = tuple(
        CaseError(
            case.case.name,
            case.generation,
            part,
            measured,
            case.predict_ns(fitted[case.generation])[part],
            case.predict_ns(held_out[case.case.name][case.generation])[part],
            case.case.heuristic_ns.get(part),
            part in case.case.fitted or part == Pass.BACKWARD.value,
        )
        for case in known
        for part, measured in case.case.measured_ns.items()
    )
    return EmbeddingFit(
        {name: _with_sigma(constants, name, errors) for name, constants in fitted.items()}, errors
    )


def _fit_all(cases: Sequence[_Case]) -> dict[str, EmbeddingConstants]:
    """The constants of every generation, rounded as they will be written."""
    own: dict[str, dict[str, float]] = {}
    for generation, limits in FITTED.items():
        members = [case for case in cases if case.generation == generation]
        own[generation] = _fit_generation(limits, members)
    return {
        generation: _constants({**ASSUMED, **own[LENDERS[generation]], **own[generation]})
        for generation in FITTED
    }


def _fit_generation(limits: Mapping[str, Limit], cases: Sequence[_Case]) -> dict[str, float]:
    from scipy.optimize import least_squares

    names = list(limits)
    start = np.log([limits[name].start for name in names])
    # What the generation takes from elsewhere does not touch the times that are fitted here.
    others = {**{name: limit.start for name, limit in _ALL.items()}, **ASSUMED}

    def constants(vector: NDArray[np.float64]) -> dict[str, float]:
        return dict(zip(names, np.exp(vector).tolist(), strict=True))

    def errors(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        tried = _constants({**others, **constants(vector)})
        logs = []
        for case in cases:
            predicted = case.predict_ns(tried)
            logs += [np.log(predicted[p] / case.case.measured_ns[p]) for p in case.case.fitted]
        return np.concatenate([np.array(logs, dtype=np.float64), PULL * (vector - start)])

    answer = least_squares(
        errors,
        start,
        bounds=(
            np.log([limits[name].low for name in names]),
            np.log([limits[name].high for name in names]),
        ),
        max_nfev=200,
        diff_step=[1e-4] * len(names),
    )
    return {name: float(f"{value:.{DIGITS}g}") for name, value in constants(answer.x).items()}


_ALL = {**FITTED["volta"], **FITTED["ampere"]}


def _constants(values: Mapping[str, float]) -> EmbeddingConstants:
    return EmbeddingConstants(**values, relative_sigma=SMALLEST_SIGMA, is_own=True)


def _with_sigma(
    constants: EmbeddingConstants, generation: str, errors: Sequence[CaseError]
) -> EmbeddingConstants:
    """Constants with the spread that the held-out errors of whole passes show, long ones more."""
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
