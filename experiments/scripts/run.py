"""Public scripts, emulated, beside their published times: python run.py FOLDER [NAME...].

FOLDER has one folder per pair, called as in `../measured/scripts.csv`, with the script and what it
reads (README.md says how to get them). Pairs without a folder keep the result they had.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

from perfmodel.base.documents import load_yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PERFMODEL = [sys.executable, "-c", "from perfmodel.cli import main; main()"]
SCENARIO = load_yaml(HERE / "scenario.yaml")


def perfmodel(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFMODEL, *words], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
        capture_output=True, text=True, timeout=SCENARIO["most_seconds"],
    )  # fmt: skip


def emulate(pair: Any, folder: Path) -> dict[str, Any]:
    """What became of one pair."""
    start_s = time.monotonic()
    # A pair with a single rank was started without torchrun.
    plain = ("--plain",) if pair.ranks == 1 else ()
    done = perfmodel(
        "emulate", "--ranks", str(pair.ranks), *plain, "--device", pair.device, "--overwrite",
        "--torch-release", pair.torch_release, "--out", "job", "--", pair.script,
        *shlex.split(pair.arguments), folder=folder,
    )  # fmt: skip
    if done.returncode != 0:
        return {"fault": done.stderr.strip().splitlines()[-1]}
    asked = perfmodel(
        "predict", "--job", "job", "--topology", pair.topology, "--json", "-", folder=folder
    )
    if asked.returncode != 0:
        return {"fault": asked.stderr.strip().splitlines()[-1]}
    return summarise(json.loads(asked.stdout), pair) | {"wall_s": round(time.monotonic() - start_s)}


def summarise(answer: dict[str, Any], pair: Any) -> dict[str, Any]:
    """The prediction beside the measured time and memory, with its parts."""
    low_ms, high_ms = answer["interval_ms"]
    parts = {one["name"]: round(one["ms"], 2) for one in answer["critical_path"]["by_kind"]}
    peak_mib = answer["memory_gib"]["peak"] * 1024
    found = {
        "predicted_ms": round(answer["iteration_time_ms"], 2),
        "measured_ms": pair.measured_ms,
        "error_percent": round(100 * (answer["iteration_time_ms"] / pair.measured_ms - 1), 1),
        "is_inside": bool(low_ms <= pair.measured_ms <= high_ms),
        "half_width_percent": round(50 * (high_ms - low_ms) / answer["iteration_time_ms"], 1),
        "peak_mib": round(peak_mib),
        "parts_ms": parts,
    }
    if pair.peak_allocated_mib == pair.peak_allocated_mib:  # Not a number where nobody stated it.
        error = 100 * (peak_mib / pair.peak_allocated_mib - 1)
        found["memory_error_percent"] = round(error, 1)
    return found


def main() -> None:
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    pairs = pd.read_csv(HERE / SCENARIO["pairs"], dtype={"torch_release": str})
    pairs["arguments"] = pairs["arguments"].fillna("")
    path = HERE / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for pair in pairs.itertuples():
        if (folder / pair.name).is_dir() and (not names or pair.name in names):
            results[pair.name] = emulate(pair, folder / pair.name)
            print(pair.name, results[pair.name], flush=True)
            path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
