"""Fit the constants of all stacks of a family to measured runs, and score them on sources left out.

    python experiments/fitting/stacks.py ../shared/data/runs transformer [--write]

One value a chip (Transformers: arithmetic on tensor cores, attention, memory-bound kernels), and
for each stack at most four deviations from it, drawn towards none (ridge on the logarithm), or
from the release that it extends. The forms are fixed here, before anything is scored.
Predictions follow the constants by one replay a run (see runs.py), so a fit is a small
least-squares problem; `--write` puts constants and evidence into the stack files, `sustained.yaml`
and `spread.yaml`, and another round starts from there. Scores are with publisher, model and
device left out together, and with the configuration of a row.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from experiments.figures import EXPERIMENTS
from experiments.fitting.runs import Case, build_case, choose_rows, list_groups
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.sustained import FILE as SUSTAINED_FILE
from perfmodel.costs.sustained import load_sustained, power_ratio, reference_of
from perfmodel.prediction.question import PredictOptions
from perfmodel.stacks.capabilities import Family
from perfmodel.stacks.profiles import STACK_FOLDER, load_stack
from perfmodel.stacks.spread import FILE as SPREAD_FILE
from perfmodel.stacks.stack import PLAIN_GEMM, SoftwareStack
from perfmodel.validation.runs_table import load_runs
from topologies import load_device

TABLES = {
    Family.TRANSFORMER: ("transformer.csv.gz", "core_transformer.csv"),
    Family.DLRM: ("dlrm.csv", "core_dlrm.csv"),
}
OF_STACK = {
    Family.TRANSFORMER: ("host", "attention", "memory", "communication"),
    Family.DLRM: ("gemm", PLAIN_GEMM, "memory", "embedding"),
}
"""What a stack may deviate in; `host` divides host_speed_ratio, and products are of one kind in a
run, on tensor cores or outside."""
OF_RELEASE = {
    Family.TRANSFORMER: ("gemm", "attention", "memory", "communication"),
    Family.DLRM: OF_STACK[Family.DLRM],
}
"""What a stack for some releases may deviate in: libraries change with them, hosts do not."""
OF_CHIP = {Family.TRANSFORMER: ("arithmetic", "attention", "memory"), Family.DLRM: ()}
CARRIED_BY = {"arithmetic": "gemm", PLAIN_GEMM: "gemm"}
MOST_OF_GROUP = 6
ROBUST = 0.10
DOUBT = {Family.TRANSFORMER: 0.5, Family.DLRM: 1.0}
"""How fast rows far off lose weight: among recommendation runs are hosts several times slower
than others of their kind, which no constant of a stack is about."""
PRIORS = {"chip": 0.15, "device": 0.08, "publisher": 0.08}
"""How far values of chips may lie from none. What one publisher's cluster adds (its clocks, its
fabric) is fitted beside them and not kept, so that it does not become the chip's."""
WEIGHT_OF_UNKNOWN = 0.1
"""Frameworks without a stack of their own or known from one model on one device, and experts,
whose costs are still far off, say little about a chip."""
PRIOR_OF_HOST = 0.7
PRIOR = {Family.TRANSFORMER: 0.12, Family.DLRM: 0.25}
"""Without values of chips, stacks of recommendation models carry more of their own."""
PRIOR_OF_LOOKUPS = 0.5
"""Kernels that frameworks write themselves, some for each table, some with copies between."""
PRIOR_OF_RELEASE = 0.5
"""Releases of a framework differ from each other half as far as it does from none."""
SMALL = 0.03
"""Deviations below this are left out of the files."""
SEEN = {Family.TRANSFORMER: 1.15, Family.DLRM: 1.1}
"""Capabilities of stacks were chosen with these rows in view: others are further off by so much,
an allowance."""
UNSURE = 0.4
"""What kernels make unsure where it is not known how GPUs of a host reach each other."""
Z_90 = 1.645
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Problem:
    """Errors of *cases* as a linear function of the logarithms of constants.

    *stated* is what the constants in the files add to each, *prior* how far each may lie from none.
    """

    cases: list[Case]
    keys: list[Key]
    slopes: NDArray[np.float64]
    stated: NDArray[np.float64]
    prior: NDArray[np.float64]

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
        slopes, errors = self.slopes[kept], (self.now - self.stated)[kept]
        known = self.weights()[kept]
        power = DOUBT[self.cases[0].row.family]
        weight: NDArray[np.float64] = known
        value: NDArray[np.float64] = np.zeros(len(self.keys))
        for _ in range(25):
            scaled = slopes * (weight / ROBUST**2)[:, None]
            matrix = scaled.T @ slopes + np.diag(1 / self.prior**2)
            value = np.linalg.solve(matrix, -scaled.T @ errors).astype(np.float64)
            off = (errors + slopes @ value) / ROBUST
            weight = known / (1 + off**2) ** power
        return self._bounded(value)

    def weights(self) -> NDArray[np.float64]:
        """What a case says: little where nothing but its source, model and device speaks for it."""
        of_stack: dict[str, set[Key]] = {}
        for case in self.cases:
            of_stack.setdefault(case.stack, set()).add(case.group)
        is_lone = np.array([len(of_stack[case.stack]) == 1 for case in self.cases])
        is_lone &= np.array([case.is_transformer for case in self.cases])
        is_far_off = [case.stack.startswith("generic") or case.has_experts for case in self.cases]
        return np.where(is_lone | np.array(is_far_off), WEIGHT_OF_UNKNOWN, 1.0)

    def _bounded(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        is_arithmetic = np.array([key[::2] == ("chip", "arithmetic") for key in self.keys])
        low = np.where(is_arithmetic, 0.0, math.log(0.4))
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


def build_problem(cases: list[Case], family: Family) -> Problem:
    """The problem of *cases*; a constant is named by chip or stack, where, and what."""
    columns: dict[Key, NDArray[np.float64]] = {}
    stated = np.zeros(len(cases))
    for place, case in enumerate(cases):
        for key, word in _constants(case, family):
            column = columns.setdefault(key, np.zeros(len(cases)))
            column[place] = case.shares[FAMILIES.index(CARRIED_BY.get(word, word))]
            stated[place] += column[place] * _stated(key, case)
    keys = sorted(columns)
    return Problem(
        cases=cases,
        keys=keys,
        slopes=np.column_stack([columns[key] for key in keys]),
        stated=stated,
        prior=np.array([_prior(key, family) for key in keys]),
    )


def _is_asked(case: Case) -> bool:
    return case.is_transformer or case.hosts == 1


def _constants(case: Case, family: Family) -> list[tuple[Key, str]]:
    found = [
        (("stack", name, word), word)
        for name in lineage(case.stack, family)
        for word in _words(name, family)
        if family is Family.TRANSFORMER or word != (PLAIN_GEMM if case.is_tensor else "gemm")
    ]
    if case.loads_long:
        found += [
            (("chip", case.architecture, word), word)
            for word in OF_CHIP[family]
            if word != "arithmetic" or case.is_tensor
        ]
        if case.is_tensor and OF_CHIP[family] and not _is_reference(case.device):
            found.append((("device", case.device, "arithmetic"), "arithmetic"))
        if case.is_tensor and OF_CHIP[family]:
            found.append((("publisher", case.publisher, "arithmetic"), "arithmetic"))
    return found


def _words(name: str, family: Family) -> tuple[str, ...]:
    return OF_RELEASE[family] if _is_release(name) else OF_STACK[family]


def _stated(key: Key, case: Case) -> float:
    kind, name, word = key
    if kind == "chip":
        return math.log(load_sustained()[word].get(name, 1.0))
    if kind == "device":
        return _deviation(name, case.architecture)
    if kind == "publisher" or word == "host":
        return 0.0
    ratio = _load(name).time_ratio(word, case.architecture)
    for parent in lineage(name, case.row.family)[1:2]:
        ratio /= _load(parent).time_ratio(word, case.architecture)
    return math.log(ratio)


@lru_cache(maxsize=64)
def lineage(name: str, family: Family) -> tuple[str, ...]:
    """*name* and, of a release of a recommendation framework, those that it extends, nearest first.

    Releases deviate from each other, so that one that nobody measured takes over constants.
    """
    found = [name]
    while family is Family.DLRM and _is_release(found[-1]):
        found.append(_profile(found[-1])["extends"])
    return tuple(found)


def _is_release(name: str) -> bool:
    return any({"from", "before"} & set(claim) for claim in _profile(name)["stands_for"])


@lru_cache(maxsize=64)
def _profile(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(
        (STACK_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    )
    return content


def _deviation(name: str, architecture: str) -> float:
    """How far the stated value of device *name* lies from its generation's, power apart."""
    stated = load_sustained()["arithmetic"]
    if name not in stated:
        return 0.0
    return math.log(stated[name] / stated.get(architecture, 1.0)) - _lacking_power(name)


def _is_reference(name: str) -> bool:
    return reference_of(load_device(name)) == name


def _lacking_power(name: str) -> float:
    device = load_device(name)
    return math.log(power_ratio(device, reference_of(device)))


@lru_cache(maxsize=64)
def _load(name: str) -> SoftwareStack:
    return load_stack(name)


def _prior(key: Key, family: Family) -> float:
    if key[0] in PRIORS:
        return PRIORS[key[0]]
    if family is Family.DLRM:
        own = PRIOR_OF_LOOKUPS if key[2] == "embedding" else PRIOR[family]
        return PRIOR_OF_RELEASE * own if _is_release(key[1]) else own
    return PRIOR_OF_HOST if key[2] == "host" else PRIOR[family]


def quantile_sigma(errors: NDArray[np.float64]) -> float:
    """The standard deviation of a normal distribution with the 90 % of *errors*."""
    return float(np.quantile(np.abs(errors), 0.9) / Z_90) if len(errors) else 0.0


@dataclass(frozen=True)
class Spreads:
    """Spreads of a family: of stacks on chips, and where there is no evidence."""

    of_stack: Mapping[tuple[str, str], float]
    other_chip: float
    no_runs: float
    per_doubling: float
    experts: float

    def sigma(self, case: Case) -> float:
        """The whole width of a case of a stack with evidence."""
        own = self.of_stack[case.stack, case.architecture]
        return math.hypot(max(own, self.experts if case.has_experts else 0.0), case.kernel_sigma)


def find_spreads(problem: Problem) -> Spreads:
    """What sources left out say of intervals, kernels' own doubt taken off.

    Experts have a spread of their own, which says nothing of dense models.
    """
    cases = problem.cases
    kernels = np.array([case.kernel_sigma for case in cases])
    is_dense = np.array([not case.has_experts for case in cases])
    left = problem.left_out(lambda case: case.group)
    common = _beyond(left[is_dense], kernels[is_dense])
    of_stack = {}
    for key in dict.fromkeys((case.stack, case.architecture) for case in cases):
        rows = np.array([(case.stack, case.architecture) == key for case in cases]) & is_dense
        groups = len({case.group for case, is_one in zip(cases, rows, strict=True) if is_one})
        is_told = rows.any() and (groups > 1 or cases[0].is_transformer)
        own = _beyond(left[rows], kernels[rows]) if is_told else common
        # Few groups say little: draw towards what all stacks have in common.
        drawn = math.sqrt((groups * own**2 + 4 * common**2) / (groups + 4))
        of_stack[key] = SEEN[cases[0].row.family] * drawn
    chip = problem.left_out(lambda case: (case.stack, case.architecture))
    stack = problem.left_out(lambda case: case.stack)
    other, none = (max(_beyond(one[is_dense], kernels[is_dense]), common) for one in (chip, stack))
    # Frameworks that nobody described, or that one source speaks for, are further off than others.
    unknown = is_dense & (problem.weights() < 1)
    if unknown.any():
        none = max(none, SEEN[cases[0].row.family] * _beyond(left[unknown], kernels[unknown]))
    far = np.array([case.hosts > 4 for case in cases]) & is_dense
    beyond = problem.left_out(lambda case: (case.stack, case.hosts > 4))
    doublings = np.array([math.log2(max(case.hosts / 4, 1)) for case in cases])
    growth = 0.0
    if far.sum() >= 5:
        wider = _beyond(beyond[far], kernels[far]) ** 2 - common**2
        growth = math.sqrt(max(wider, 0.0)) / float(np.mean(doublings[far]))
    experts = 0.0 if is_dense.all() else _beyond(left[~is_dense], kernels[~is_dense])
    growth = min(max(growth, 0.03), 0.15)
    return Spreads(of_stack, other, max(none, other), growth, experts)


def _beyond(errors: NDArray[np.float64], kernels: NDArray[np.float64]) -> float:
    """The spread that, beside what kernels make unsure, leaves a tenth of *errors* outside.

    Rows whose machine nobody knows well enough to price it say nothing about the others.
    """
    sure = kernels < UNSURE
    errors, kernels = (errors[sure], kernels[sure]) if sure.any() else (errors, kernels)
    low, high = 0.02, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        inside = np.mean(np.abs(errors) <= Z_90 * np.hypot(middle, kernels))
        low, high = (low, middle) if inside >= 0.9 else (middle, high)
    return high


def report(
    problem: Problem, value: NDArray[np.float64], spreads: Spreads, core: set[object]
) -> dict[str, float | str]:
    """Print errors by framework: before, fitted, and left out, with inside and half-width.

    What comes back is the line of the core rows that were left out.
    """
    cases = problem.cases
    before, fitted = problem.now, problem.errors_at(value)
    left = problem.left_out(lambda case: case.group)
    alone = problem.left_out(lambda case: case.configuration)
    sigma = np.array([spreads.sigma(case) for case in cases])
    names = [f"{case.row.text('framework')}, {case.device}" for case in cases]
    is_core = np.array([case.row.name in core for case in cases])
    is_far = np.array([case.hosts > 1 for case in cases])
    is_dense = np.array([not case.has_experts for case in cases])
    apart = {"core": is_core, "core without experts": is_core & is_dense}
    apart |= {"several hosts": is_far, "one host": ~is_far}
    head = "rows   before  fitted  left out   median  configuration left out: mean  median"
    print(f"{'':34} {head}  inside  half-width")
    for name in [*dict.fromkeys(names), *apart, "all"]:
        rows = apart.get(name, np.array([name in ("all", one) for one in names]))
        sizes = [100 * np.abs(np.expm1(part[rows])) for part in (before, fitted, left, alone)]
        inside = 100 * np.mean(np.abs(left[rows]) <= Z_90 * sigma[rows])
        half = 100 * np.median(np.sinh(Z_90 * sigma[rows]))
        print(
            f"{name:34} {rows.sum():4} {sizes[0].mean():8.1f} {sizes[1].mean():7.1f} "
            f"{sizes[2].mean():9.1f} {np.median(sizes[2]):8.1f} {sizes[3].mean():29.1f} "
            f"{np.median(sizes[3]):7.1f} {inside:7.0f} {half:11.0f}",
            flush=True,
        )
        if name == "core":
            told: dict[str, float | str] = {
                "rows": int(rows.sum()),
                "mean_pct": round(float(sizes[2].mean()), 1),
                "median_pct": round(float(np.median(sizes[2])), 1),
                "p90_pct": f"{np.quantile(sizes[2], 0.9):.1f} %",
                "inside_pct": round(float(inside)),
                "half_width_pct": round(float(half)),
            }
    return told


def write_held_out(told: Mapping[str, float | str], family: Family) -> None:
    """Keep the line of *family*; README and manual show it beside the errors in sample."""
    path = EXPERIMENTS / "runs_scoreboard" / "held_out.json"
    document = json.loads(path.read_text(encoding="utf-8")) | {family.value: told}
    lines = [f' "{name}": {json.dumps(one)}' for name, one in document.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def set_key(text: str, key: str, value: object) -> str:
    """The document *text* with *key* at its top set to *value*, or without it for None."""
    body, end, _ = text.partition("\n...\n")
    plain = re.sub(rf"(?m)^{key}:.*\n(?:[ ]+.*\n)*", "", f"{body}\n" if end else body)
    if value is None:
        return plain + end.lstrip()
    flow = None if isinstance(value, dict) else False
    line = yaml.safe_dump({key: value}, default_flow_style=flow, width=110, sort_keys=False)
    return plain.rstrip("\n") + "\n" + line + end.lstrip()


def write_stacks(problem: Problem, value: NDArray[np.float64], spreads: Spreads) -> None:
    """Put constants and evidence into the stack files."""
    found = {key: float(one) for key, one in zip(problem.keys, value, strict=True)}
    for name in dict.fromkeys(case.stack for case in problem.cases):
        path = STACK_FOLDER / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        family = problem.cases[0].row.family
        logs: dict[str, float] = {}
        for (kind, stack, word), one in found.items():
            if kind == "stack" and stack in lineage(name, family):
                logs[word] = logs.get(word, 0.0) + one
        host = logs.pop("host", 0.0)
        ratios: dict[str, Any] = {
            word: round(math.exp(one), 3) for word, one in logs.items() if abs(one) >= SMALL
        }
        if "gemm" in ratios and PLAIN_GEMM in logs:
            # Left out, they would take after those on tensor cores.
            ratios.setdefault(PLAIN_GEMM, 1.0)
        # What is not fitted here stays as the file, or the one it extends, states it.
        kept = load_stack(name).kernel_time_ratio
        fitted = _words(name, family)
        ratios |= {word: dict(one) for word, one in kept.items() if word not in fitted}
        text = set_key(text, "kernel_time_ratio", ratios)
        if abs(host) >= SMALL:
            stated = yaml.safe_load(text).get("host_speed_ratio", 1.0)
            text = set_key(text, "host_speed_ratio", round(stated / math.exp(host), 3))
        text = set_key(text, "evidence", _evidence(problem.cases, name, spreads))
        path.write_text(text, encoding="utf-8")


def _evidence(cases: Sequence[Case], name: str, spreads: Spreads) -> dict[str, object]:
    result: dict[str, object] = {}
    for (stack, architecture), spread in spreads.of_stack.items():
        key = stack, architecture
        rows = [c for c in cases if (c.stack, c.architecture) == key and not c.has_experts]
        if rows and stack == name and not name.startswith("generic"):
            result[architecture] = {
                "rows": len(rows),
                "sources": len({case.publisher for case in rows}),
                "hosts": max(case.hosts for case in rows),
                "spread": round(spread, 3),
            }
    return result


def write_chips(problem: Problem, value: NDArray[np.float64]) -> None:
    """Put what chips sustain into its file."""
    text = SUSTAINED_FILE.read_text(encoding="utf-8")
    stated = {kind: dict(ratios) for kind, ratios in load_sustained().items()}
    for (kind, name, word), one in zip(problem.keys, value.tolist(), strict=True):
        if kind == "chip":
            stated[word][name] = round(math.exp(one), 3)
    for (kind, name, word), one in zip(problem.keys, value.tolist(), strict=True):
        if kind == "device":
            generation = stated[word][load_device(name).architecture.value]
            stated[word].pop(name, None)
            if abs(one) >= SMALL:
                stated[word][name] = round(math.exp(one + _lacking_power(name)) * generation, 3)
    for word, ratios in stated.items():
        text = set_key(text, word, ratios)
    SUSTAINED_FILE.write_text(text, encoding="utf-8")


def write_spread(problem: Problem, spreads: Spreads, family: Family) -> None:
    """Put the spreads of *family* into their file."""
    entry = {
        "other_chip": round(spreads.other_chip, 3),
        "no_runs": round(spreads.no_runs, 3),
        "per_doubling": round(spreads.per_doubling, 3),
        **({"experts": round(spreads.experts, 3)} if spreads.experts else {}),
        "rows": len(problem.cases),
        "sources": len({case.publisher for case in problem.cases}),
    }
    text = SPREAD_FILE.read_text(encoding="utf-8")
    SPREAD_FILE.write_text(set_key(text, family.value, entry), encoding="utf-8")


def main() -> None:
    """Fit, score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("family", type=Family)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rows", type=int, default=MOST_OF_GROUP, help="at most of a group")
    parser.add_argument("--every", type=int, default=1, help="every n-th row, for trials")
    arguments = parser.parse_args()
    table, core = (load_runs(arguments.folder / name) for name in TABLES[arguments.family])
    rows = choose_rows(table.rows, core.rows, most_of_group=arguments.rows)
    rows = rows[:: arguments.every]
    asked = PredictOptions(is_explained=False)
    with get_context("spawn").Pool(2) as pool:
        found = pool.starmap(build_case, [(asked, row) for row in rows], chunksize=4)
    cases = [case for case in found if case is not None]
    print(f"{len(cases)} of {len(rows)} rows in {len(list_groups(cases))} groups", flush=True)
    problem = build_problem(cases, arguments.family)
    value = problem.solve(np.ones(len(cases), dtype=bool))
    spreads = find_spreads(problem)
    told = report(problem, value, spreads, {row.name for row in core.rows})
    for key, one in zip(problem.keys, value, strict=True):
        if abs(one) >= SMALL:
            print(f"{' '.join(key):44} {math.exp(one):7.3f}")
    print(spreads)
    if arguments.write:
        write_stacks(problem, value, spreads)
        write_chips(problem, value)
        write_spread(problem, spreads, arguments.family)
        write_held_out(told, arguments.family)


if __name__ == "__main__":
    main()
