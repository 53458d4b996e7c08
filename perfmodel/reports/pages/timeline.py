"""Timeline: what the lanes of all classes of ranks did, packed for the script of the page."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from perfmodel.engine.layout import Int64s
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.evidence import Evidence
from perfmodel.prediction.explain import find_path
from perfmodel.reports.chrome_trace import choose_ranks
from perfmodel.reports.pages.page import Canvas
from perfmodel.reports.text import format_ranks

MAX_TASKS = 600_000
_ON_PATH = 1 << 31
_LARGEST = 2**31

LANE_COLOURS = {
    LaneKind.HOST: "#7b8894",
    LaneKind.LOADER: "#9a83ad",
    LaneKind.COMPUTE: "#37874a",
    LaneKind.COMMUNICATION: "#3b74c4",
    LaneKind.COPY: "#b47f25",
}


def build_timeline(evidence: Evidence) -> Canvas:
    """The window of *evidence*, all classes of ranks as far as a page can hold them."""
    ranks = choose_ranks(evidence, max_tasks=MAX_TASKS)
    unit_ns = max(1, -(-evidence.window.length_ns // _LARGEST))
    on_path = _tasks_on_path(evidence)
    lanes, quiet = [], 0
    for rank in ranks:
        for lane, described in enumerate(evidence.job.program_of(rank).lanes):
            spans = _lane_spans(evidence, rank, lane, on_path[rank])
            if len(spans):
                name = f"rank {evidence.class_ranks[rank][0]} {described.name}"
                lanes.append(_pack(spans, name, LANE_COLOURS[described.kind], unit_ns))
            else:
                quiet += 1
    data = {
        "span": evidence.window.length_ns // unit_ns,
        "unit_ns": unit_ns,
        "labels": list(evidence.job.labels),
        "lanes": lanes,
    }
    return Canvas(data, _note(evidence, ranks, has_quiet_lanes=quiet > 0))


def _tasks_on_path(evidence: Evidence) -> list[Int64s]:
    of_rank: list[set[int]] = [set() for _ in range(evidence.job.rank_count)]
    for step in find_path(evidence):
        of_rank[step.at.rank].add(step.at.task)
    return [np.array(sorted(tasks), dtype=np.int64) for tasks in of_rank]


def _lane_spans(evidence: Evidence, rank: int, lane: int, on_path: Int64s) -> Int64s:
    """Start, end and marked label of the lane's tasks in the window, of whichever iteration."""
    program, history, window = evidence.job.program_of(rank), evidence.history, evidence.window
    first, after = int(program.lane_start[lane]), int(program.lane_start[lane + 1])
    tasks = slice(first, after)
    marked = program.label[tasks].astype(np.int64)
    marked |= np.isin(np.arange(first, after), on_path).astype(np.int64) * _ON_PATH
    spans = np.concatenate(
        [
            np.column_stack(
                [
                    history.start_ns(iteration, rank)[tasks].clip(window.from_ns, window.to_ns),
                    history.end_ns(iteration, rank)[tasks].clip(window.from_ns, window.to_ns),
                    marked,
                ]
            )
            for iteration in history.iterations
        ]
    )
    spans = spans[spans[:, 1] > spans[:, 0]]
    spans[:, :2] -= window.from_ns
    return spans


def _pack(spans: Int64s, name: str, colour: str, unit_ns: int) -> dict[str, Any]:
    starts = spans[:, 0] // unit_ns
    return {
        "name": name,
        "colour": colour,
        "start": _base64(starts),
        "length": _base64(spans[:, 1] // unit_ns - starts),
        "label": _base64(spans[:, 2]),
    }


def _base64(numbers: Int64s) -> str:
    return base64.b64encode(numbers.astype("<u4").tobytes()).decode("ascii")


def _note(evidence: Evidence, ranks: tuple[int, ...], *, has_quiet_lanes: bool) -> str:
    shown = [evidence.class_ranks[rank] for rank in ranks]
    crowds = [members for members in shown if len(members) > 1]
    sentences = [f"Rank {members[0]} stands for {format_ranks(members)}." for members in crowds[:8]]
    if len(crowds) > len(sentences):
        sentences.append(f"So do {len(crowds) - len(sentences)} more for theirs.")
    left_out = evidence.job.rank_count - len(ranks)
    if left_out:
        sentences.append(f"{left_out} more classes of ranks are not drawn.")
    if has_quiet_lanes:
        sentences.append(
            "Lanes with nothing to do in this time are left out: a host that runs ahead has done "
            "its part before."
        )
    return " ".join(sentences)
