"""Emulated scripts beside published times: python run.py FOLDER [NAME...].

FOLDER holds one folder per pair, named as in the table, with the script and what it needs.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parent / "measured" / "scripts.csv"
PERFMODEL = [sys.executable, "-P", "-c", "from perfmodel.cli import main; main()"]


def perfmodel(*words: str, folder: Path) -> None:
    path = os.pathsep.join(filter(None, (str(HERE.parents[1]), os.environ.get("PYTHONPATH", ""))))
    subprocess.run(
        [*PERFMODEL, *words], cwd=folder, env=os.environ | {"PYTHONPATH": path}, check=True
    )


def score(row: dict[str, str], folder: Path) -> dict[str, object]:
    job, answer = folder / "job", folder / "answer.json"
    how = ["--plain"] if row["ranks"] == "1" else []
    # A log begins with the script that was run.
    script = "train_gpt.py" if row["path"].endswith(".txt") else Path(row["path"]).name
    perfmodel(
        "emulate", "--ranks", row["ranks"], *how, "--device", row["device"], "--torch-release",
        row["torch"], "--overwrite", "--out", str(job), "--", script,
        *shlex.split(row["arguments"]), folder=folder,
    )  # fmt: skip
    perfmodel(
        "predict", "--job", str(job), "--topology", row["topology"], "--json", str(answer),
        folder=folder,
    )  # fmt: skip
    found = json.loads(answer.read_text())
    kinds = {entry["name"]: entry["ms"] for entry in found["critical_path"]["by_kind"]}
    return {
        "measured_ms": float(row["measured_ms"]),
        "predicted_ms": round(found["iteration_time_ms"], 1),
        "interval_ms": [round(end, 1) for end in found["interval_ms"]],
        "allocated_gib": round(found["memory_gib"]["peak"], 2),
        "parts_ms": {name: round(ms, 1) for name, ms in kinds.items() if ms >= 0.1},
    }


def main() -> None:
    place, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:]
    path = HERE / "results.json"
    results = json.loads(path.read_text())
    with TABLE.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if (place / row["name"]).is_dir() and (not wanted or row["name"] in wanted):
                found = results[row["name"]] = score(row, place / row["name"])
                off = found["predicted_ms"] / found["measured_ms"] - 1
                print(f"{row['name']}: {off:+.1%}")
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
