"""The spread of emulated scripts, by leaving repositories out: python intervals.py.

A repository is predicted by the errors of the others, as if it were new. It prints how many of its
pairs are inside the interval that follows, and the line for `spread.yaml` from all of them.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import t

HERE = Path(__file__).parent
TABLE = HERE.parent / "measured" / "scripts.csv"
Z_90 = 1.645
SEEN = 4 / 3
"""Forms were chosen with these pairs in view: others are further off by so much, an allowance."""

LEFT_OUT_MS = {
    "nanogpt_muon": 167.2, "timm_efficientnet_b0": 268.4, "timm_convnext_tiny": 323.0,
}  # fmt: skip
"""Predictions without what was read from the pair itself: which releases pad odd products, and how
long those take otherwise; instructions of a depthwise convolution per position."""


def spread_of(errors: list[list[float]]) -> float:
    """The spread of a pair of a new repository, from the errors of *errors* by repository.

    Each repository counts once, however many pairs it has. Few of them say little: the quantile is
    that of Student's distribution, with one repository less as its degrees of freedom.
    """
    mean_square = float(np.mean([np.mean(np.square(one)) for one in errors]))
    few = float(t.ppf(0.95, len(errors) - 1)) / Z_90
    return SEEN * few * math.sqrt(mean_square)


def main() -> None:
    results = json.loads((HERE / "results.json").read_text())
    errors: dict[str, list[float]] = defaultdict(list)
    with TABLE.open(newline="") as stream:
        for row in csv.DictReader(stream):
            found = results[row["name"]]
            predicted_ms = LEFT_OUT_MS.get(row["name"], found["predicted_ms"])
            error = math.log(predicted_ms / found["measured_ms"])
            errors[row["repository"]].append(error)
    for name, own in errors.items():
        sigma = spread_of([other for key, other in errors.items() if key != name])
        inside = sum(abs(error) <= Z_90 * sigma for error in own)
        width = math.sinh(Z_90 * sigma)
        print(f"{name} left out: {inside} of {len(own)} inside, half-width {width:.0%}")
    sigma, rows = spread_of(list(errors.values())), sum(map(len, errors.values()))
    print(f"scripts: {{spread: {sigma:.2f}, rows: {rows}, sources: {len(errors)}, ...}}")
    print(f"half-width of one host: {math.sinh(Z_90 * sigma):.0%}")


if __name__ == "__main__":
    main()
