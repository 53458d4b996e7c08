"""Held-out errors of attention by shape and by GPU, with how honest the intervals are."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import yaml

from experiments.fitting.kernels.fits import cross_validate, load_tables
from perfmodel.costs.attention import AttentionModel
from perfmodel.costs.attention_kernels import members_of
from perfmodel.costs.calibration_files import load_entries
from perfmodel.costs.estimates import INTERVAL_SIGMAS, Estimates, concatenate_estimates
from perfmodel.extensions.measurements.measured_kernels import (
    KernelTable,
    MeasuredKernel,
    price_measured,
)

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1].parent / "shared" / "data"))
HeldOut = tuple[tuple[MeasuredKernel, ...], Estimates]
RESULTS = HERE / "attention_held_out.json"
SHAPE = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
LONG_NS = 10_000.0


def is_long(kernel: MeasuredKernel) -> bool:
    return bool(kernel.op.query_length >= 512)


SLICES: dict[str, Callable[[MeasuredKernel], bool]] = {
    "length 512 and up, above 10 us": lambda one: is_long(one) and one.measured_ns > LONG_NS,
    "length 512 and up": is_long,
    "above 10 us": lambda one: one.measured_ns > LONG_NS,
    "all": lambda one: one.measured_ns > 0,
    "length under 512": lambda one: not is_long(one),
    "grouped queries, length 512 and up": lambda one: (
        is_long(one) and one.op.kv_heads < one.op.heads
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("by", choices=["shape", "device"])
    parser.add_argument("--only", metavar="DEVICE", help="score this GPU again, keep the others")
    asked = parser.parse_args()
    by = asked.by
    names = yaml.safe_load((HERE / "scenario.yaml").read_text())["attention"]
    table = load_tables("attention", [DATA / name for name in names])
    if asked.only is not None:
        table = KernelTable(tuple(one for one in table.kernels if one.device == asked.only))
    if by == "shape":
        held_out = cross_validate("attention", table, folds=5, by=SHAPE)
    else:
        held_out = leave_devices_out(table)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    # Constants of a GPU are fitted to its own rows only, so GPUs can be scored one by one.
    results[by] = dict(sorted({**results.get(by, {}), **score(held_out)}.items()))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for name, slices in results[by].items():
        for slice_name, numbers in slices.items():
            print(f"{name:<48} {slice_name:<36} {numbers}")


def leave_devices_out(table: KernelTable) -> HeldOut:
    """Price every device by the shipped constants of the others, which never saw its rows.

    Kernels of which no other device has any relative (cuDNN) are left out.
    """
    entries = load_entries("attention")
    kernels: list[MeasuredKernel] = []
    estimates = []
    for device in dict.fromkeys(one.device for one in table.kernels):
        others = [entry for entry in entries if entry.device != device]
        known = {entry.variant.split("/")[0] for entry in others}
        rows = [
            one
            for one in table.kernels
            if one.device == device and any(name in known for name, _ in members_of(one.op.kernel))
        ]
        kernels.extend(rows)
        estimates.append(price_measured(rows, AttentionModel(others)))
    return tuple(kernels), concatenate_estimates(estimates)


def score(held_out: HeldOut) -> dict[str, dict[str, dict[str, float]]]:
    groups: dict[str, list[int]] = {}
    for row, kernel in enumerate(held_out[0]):
        kind = f"{kernel.op.kernel}/{kernel.op.direction.value}/{mask_of(kernel)}"
        if kernel.op.dtype.size_bytes == 1:
            kind += " fp8"
        groups.setdefault(f"{kernel.device} {kind}", []).append(row)
        groups.setdefault(f"{kernel.device} all kernels", []).append(row)
    return {
        name: {
            slice_name: score_rows(held_out, chosen)
            for slice_name, belongs in SLICES.items()
            if (chosen := [row for row in rows if belongs(held_out[0][row])])
        }
        for name, rows in sorted(groups.items())
    }


def mask_of(kernel: MeasuredKernel) -> str:
    return "causal" if kernel.op.is_causal else "full"


def score_rows(held_out: HeldOut, rows: Sequence[int]) -> dict[str, float]:
    measured = np.array([held_out[0][row].measured_ns for row in rows])
    predicted = held_out[1].duration_ns[rows]
    half_width = INTERVAL_SIGMAS * held_out[1].relative_sigma[rows]
    error = np.abs(predicted / measured - 1)
    return {
        "rows": len(rows),
        "mean_pct": round(100 * float(error.mean()), 2),
        "median_pct": round(100 * float(np.median(error)), 2),
        "inside_interval_pct": round(
            100 * float(np.mean(np.abs(np.log(measured / predicted)) <= half_width)), 1
        ),
        "half_width_over_error": round(float(np.median(half_width) / np.median(error)), 2),
    }


if __name__ == "__main__":
    main()
