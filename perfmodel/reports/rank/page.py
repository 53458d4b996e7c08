"""A ranking as a web page: the table, and a picture of times and what bounds them."""

from __future__ import annotations

import base64
import html
import io
import json
from dataclasses import dataclass
from pathlib import Path

from embeddings.plan_document import to_plan_document
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS
from perfmodel.base.writing import write_file, write_output
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import RankedPlan, Ranking
from perfmodel.reports.rank.document import to_ranking_csv, to_ranking_json


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files that were asked for; `-` for JSON is standard output."""

    json_file: str | None = None
    csv_file: Path | None = None
    report_file: Path | None = None
    plan_file: Path | None = None

    def write(self, ranking: Ranking, question: RankQuestion) -> None:
        """Write *ranking* everywhere it was asked for."""
        if self.json_file is not None:
            write_output(self.json_file, to_ranking_json(ranking, question))
        if self.csv_file is not None:
            write_file(self.csv_file, to_ranking_csv(ranking))
        if self.report_file is not None:
            write_file(self.report_file, build_rank_page(ranking))
        if self.plan_file is not None:
            text = json.dumps(to_plan_document(ranking.plans[0].plan), indent=1)
            write_file(self.plan_file, text + "\n")


STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "td,th{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:left}"
    "td.n{text-align:right}img{max-width:100%}"
)


def build_rank_page(ranking: Ranking) -> str:
    """A page that needs no other file."""
    rows = "\n".join(_row(place, plan) for place, plan in enumerate(ranking.plans, start=1))
    refused = "".join(
        f"<li>{html.escape(name)}: {html.escape(reason)}</li>" for name, reason in ranking.refused
    )
    assumptions = "".join(f"<li>{html.escape(text)}</li>" for text in ranking.assumptions)
    picture = base64.b64encode(draw_ranking(ranking)).decode("ascii")
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Plans</title>"
        f"<style>{STYLE}</style><h1>Sharding plans, fastest first</h1>"
        "<table><tr><th></th><th>plan</th><th>time ms</th><th>90 % interval ms</th>"
        "<th>beats next</th><th>bound by</th><th>straggler</th><th>memory GiB</th></tr>"
        f"{rows}</table><p>{ranking.plans_judged} plans judged. {ranking.mode.value} time.</p>"
        f"<img alt='times of plans' src='data:image/png;base64,{picture}'>"
        f"<h2>Not ranked</h2><ul>{refused or '<li>none</li>'}</ul>"
        f"<h2>Assumptions</h2><ul>{assumptions}</ul></html>\n"
    )


def draw_ranking(ranking: Ranking) -> bytes:
    """Times with intervals, and what a tenth less of each part would save, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [plan.plan.name for plan in ranking.plans]
    figure = Figure(figsize=(11, 0.42 * len(names) + 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(names))
    times = [plan.answer.iteration_ns / NS_PER_MS for plan in ranking.plans]
    below = [
        time - plan.answer.interval.low_ns / NS_PER_MS
        for time, plan in zip(times, ranking.plans, strict=True)
    ]
    above = [
        plan.answer.interval.high_ns / NS_PER_MS - time
        for time, plan in zip(times, ranking.plans, strict=True)
    ]
    left.barh(places, times, color="#7aa6c2", xerr=[below, above], ecolor="#444", capsize=3)
    left.set_yticks(list(places), names)
    left.invert_yaxis()
    left.set_xlabel("iteration ms, with 90 % interval")
    start = [0.0] * len(names)
    for bound in ranking.plans[0].gains_ns:
        gains = [max(plan.gains_ns[bound], 0.0) / NS_PER_MS for plan in ranking.plans]
        right.barh(places, gains, left=start, label=bound.value)
        start = [done + gain for done, gain in zip(start, gains, strict=True)]
    right.set_xlabel("saved by a tenth less of each, ms")
    right.legend(fontsize=8)
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=110, metadata={"Software": ""})
    return target.getvalue()


def _row(place: int, plan: RankedPlan) -> str:
    beats = "" if plan.beats_next is None else f"{100 * plan.beats_next:.0f} %"
    tables = html.escape(", ".join(plan.straggler.tables))
    return (
        f"<tr><td class='n'>{place}</td><td>{html.escape(plan.plan.name)}</td>"
        f"<td class='n'>{plan.answer.iteration_ns / NS_PER_MS:.3f}</td>"
        f"<td class='n'>{plan.answer.interval.low_ns / NS_PER_MS:.2f} to "
        f"{plan.answer.interval.high_ns / NS_PER_MS:.2f}</td><td class='n'>{beats}</td>"
        f"<td>{plan.bound.value}</td><td>rank {plan.straggler.rank}: {tables}</td>"
        f"<td class='n'>{plan.peak_bytes / BYTES_PER_GIB:.1f}"
        f"{'' if plan.fits else ' (too much)'}</td></tr>"
    )
