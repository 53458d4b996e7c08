"""Writing: fitted constants, evidence and spreads into the files that ship."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from experiments.figures import EXPERIMENTS
from experiments.fitting.problem import Key, Problem, lacking_power, lineage, words_of
from experiments.fitting.runs import Case
from experiments.fitting.spreads import Spreads
from perfmodel.costs.sustained import FILE as SUSTAINED_FILE
from perfmodel.costs.sustained import load_sustained
from perfmodel.stacks.profiles import STACK_FOLDER, load_stack
from perfmodel.stacks.spread import FILE as SPREAD_FILE
from perfmodel.stacks.spread import load_spread
from perfmodel.stacks.stack import PLAIN_GEMM
from topologies import load_device

SMALL = 0.03
"""Deviations below this are left out of the files."""


def write_held_out(told: Mapping[str, float | str], family: str) -> None:
    """Keep the line of *family*; README and manual show it beside the errors in sample."""
    path = EXPERIMENTS / "runs_scoreboard" / "held_out.json"
    document = json.loads(path.read_text(encoding="utf-8")) | {family: told}
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
        # Relative to the stack it extends, whose releases take it over.
        logs.pop("host", None)
        host = found.get(("stack", name, "host"), 0.0)
        common = _of_generations(found)
        ratios: dict[str, Any] = {
            word: round(math.exp(one), 3)
            for word, one in logs.items()
            if abs(one) >= SMALL and word not in common
        }
        for word, of_generation in common.items():
            own = logs.get(word, 0.0)
            ratios[word] = {
                chip: round(math.exp(own + one), 3) for chip, one in of_generation.items()
            }
        if "gemm" in ratios and PLAIN_GEMM in logs:
            # Left out, they would take after those on tensor cores.
            ratios.setdefault(PLAIN_GEMM, 1.0)
        # A ratio that is left out would be that of the stack it extends.
        if base := yaml.safe_load(text).get("extends"):
            ratios = dict.fromkeys(load_stack(base).kernel_time_ratio, 1.0) | ratios
        # What is not fitted here stays as the file, or the one it extends, states it.
        kept = load_stack(name).kernel_time_ratio
        fitted = words_of(name, family)
        ratios |= {word: dict(one) for word, one in kept.items() if word not in fitted}
        text = set_key(text, "kernel_time_ratio", ratios)
        if abs(host) >= SMALL:
            stated = yaml.safe_load(text).get("host_speed_ratio", 1.0)
            text = set_key(text, "host_speed_ratio", round(stated / math.exp(host), 3))
        text = set_key(text, "evidence", _evidence(problem.cases, name, spreads))
        path.write_text(text, encoding="utf-8")


def _of_generations(found: Mapping[Key, float]) -> dict[str, dict[str, float]]:
    """What stacks have in common, by kernels and generation; other generations take the mean."""
    common: dict[str, dict[str, float]] = {}
    for (kind, name, word), one in found.items():
        if kind == "generation":
            common.setdefault(word, {})[name] = one
    for of_generation in common.values():
        of_generation["default"] = sum(of_generation.values()) / len(of_generation)
    return common


def _evidence(cases: Sequence[Case], name: str, spreads: Spreads) -> dict[str, object]:
    result: dict[str, object] = {}
    for (stack, architecture), spread in spreads.of_stack.items():
        key = stack, architecture
        rows = [c for c in cases if (c.stack, c.architecture) == key]
        if rows and stack == name and not name.startswith("generic"):
            result[architecture] = {
                "rows": len(rows),
                "sources": len({case.publisher for case in rows}),
                "hosts": max(case.hosts for case in rows),
                **_fewest_samples(rows),
                "spread": round(spread, 3),
            }
    return result


def _fewest_samples(cases: Sequence[Case]) -> dict[str, int]:
    """The smallest batch of a rank; Transformers count tokens instead."""
    batches = [
        (case.row.value("gbs") or 0) // (case.row.value("n_gpus") or 1)
        for case in cases
        if not case.is_transformer
    ]
    return {"samples": int(min(batches))} if batches else {}


def write_chips(problem: Problem, value: NDArray[np.float64]) -> None:
    """Put what chips sustain into its file."""
    text = SUSTAINED_FILE.read_text(encoding="utf-8")
    stated = {kind: dict(ratios) for kind, ratios in load_sustained().items()}
    for (kind, name, word), one in zip(problem.keys, value.tolist(), strict=True):
        if kind == "chip":
            stated[word][name] = round(math.exp(one), 3)
    for (kind, name, word), one in zip(problem.keys, value.tolist(), strict=True):
        if kind == "device":
            generation = stated[word][load_device(name).generation]
            stated[word].pop(name, None)
            if abs(one) >= SMALL:
                stated[word][name] = round(math.exp(one + lacking_power(name)) * generation, 3)
    for word, ratios in stated.items():
        text = set_key(text, word, ratios)
    SUSTAINED_FILE.write_text(text, encoding="utf-8")


def _rounded(features: Mapping[str, float]) -> dict[str, float]:
    return {name: round(one, 3) for name, one in features.items()}


def write_spread(problem: Problem, spreads: Spreads, family: str) -> None:
    """Put the spreads of *family* into their file; what was chosen by hand stays."""
    known = load_spread()
    kept = known.families[family]
    entry = {
        "other_chip": round(spreads.other_chip, 3),
        "no_runs": round(spreads.no_runs, 3),
        "per_doubling": round(spreads.per_doubling, 3),
        **({"per_halving": kept.per_halving} if kept.per_halving else {}),
        **({"features": of_features} if (of_features := _rounded(spreads.features)) else {}),
        "rows": len(problem.cases),
        "sources": len({case.publisher for case in problem.cases}),
    }
    text = SPREAD_FILE.read_text(encoding="utf-8")
    families = {**yaml.safe_load(text)["families"], family: entry}
    SPREAD_FILE.write_text(set_key(text, "families", families), encoding="utf-8")
