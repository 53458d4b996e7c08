"""Fit the constants of token exchanges to measured kernels, and score them on what is left out.

    python experiments/fitting/token_exchange.py ../shared/data [--write]

Chips of one generation share constants. Left out in turn: every fourth number of tokens, a
number of hosts, and all chips of one system. Dispatch was timed in fp8, combine in bf16.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from collectives.token_exchange import (
    FILE,
    ExchangeCalls,
    ExchangeConstants,
    TokenLibrary,
    TokenRouting,
    predict_exchange_us,
)

SYSTEMS = {"h100_sxm": ("hopper", 8, 450e9), "h200_sxm": ("hopper", 8, 450e9)}
SYSTEMS |= {"b200_sxm": ("blackwell", 8, 900e9), "gb200": ("blackwell", 4, 900e9)}
"""Generation, GPUs of a host that were used, and NVLink bandwidth of a GPU."""
NIC_BYTES_PER_S = 50e9
FP8_BYTES, BF16_BYTES = 1, 2
OWN = ("floor_us", "host_us", "token_us", "copy_us", "fill_us")
SHARED = ("byte_us", "relay_ratio", "link_ratio", "nic_ratio")
LIMITS = {
    "floor_us": (1, 30, 100),
    "host_us": (1, 30, 100),
    "token_us": (1e-3, 0.3, 5),
    "copy_us": (1e-9, 0.01, 1),
    "fill_us": (1e-3, 1, 100),
    "byte_us": (1e-9, 1e-5, 1e-3),
    # Half of the multiprocessors pass on what arrives from other hosts.
    "relay_ratio": (1.0, 2.0, 4.0),
    "link_ratio": (0.3, 0.75, 1.0),
    "nic_ratio": (0.5, 0.95, 1.2),
}
"""Lowest value, start and highest value of every constant."""
ROBUST = 0.1
FOLDS = 4
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Measured calls of both directions, with what tells them apart."""

    system: NDArray[Any]
    generation: NDArray[Any]
    calls: tuple[ExchangeCalls, ExchangeCalls]
    measured_us: tuple[NDArray[np.float64], NDArray[np.float64]]


