"""The error line of the README and the tables of the manual, from the stored scoreboard.

python docs/scoreboard.py          writes the line of README.md
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parent.parent
SCOREBOARD = CHECKOUT / "experiments/runs_scoreboard"
SPREAD = CHECKOUT / "perfmodel/stacks/spread.yaml"
README = CHECKOUT / "README.md"
BEGIN = "<!-- scoreboard: `make scoreboard` writes what follows -->"
END = "<!-- end of scoreboard -->"
FAMILIES = {
    "core_transformer.csv": ("Transformers", "transformer"),
    "core_dlrm.csv": ("recommendation models", "dlrm"),
}
SCRIPTS = CHECKOUT / "experiments/scripts/results.json"
PAIRS = CHECKOUT / "experiments/measured/scripts.csv"
SCRIPTS_SENTENCE = (
    "Unmodified scripts on virtual GPUs, against the time per optimizer step that their authors "
    "logged or published. `make scoreboard SCRIPTS=FOLDER` reruns the scripts in FOLDER; "
    "`experiments/scripts` says what the folder must contain."
)
HEADING = (
    "| {} | runs | not answered | mean error | median | 90th percentile | inside the interval |",
    "|---|--:|--:|--:|--:|--:|--:|",
)
PEERS = CHECKOUT / "docs/peers.yaml"


def readme_lines() -> Iterator[str]:
    """The line of the README: errors with sources left out."""
    for name, family in FAMILIES.values():
        score = _stored("held_out.json")[family]
        yield (
            f"* {name}: {score['mean_pct']:.1f} % mean error over {score['rows']} public runs, "
            f"{score['inside_pct']:.0f} % inside the interval,"
        )
        yield f"  with every run of the same {score['held_out']} held out"
    yield from ("", "We saw these runs while designing the model; expect somewhat more on yours.")


def table_lines() -> Iterator[str]:
    """Errors in sample, with sources left out, and of other systems."""
    yield from (HEADING[0].format("measured runs of"), HEADING[1])
    for table, (name, family) in FAMILIES.items():
        stored = _stored("results.json")[table]
        missing = len(stored["unsupported"])
        yield f"| {name} | {stored['overall']['rows']} | {missing} | {_errors(stored['overall'])} |"
        yield _left_out_line(family)
    yield _scripts_line()
    yield from ("", _spread_sentence(), "")
    yield from peer_lines()


def peer_lines() -> Iterator[str]:
    """The errors of other systems, each on its own runs."""
    yield from ("| other systems, on their own runs | what | error | source |", "|---|---|---|---|")
    for peer in yaml.safe_load(PEERS.read_text(encoding="utf-8")):
        yield f"| {peer['who']} | {peer['what']} | {peer['error']} | {peer['source']} |"


def script_lines() -> Iterator[str]:
    """Every public script with its published time, and the time and memory of its emulation."""
    yield "| script | GPUs | torch | measured | predicted | error | interval | peak allocated |"
    yield "|---|---|---|--:|--:|--:|---|--:|"
    stored = json.loads(SCRIPTS.read_text(encoding="utf-8"))
    for pair in _pairs():
        one = stored.get(pair["name"])
        facts = f"| {pair['name']} | {pair['ranks']} x {pair['device']} | {pair['torch']} "
        facts += f"| {float(pair['measured_ms']):.1f} ms "
        if one is None:
            yield f"{facts}| not run | | | |"
            continue
        low, high = one["interval_ms"]
        held = f"{one['allocated_gib']:.1f} GiB" if "allocated_gib" in one else ""
        off = f"{100 * _off(one):+.1f} %"
        yield f"{facts}| {one['predicted_ms']:.1f} | {off} | {low:.0f} to {high:.0f} | {held} |"


def scoreboard_lines() -> Iterator[str]:
    """The tables of the manual: by framework and GPU, chip, scale, and rows without an answer."""
    yield from table_lines()
    stored = _stored("results.json")
    for title, groups in stored.get("by", {}).items():
        yield from ("", f"## By {title}", "")
        yield from (HEADING[0].replace(" not answered |", "").format(title), HEADING[1][4:])
        for name, score in groups.items():
            yield f"| {name} | {score['rows']} | {_errors(score)} |"
    for table, (name, _) in FAMILIES.items():
        yield from ("", f"## {name.capitalize()}, by framework and GPU", "")
        yield from (HEADING[0].replace(" not answered |", "").format("group"), HEADING[1][4:])
        for group, score in stored[table]["groups"].items():
            yield f"| {group} | {score['rows']} | {_errors(score)} |"
        if stored[table]["unsupported"]:
            yield from ("", "Not answered:", "")
            for one in stored[table]["unsupported"]:
                yield f"* `{one['row']}`: {one['reason']}"
    yield from ("", "## Public scripts, emulated", "", SCRIPTS_SENTENCE, "")
    yield from script_lines()


def with_scoreboard(readme: str) -> str:
    """The text *readme* with its line as it should be."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *readme_lines(), "", END + after])


def _left_out_line(family: str) -> str:
    score = _stored("held_out.json")[family]
    return (
        f"| held out: {score['held_out']} | {score['rows']} | - "
        f"| {score['mean_pct']:.1f} % | {score['median_pct']:.1f} % | {score['p90_pct']} "
        f"| {score['inside_pct']:.0f} %, half-width {score['half_width_pct']:.0f} % |"
    )


def _scripts_line() -> str:
    """The third family: unmodified scripts against the times that their authors published."""
    stored, pairs = json.loads(SCRIPTS.read_text(encoding="utf-8")), _pairs()
    scored = [stored[pair["name"]] for pair in pairs if pair["name"] in stored]
    errors = sorted(abs(_off(one)) for one in scored)
    inside = [
        low <= one["measured_ms"] <= high for one in scored for low, high in [one["interval_ms"]]
    ]
    worst = quantiles(errors, n=10)[-1]
    return (
        f"| unmodified scripts, emulated | {len(scored)} | {len(pairs) - len(scored)} "
        f"| {fmean(errors):.1%} | {median(errors):.1%} | {worst:.1%} | {fmean(inside):.0%} |"
    ).replace("%", " %")


def _pairs() -> list[dict[str, str]]:
    with PAIRS.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _off(one: dict[str, Any]) -> float:
    return float(one["predicted_ms"] / one["measured_ms"] - 1)


def _spread_sentence() -> str:
    spreads = yaml.safe_load(SPREAD.read_text(encoding="utf-8"))["families"]
    parts = [
        f"{100 * spreads[family]['no_runs']:.0f} % for {name}" for name, family in FAMILIES.values()
    ]
    return (
        f"For a framework we have never seen, the error is about {' and '.join(parts)} (1 sigma)."
    )


def _errors(score: dict[str, Any]) -> str:
    keys = ("mape_pct", "median_pct", "p90_pct")
    errors = " | ".join(f"{score[key]:.1f} %" for key in keys)
    return f"{errors} | {score['inside_interval_pct']:.0f} %"


def _stored(name: str) -> Any:
    return json.loads((SCOREBOARD / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    README.write_text(with_scoreboard(README.read_text(encoding="utf-8")), encoding="utf-8")
