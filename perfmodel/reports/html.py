"""Page: a report as one HTML file that needs nothing else and may load nothing else.

Every name goes through the template's escaping. Data for the timeline is JSON whose angle
brackets are written as escapes, so nothing from outside is markup. The policy of the page allows
its own style sheet and script, by their hashes; widths and colours of bars are therefore classes
of the style sheet instead of attributes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

import perfmodel
from perfmodel.base.units import format_duration
from perfmodel.base.writing import printable_lines
from perfmodel.engine.layout import Int64s
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.explain import ExplainedReplay, find_path
from perfmodel.reports.blocks import Report, TimelineBlock, plain_report
from perfmodel.reports.chrome_trace import choose_ranks
from perfmodel.reports.terminal import to_text
from perfmodel.reports.text import format_ranks

FOLD = 12
"""Rows of a table before the rest is folded."""
MAX_TASKS = 600_000
"""Tasks that all timelines of a page draw together."""
_CODE = re.compile("`([^`]+)`")
_ON_PATH = 1 << 31
_LARGEST = 2**31

LANE_COLOURS = {
    LaneKind.HOST: "#7b8894",
    LaneKind.LOADER: "#9a83ad",
    LaneKind.COMPUTE: "#37874a",
    LaneKind.COMMUNICATION: "#3b74c4",
    LaneKind.COPY: "#b47f25",
}


def load_template(folder: Path) -> Template:
    """The page template of *folder*; every value is escaped and none may be missing."""
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"marked": _marked, "duration": format_duration}
    return templates.get_template("page.html.j2")


def to_page(report: Report) -> str:
    """The page as text."""
    rules: dict[str, str] = {}
    shown = [(section.title, section.shown(on_page=True)) for section in report.sections]
    timelines = [one for _, blocks in shown for one in blocks if isinstance(one, TimelineBlock)]
    return load_template(Path(__file__).parent).render(
        report=report,
        version=perfmodel.__version__,
        sections=[(title, blocks) for title, blocks in shown if blocks],
        has_timeline=bool(timelines),
        fold=FOLD,
        styled=lambda rule: rules.setdefault(rule, f"s{len(rules)}"),
        rules=lambda: Markup("\n".join(f".{name} {{ {rule} }}" for rule, name in rules.items())),  # noqa: S704 - numbers and our own colours
        sha256=_sha256,
        as_text=lambda block: to_text(plain_report("", block)),
        timeline_json=lambda one: _timeline_json(one, MAX_TASKS // len(timelines)),
        timeline_note=lambda one: _timeline_note(one, MAX_TASKS // len(timelines)),
    )


def _marked(text: str) -> Markup:
    """*text* with what is between backticks shown as code, as the terminal prints it."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(_visible(text)))))  # noqa: S704  escaped


def _visible(value: object) -> object:
    """*value* without control characters, if it is text from outside."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable_lines(value)
    return value


def _sha256(content: str) -> Markup:
    """The source expression of a policy that allows *content*."""
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")  # noqa: S704 - base64


def _timeline_json(evidence: ExplainedReplay, max_tasks: int) -> Markup:
    """The lanes of all classes of ranks, as far as a page can hold them, safe in a script."""
    unit_ns = _unit_ns(evidence.window.length_ns)
    on_path: list[set[int]] = [set() for _ in range(evidence.job.rank_count)]
    for step in find_path(evidence):
        on_path[step.at.rank].add(step.at.task)
    lanes = []
    for rank in choose_ranks(evidence, max_tasks=max_tasks):
        path = np.array(sorted(on_path[rank]), dtype=np.int64)
        for lane, described in enumerate(evidence.job.program_of(rank).lanes):
            spans = _lane_spans(evidence, rank, lane, path)
            if len(spans):
                name = f"rank {evidence.class_ranks[rank][0]} {described.name}"
                colour = LANE_COLOURS[described.kind]
                lanes.append({"name": name, "colour": colour, **_pack(spans, unit_ns)})
    data = {
        "span": evidence.window.length_ns // unit_ns,
        "unit_ns": unit_ns,
        "labels": list(evidence.job.labels),
        "lanes": lanes,
    }
    return _as_json(data)


def _lane_spans(evidence: ExplainedReplay, rank: int, lane: int, on_path: Int64s) -> Int64s:
    """Start, end and marked label of the lane's tasks in the window, of whichever iteration."""
    program, history, window = evidence.job.program_of(rank), evidence.history, evidence.window
    first, after = int(program.lane_start[lane]), int(program.lane_start[lane + 1])
    tasks = slice(first, after)
    marked = program.label[tasks].astype(np.int64)
    marked |= np.isin(np.arange(first, after), on_path).astype(np.int64) * _ON_PATH
    spans = np.concatenate(
        [
            np.column_stack(
                [history.start_ns(one, rank)[tasks], history.end_ns(one, rank)[tasks], marked]
            )
            for one in history.iterations
        ]
    )
    spans[:, :2] = spans[:, :2].clip(window.from_ns, window.to_ns) - window.from_ns
    return spans[spans[:, 1] > spans[:, 0]]


def _pack(spans: Int64s, unit_ns: int) -> dict[str, str]:
    starts = spans[:, 0] // unit_ns
    lengths = spans[:, 1] // unit_ns - starts
    return _packed(start=starts, length=lengths, label=spans[:, 2])


def _packed(**numbers: Int64s) -> dict[str, str]:
    """*numbers* as 32-bit numbers in base64."""
    return {
        key: base64.b64encode(values.astype("<u4").tobytes()).decode("ascii")
        for key, values in numbers.items()
    }


def _unit_ns(span_ns: int) -> int:
    """What 32-bit numbers count in, so that they reach over *span_ns*."""
    return max(1, -(-span_ns // _LARGEST))


def _as_json(data: dict[str, Any]) -> Markup:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704 - every sign that could end the element is escaped


def _timeline_note(evidence: ExplainedReplay, max_tasks: int) -> str:
    ranks = choose_ranks(evidence, max_tasks=max_tasks)
    crowds = [evidence.class_ranks[rank] for rank in ranks if len(evidence.class_ranks[rank]) > 1]
    sentences = [f"Rank {members[0]} represents {format_ranks(members)}." for members in crowds[:8]]
    if len(crowds) > len(sentences):
        sentences.append(f"So do {len(crowds) - len(sentences)} more for their classes.")
    left_out = evidence.job.rank_count - len(ranks)
    if left_out:
        sentences.append(f"{left_out} more classes of ranks are not drawn.")
    sentences.append("Lanes without tasks in this window are not drawn.")
    return " ".join(sentences)
