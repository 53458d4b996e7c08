"""The problem: errors of runs as a linear function of the logarithms of constants.

One value a chip (Transformers: products on tensor cores, attention), and for each stack at most
five deviations from it, drawn towards none (ridge on the logarithm), or from the release that it
extends. The forms are fixed here, before anything is scored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from experiments.fitting.runs import Case
from perfmodel.costs.calibration_files import power_ratio
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.sustained import (
    ARITHMETIC,
    ATTENTION,
    GROUPED,
    GROUPED_NARROW,
    NARROW,
    load_sustained,
    reference_of,
)
from perfmodel.stacks.profiles import STACK_FOLDER, load_stack
from perfmodel.stacks.stack import PLAIN_GEMM, SoftwareStack
from topologies import load_device

OF_STACK = {
    "transformer": ("host", "gemm", "attention", "memory", "communication"),
    "dlrm": ("gemm", PLAIN_GEMM, "memory", "embedding"),
}
"""What a stack may deviate in; `host` divides host_speed_ratio, and products are of one kind in a
run, on tensor cores or outside."""
OF_RELEASE = {
    "transformer": ("gemm", "attention", "memory", "communication"),
    "dlrm": OF_STACK["dlrm"],
}
"""What a stack for some releases may deviate in: libraries change with them, hosts do not."""
OF_CHIP: dict[str, tuple[str, ...]] = {
    "transformer": (ARITHMETIC, ATTENTION, NARROW),
    "dlrm": (),
}
OF_GENERATION = {"transformer": ("memory",), "dlrm": ("gemm", "memory")}
"""What all stacks of a family have in common on a generation: workloads list fewer memory-bound
kernels than frameworks launch, and the chip is not slower for it (recordings show none). Stacks of
recommendation models ran with the libraries of the years of a chip, whose products were slower
than those timed today."""
OF_EXPERTS = (GROUPED, GROUPED_NARROW)
"""What only runs with experts say: fitted to them after everything else."""
CARRIED_BY = dict.fromkeys((ARITHMETIC, NARROW, PLAIN_GEMM, *OF_EXPERTS), "gemm")
ROBUST = 0.10
DOUBT = {"transformer": 0.5, "dlrm": 1.0}
"""How fast rows far off lose weight: among recommendation runs are hosts several times slower
than others of their kind, which no constant of a stack is about."""
PRIORS = {"chip": 0.15, "generation": 0.15, "device": 0.08, "publisher": 0.08}
"""How far values of chips may lie from none. What one publisher's cluster adds (its clocks, its
fabric) is fitted beside them and not kept, so that it does not become the chip's."""
WEIGHT_OF_UNKNOWN = 0.1
"""Frameworks without a stack of their own, or known from one model on one device, say little about
a chip. Experts, whose costs are still far off, say what grouped products take and nothing else."""
PRIOR_OF_HOST = 0.7
"""Of a framework; those on top of one whose host is known run the same modules."""
PRIOR = {"transformer": 0.12, "dlrm": 0.25}
"""Without values of chips, stacks of recommendation models carry more of their own."""
PRIOR_OF_LOOKUPS = 0.5
"""Kernels that frameworks write themselves, some for each table, some with copies between."""
PRIOR_OF_GEMM = 0.08
"""Products of Transformers are of libraries: frameworks differ in their releases alone."""
PRIOR_OF_RELEASE = 0.5
"""Releases of a framework differ from each other half as far as it does from none."""
Key = tuple[str, str, str]
MEASURED: dict[Key, tuple[float, float]] = {
    ("chip", "blackwell", ARITHMETIC): (1.41, 0.03),
    ("chip", "blackwell", GROUPED): (1.0, 0.03),
}
"""What kernels timed under load say of constants, and how surely: products in the layouts of
training on B200 (gemm/training_layouts.csv.gz), beside the constants of short benchmarks, and
grouped ones (moe/grouped_and_attention_training.csv.gz) beside both."""


