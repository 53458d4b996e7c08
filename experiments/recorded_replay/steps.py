"""Steps of every recording in a folder: python steps.py TRACES writes steps.json and a table."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.extensions.recordings.import_files import import_traces

HERE = Path(__file__).parent


def recordings_in(traces: Path) -> list[Path]:
    """Folders with one Kineto trace per rank, and traces of a single rank."""
    folders = sorted({path.parent for path in traces.rglob("*rank[0-9].json.gz")})
    kept = [one for one in folders if "single" not in one.name and one.name != "pytorch_et"]
    return [*kept, *sorted((traces / "single_rank").glob("*.json.gz"))]


def steps_of(place: Path) -> dict[str, Any]:
    """What import says about the steps at *place*, or why it is refused."""
    paths = sorted(place.glob("kineto*.gz")) or [place] if place.is_dir() else [place]
    with tempfile.TemporaryDirectory() as folder:
        try:
            [found] = import_traces(paths, Path(folder) / "job")
        except PerfModelError as fault:
            return {"refused": str(fault).splitlines()[0]}
        told = found.document()
    score, hosts = told["self_replay"], [one["host_ns"] for one in told["step_table"]]
    return {
        "ranks": told["ranks"],
        "steps": told["steps"],
        "rule": told["step_rule"],
        "cycle": told["cycle"],
        "step_ms": round(score["iteration"]["recorded_ms"], 3),
        "host_ms": round(sum(hosts) / max(len(hosts), 1) / 1e6, 3),
        "error_pct": score["iteration_error_pct"],
        "is_trusted": told["is_trusted"],
    }


def main() -> None:
    traces, rows = Path(sys.argv[1]).resolve(), {}
    for place in recordings_in(traces):
        name = str(place.relative_to(traces)).removesuffix(".json.gz")
        rows[name] = steps_of(place)
        print(
            "|", name, "|", " | ".join(str(cell) for cell in rows[name].values()), "|", flush=True
        )
    (HERE / "steps.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
