"""Predict the core tables of measured runs; write scores by group, never the rows.

python experiments/runs_scoreboard/run.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from perfmodel.execution import open_executor
from perfmodel.validation.runs import validate_runs
from perfmodel.validation.runs_table import load_runs

HERE = Path(__file__).parent


def main(folder: Path = HERE.parent / "measured") -> None:
    """Score every table of the scenario and print its lines."""
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text())
    results = {}
    for name in scenario["tables"]:
        with open_executor(scenario["executor"]) as executor:
            board = validate_runs(load_runs(folder / name), executor=executor)
        document = board.to_json()
        results[name] = {key: document[key] for key in ("overall", "groups", "unsupported")}
        print("\n".join([name, *board.lines(), ""]))
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
