"""The error table of README and manual, written from the stored scoreboard.

python docs/scoreboard.py          writes the block of README.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parent.parent
STORED = CHECKOUT / "experiments/runs_scoreboard/results.json"
SPREAD = CHECKOUT / "perfmodel/stacks/spread.yaml"
README = CHECKOUT / "README.md"
BEGIN = "<!-- scoreboard: `make scoreboard` writes what follows -->"
END = "<!-- end of scoreboard -->"
FAMILIES = {
    "core_transformer.csv": ("Transformers", "transformer"),
    "core_dlrm.csv": ("recommendation models", "dlrm"),
}


def readme_lines() -> Iterator[str]:
    """The table of the front page: one line per family of models."""
    spreads = yaml.safe_load(SPREAD.read_text(encoding="utf-8"))
    yield (
        "| measured runs of | runs | not answered | mean error | median | worst tenth beyond "
        "| inside the 90 % interval | spread, sources left out |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for table, (name, family) in FAMILIES.items():
        stored = _stored()[table]
        score = stored["overall"]
        left_out = 100 * spreads[family]["no_runs"]
        yield (
            f"| {name} | {score['rows']} | {len(stored['unsupported'])} | {_errors(score)} "
            f"| {left_out:.0f} % |"
        )


def scoreboard_lines() -> Iterator[str]:
    """The table of the manual: every framework and GPU, and every row without an answer."""
    yield from readme_lines()
    for table, (name, _) in FAMILIES.items():
        stored = _stored()[table]
        yield from ("", f"## {name.capitalize()}, by framework and GPU", "")
        yield "| group | runs | mean error | median | worst tenth beyond | inside the interval |"
        yield "|---|--:|--:|--:|--:|--:|"
        for group, score in stored["groups"].items():
            yield f"| {group} | {score['rows']} | {_errors(score)} |"
        if stored["unsupported"]:
            yield from ("", "Not answered:", "")
            yield from (f"* `{one['row']}`: {one['reason']}" for one in stored["unsupported"])


def with_scoreboard(readme: str) -> str:
    """The text *readme* with its table as it should be."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *readme_lines(), "", END + after])


def _errors(score: dict[str, Any]) -> str:
    keys = ("mape_pct", "median_pct", "p90_pct")
    errors = " | ".join(f"{score[key]:.1f} %" for key in keys)
    return f"{errors} | {score['inside_interval_pct']:.0f} %"


def _stored() -> Any:
    return json.loads(STORED.read_text(encoding="utf-8"))


if __name__ == "__main__":
    README.write_text(with_scoreboard(README.read_text(encoding="utf-8")), encoding="utf-8")