@dataclass(frozen=True)
class Problem:
    """Errors of *cases* as a linear function of the logarithms of constants.

    *stated* is what the constants in the files add to each, *prior* how far each may lie from
    *centre*, which is none unless kernels under load say more.
    """

    cases: list[Case]
    keys: list[Key]
    slopes: NDArray[np.float64]
    stated: NDArray[np.float64]
    prior: NDArray[np.float64]
    centre: NDArray[np.float64]

    @property
    def now(self) -> NDArray[np.float64]:
        """Errors with the constants in the files."""
        return np.array([case.error for case in self.cases])

    def solve(self, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The constants that *kept* cases ask for, found by reweighted least squares.

        Recommendation models over several hosts are scored and ask for nothing: exchanges
        carry most of their time, and no constant of a kernel is about those.
        """
        kept = kept & np.array([_is_asked(case) for case in self.cases])
        is_last = np.array([key[2] in OF_EXPERTS for key in self.keys])
        has_experts = np.array([case.has_experts for case in self.cases])
        value = self._solve(kept, np.where(has_experts, 0.0, self.weights()), ~is_last)
        # One model has causes of its own: each group of runs counts as one.
        counts = Counter(case.group for case in self.cases)
        alone = np.array([1 / counts[case.group] for case in self.cases])
        value += self._solve(kept, np.where(has_experts, alone, 0.0), is_last, value)
        return self._bounded(value)

    def _solve(
        self,
        kept: NDArray[np.bool_],
        weights: NDArray[np.float64],
        asked: NDArray[np.bool_],
        beside: NDArray[np.float64] | float = 0.0,
    ) -> NDArray[np.float64]:
        """The *asked* constants, and none of the others, *beside* values that are known."""
        kept = kept & (weights > 0)
        value: NDArray[np.float64] = np.zeros(len(self.keys))
        if not kept.any() or not asked.any():
            return value
        slopes, known = self.slopes[kept][:, asked], weights[kept]
        errors = (self.now - self.stated + self.slopes @ (value + beside))[kept]
        prior, centre = self.prior[asked], self.centre[asked]
        power = DOUBT[self.cases[0].row.family]
        weight: NDArray[np.float64] = known
        for _ in range(25):
            scaled = slopes * (weight / ROBUST**2)[:, None]
            matrix = scaled.T @ slopes + np.diag(1 / prior**2)
            found = np.linalg.solve(matrix, centre / prior**2 - scaled.T @ errors)
            weight = known / (1 + ((errors + slopes @ found) / ROBUST) ** 2) ** power
        value[asked] = found
        return value

    def weights(self) -> NDArray[np.float64]:
        """What a case says: little where nothing but its source, model and device speaks for it."""
        of_stack: dict[str, set[Key]] = {}
        for case in self.cases:
            groups = of_stack.setdefault(case.stack, set())
            if not case.has_experts:
                groups.add(case.group)
        is_lone = np.array([len(of_stack[case.stack]) <= 1 for case in self.cases])
        is_lone &= np.array([case.is_transformer for case in self.cases])
        is_lone |= np.array([case.stack.startswith("generic") for case in self.cases])
        has_experts = np.array([case.has_experts for case in self.cases])
        return np.where(has_experts, 0.0, np.where(is_lone, WEIGHT_OF_UNKNOWN, 1.0))

    def _bounded(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        is_of_chip = np.array([key[0] == "chip" for key in self.keys])
        low = np.where(is_of_chip, 0.0, math.log(0.4))
        is_host = np.array([key[2] == "host" for key in self.keys])
        return np.clip(value, np.where(is_host, math.log(0.05), low), math.log(8.0))

    def errors_at(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Errors with *value* for the constants; a prediction does not know what publishers add."""
        is_kept = np.array([key[0] != "publisher" for key in self.keys])
        return self.now - self.stated + self.slopes @ np.where(is_kept, value, 0.0)

    def left_out(self, key_of: Callable[[Case], object]) -> NDArray[np.float64]:
        """Errors of every case with all cases of its key left out of the fit."""
        keys = np.array([hash(key_of(case)) for case in self.cases])
        result = np.empty(len(self.cases))
        for key in np.unique(keys):
            result[keys == key] = self.errors_at(self.solve(keys != key))[keys == key]
        return result


def build_problem(cases: list[Case], family: str) -> Problem:
    """The problem of *cases*; a constant is named by chip or stack, where, and what."""
    columns: dict[Key, NDArray[np.float64]] = {}
    stated = np.zeros(len(cases))
    for place, case in enumerate(cases):
        for key, word in _constants(case, family):
            column = columns.setdefault(key, np.zeros(len(cases)))
            column[place] = case.shares[FAMILIES.index(CARRIED_BY.get(word, word))]
            if key[0] in ("chip", "device", "publisher"):
                part = case.grouped if word in OF_EXPERTS else case.hot
                column[place] *= case.fused if word == ATTENTION else part
            stated[place] += column[place] * _stated(key, case)
    keys = sorted(columns)
    return Problem(
        cases=cases,
        keys=keys,
        slopes=np.column_stack([columns[key] for key in keys]),
        stated=stated,
        prior=np.array([_prior(key, family) for key in keys]),
        centre=np.array([math.log(MEASURED[key][0]) if key in MEASURED else 0.0 for key in keys]),
    )


def _is_asked(case: Case) -> bool:
    return case.is_transformer or case.hosts == 1


def _constants(case: Case, family: str) -> list[tuple[Key, str]]:
    found = [
        (("stack", name, word), word)
        for name in lineage(case.stack, family)
        for word in words_of(name, family)
        if family == "transformer" or word != (PLAIN_GEMM if case.is_tensor else "gemm")
    ]
    found += [
        (("chip", case.architecture, word), word)
        for word in OF_CHIP[family]
        if word == ATTENTION or (case.is_tensor if word == ARITHMETIC else case.is_narrow)
    ]
    if case.has_experts:
        formats = OF_EXPERTS if case.is_narrow else OF_EXPERTS[:1]
        found += [(("chip", case.architecture, word), word) for word in formats]
    found += [
        (("generation", case.architecture, word), word)
        for word in OF_GENERATION[family]
        if word != "gemm" or case.is_tensor
    ]
    if case.is_tensor and OF_CHIP[family]:
        if not _is_reference(case.device):
            found.append((("device", case.device, ARITHMETIC), ARITHMETIC))
        found.append((("publisher", case.publisher, ARITHMETIC), ARITHMETIC))
    return found


def words_of(name: str, family: str) -> tuple[str, ...]:
    return OF_RELEASE[family] if _is_release(name) else OF_STACK[family]


def _stated(key: Key, case: Case) -> float:
    kind, name, word = key
    if kind == "chip":
        return math.log(load_sustained()[word].get(name, 1.0))
    if kind == "device":
        return _deviation(name, case.architecture)
    if kind in ("publisher", "generation") or word == "host":
        return 0.0
    ratio = _load(name).time_ratio(word, case.architecture)
    for parent in lineage(name, case.row.family)[1:2]:
        ratio /= _load(parent).time_ratio(word, case.architecture)
    return math.log(ratio)


@lru_cache(maxsize=64)
def lineage(name: str, family: str) -> tuple[str, ...]:
    """*name* and, of a release of a framework, those that it extends, nearest first.

    Releases deviate from each other, so that one that nobody measured takes over constants. A
    stack of another framework that one extends is no earlier release of it.
    """
    found = [name]
    while _is_release(found[-1]):
        parent = _profile(found[-1])["extends"]
        if family == "transformer" and not _frameworks(parent) & _frameworks(found[-1]):
            break
        found.append(parent)
    return tuple(found)


def _frameworks(name: str) -> set[str]:
    return {claim["framework"] for claim in _profile(name).get("stands_for", ())}


def _is_release(name: str) -> bool:
    return any({"from", "before"} & set(claim) for claim in _profile(name).get("stands_for", ()))


@lru_cache(maxsize=64)
def _profile(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(
        (STACK_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    )
    return content


def _deviation(name: str, architecture: str) -> float:
    """How far the stated value of device *name* lies from its generation's, power apart."""
    stated = load_sustained()[ARITHMETIC]
    if name not in stated:
        return 0.0
    return math.log(stated[name] / stated.get(architecture, 1.0)) - lacking_power(name)


def _is_reference(name: str) -> bool:
    return reference_of(load_device(name)) == name


def lacking_power(name: str) -> float:
    device = load_device(name)
    return math.log(power_ratio(device, reference_of(device)))


@lru_cache(maxsize=64)
def _load(name: str) -> SoftwareStack:
    return load_stack(name)


def _prior(key: Key, family: str) -> float:
    if key in MEASURED:
        return MEASURED[key][1]
    if key[2] in (NARROW, GROUPED_NARROW):
        return PRIORS["device"]
    if key[0] in PRIORS:
        return PRIORS[key[0]]
    if family == "dlrm":
        own = PRIOR_OF_LOOKUPS if key[2] == "embedding" else PRIOR[family]
        return PRIOR_OF_RELEASE * own if _is_release(key[1]) else own
    if key[2] == "host":
        parent = _profile(key[1]).get("extends", "")
        has_own = not (parent and "host_speed_ratio" in _profile(parent))
        return PRIOR_OF_HOST if has_own else PRIOR[family]
    is_later = len(lineage(key[1], family)) > 1
    if key[2] == "gemm" and not is_later:
        return PRIOR_OF_GEMM
    return PRIOR[family] * (PRIOR_OF_RELEASE if is_later else 1.0)