def load_rows(path: Path) -> Rows:
    """The rows of a table of DeepEP's normal kernels."""
    with gzip.open(path, "rt") as file:
        table = pd.read_csv(file)
    facts = [SYSTEMS[name] for name in table["system"]]
    per_host = np.array([one[1] for one in facts], dtype=float)
    hosts = table["hosts"].to_numpy(dtype=float)
    words = table[["tokens", "top_k", "experts"]].itertuples(index=False)
    routings = [TokenRouting(TokenLibrary.DEEPEP, t, k, e, False, 1) for t, k, e in words]

    def reached(places: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([one.reached(int(n)) for one, n in zip(routings, places, strict=True)])

    copies = reached(per_host * hosts)

    def calls(width: int) -> ExchangeCalls:
        return ExchangeCalls(
            tokens=table["tokens"].to_numpy(dtype=float),
            token_bytes=table["hidden"].to_numpy(dtype=float) * width,
            copies=copies,
            leaving=copies * (per_host - 1) / per_host,
            hosts=hosts,
            # The benchmark's limit of four hosts a token leaves out none of up to four.
            other_hosts=reached(hosts) * (hosts - 1) / hosts,
            sms=table["sms"].to_numpy(dtype=float),
            link_bytes_per_s=np.array([one[2] for one in facts]),
            nic_bytes_per_s=np.full(len(table), NIC_BYTES_PER_S),
        )

    measured = [
        (table[f"{way}_us"] + table[f"{way}_notify_us"]).to_numpy(dtype=float)
        for way in ("dispatch", "combine")
    ]
    return Rows(
        system=table["system"].to_numpy(),
        generation=np.array([one[0] for one in facts]),
        calls=(calls(FP8_BYTES), calls(BF16_BYTES)),
        measured_us=(measured[0], measured[1]),
    )


def kept_calls(calls: ExchangeCalls, kept: Mask) -> ExchangeCalls:
    """The calls of the rows that are *kept*."""
    return replace(calls, **{name: getattr(calls, name)[kept] for name in ExchangeCalls.__slots__})


def build(logs: NDArray[np.float64]) -> tuple[ExchangeConstants, ExchangeConstants]:
    """Constants of both directions from their logarithms."""
    values, count = np.exp(logs).tolist(), len(OWN)
    shared = dict(zip(SHARED, values[2 * count :], strict=True))
    ways = (values[:count], values[count : 2 * count])
    dispatch, combine = (
        ExchangeConstants(**dict(zip(OWN, one, strict=True)), **shared) for one in ways
    )
    return dispatch, combine


def log_errors(
    rows: Rows, kept: Mask, constants: Sequence[ExchangeConstants]
) -> NDArray[np.float64]:
    """Logarithms of predicted over measured: dispatch, then combine."""
    parts = []
    for calls, measured, one in zip(rows.calls, rows.measured_us, constants, strict=True):
        predicted, _, _ = predict_exchange_us(kept_calls(calls, kept), one)
        parts.append(np.log(predicted / measured[kept]))
    return np.concatenate(parts)


def fit(rows: Rows, kept: Mask) -> tuple[ExchangeConstants, ExchangeConstants]:
    """The constants that the *kept* rows ask for; ratios stay near their start."""
    names = (*OWN, *OWN, *SHARED)
    low, start, high = np.log([LIMITS[name] for name in names]).T

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        drawn = (logs[-3:] - start[-3:]) / ROBUST
        return np.concatenate([log_errors(rows, kept, build(logs)), drawn])

    found = least_squares(residuals, start, loss="soft_l1", f_scale=ROBUST, bounds=(low, high))
    return build(found.x)


def left_out(rows: Rows, folds: Sequence[tuple[Mask, Mask]]) -> float:
    """The mean error in per cent of what each fold leaves out, both directions together."""
    found = [
        100 * np.abs(np.expm1(log_errors(rows, test, fit(rows, train))))
        for train, test in folds
        if test.any() and train.any()
    ]
    return round(float(np.concatenate(found).mean()), 1)


def score(rows: Rows) -> dict[str, float]:
    """Mean errors with tokens, hosts, systems and generations left out."""
    tokens, hosts = rows.calls[0].tokens, rows.calls[0].hosts
    generations, sizes = np.unique(rows.generation), np.unique(tokens)

    def within(test: Mask) -> list[tuple[Mask, Mask]]:
        same = [rows.generation == one for one in generations]
        return [(one & ~test, one & test) for one in same]

    parts = {
        "tokens": [pair for n in range(FOLDS) for pair in within(np.isin(tokens, sizes[n::FOLDS]))],
        "hosts": [pair for count in (2, 4) for pair in within(hosts == count)],
        "system": [(rows.system != one, rows.system == one) for one in SYSTEMS],
        "generation": [(rows.generation != one, rows.generation == one) for one in generations],
    }
    return {name: left_out(rows, folds) for name, folds in parts.items()}


def main() -> None:
    """Fit, score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    words = parser.parse_args()
    rows = load_rows(words.data / "moe_exchange" / "deepep.csv.gz")
    told = score(rows)
    print("left out, mean error in per cent:", told)
    found: dict[str, Any] = {}
    for generation in np.unique(rows.generation).tolist():
        kept = rows.generation == generation
        constants = fit(rows, kept)
        off = 100 * np.abs(np.expm1(log_errors(rows, kept, constants)))
        print(generation, f"fitted {off.mean():.1f} %")
        found[generation] = {
            way: {name: float(f"{value:.4g}") for name, value in asdict(one).items()}
            for way, one in zip(("dispatch", "combine"), constants, strict=True)
        }
    if words.write:
        write(found, told)


def write(found: dict[str, Any], told: dict[str, float]) -> None:
    """Put constants and the errors of what was left out into their file."""
    about = {
        "source": "ai-dynamo/aiconfigurator, wheel aiconfigurator-core 0.12.0: DeepEP's kernels",
        "hardware": "H100 (1, 2 and 4 hosts), H200, B200 and GB200 (one host)",
        "software": "DeepEP as in SGLang 0.5.0 and 0.5.12; dispatch in fp8, combine in bf16",
        "date": datetime.now(UTC).date().isoformat(),
        "licence": "figures Apache-2.0; this file Apache-2.0",
        "command": "python experiments/fitting/token_exchange.py ../shared/data --write",
    }
    document = {
        **about,
        "left_out_pct": told,
        "sigma": round(1.25 * max(told["tokens"], told["hosts"]) / 100, 3),
        "unseen_sigma": round(1.25 * max(told["system"], told["generation"]) / 100, 3),
        "stand_in": "blackwell",
        "architectures": found,
    }
    text = yaml.safe_dump(document, sort_keys=False, width=110)
    FILE.write_text(f"---\n{text}...\n", encoding="utf-8")


if __name__ == "__main__":
    main()
