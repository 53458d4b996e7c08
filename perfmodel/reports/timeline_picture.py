"""Timeline picture: the lanes of a few ranks as boxes for an SVG.

Tasks narrower than a pixel are merged with their neighbours, so that the
picture of ten thousand tasks stays a few hundred boxes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.units import format_duration
from perfmodel.engine.layout import Int64s
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.evidence import Evidence
from perfmodel.reports.rank.table import format_ranks

WIDTH = 930
LEFT = 170
ROW_HEIGHT = 20
RANK_GAP = 8
MAX_RANKS = 4
TICKS = 6

LANE_COLOURS = {
    LaneKind.HOST: "#8a97a5",
    LaneKind.LOADER: "#b9a5c9",
    LaneKind.COMPUTE: "#3f9a54",
    LaneKind.COMMUNICATION: "#3b74c4",
    LaneKind.COPY: "#c98f2e",
}


@dataclass(frozen=True, slots=True)
class Box:
    """A task, or several that are too small to be told apart."""

    x: float
    width: float
    colour: str
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    """One lane."""

    y: int
    name: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment on the axis."""

    x: float
    anchor: str
    words: str


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """Everything the page needs to draw the lanes."""

    width: int
    height: int
    left: int
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    note: str


def build_timeline_picture(evidence: Evidence) -> TimelinePicture:
    """What the lanes of the first ranks of *evidence* did in its window of time."""
    shown = min(evidence.job.rank_count, MAX_RANKS)
    rows: list[Row] = []
    left_out = y = 0
    for rank in range(shown):
        for lane, _ in enumerate(evidence.job.program_of(rank).lanes):
            row = _build_row(evidence, rank, lane, y=y)
            if row.boxes:
                rows.append(row)
                y += ROW_HEIGHT
            else:
                left_out += 1
        y += RANK_GAP
    return TimelinePicture(
        width=WIDTH,
        height=y + 14,
        left=LEFT,
        rows=tuple(rows),
        ticks=_build_ticks(evidence.window.length_ns),
        note=_note(evidence, shown, has_quiet_lanes=left_out > 0),
    )


def _build_row(evidence: Evidence, rank: int, lane: int, *, y: int) -> Row:
    program = evidence.job.program_of(rank)
    window = evidence.window
    scale = (WIDTH - LEFT) / max(window.length_ns, 1)
    spans = _lane_spans(evidence, rank, lane)
    colour = LANE_COLOURS[program.lanes[lane].kind]
    boxes: list[Box] = []
    for first, last in _merge(spans[:, 0], spans[:, 1], gap_ns=1.0 / scale):
        from_ns, to_ns = int(spans[first, 0]), int(spans[last, 1])
        more = f" and {last - first} more" if last > first else ""
        label = evidence.job.labels[int(spans[first, 2])]
        boxes.append(
            Box(
                x=round(LEFT + (from_ns - window.from_ns) * scale, 2),
                width=round(max((to_ns - from_ns) * scale, 0.4), 2),
                colour=colour,
                words=f"{label}{more}: {format_duration(to_ns - from_ns)}",
            )
        )
    name = f"rank {evidence.class_ranks[rank][0]} {program.lanes[lane].name}"
    return Row(y=y, name=name if len(name) <= 28 else f"{name[:27]}…", boxes=tuple(boxes))


def _lane_spans(evidence: Evidence, rank: int, lane: int) -> Int64s:
    """Start, end and label of the lane's tasks in the window, whichever iteration they are of."""
    program, history, window = evidence.job.program_of(rank), evidence.history, evidence.window
    tasks = slice(int(program.lane_start[lane]), int(program.lane_start[lane + 1]))
    spans = np.concatenate(
        [
            np.column_stack(
                [
                    history.start_ns(iteration, rank)[tasks].clip(window.from_ns, window.to_ns),
                    history.end_ns(iteration, rank)[tasks].clip(window.from_ns, window.to_ns),
                    program.label[tasks].astype(np.int64),
                ]
            )
            for iteration in history.iterations
        ]
    )
    return spans[spans[:, 1] > spans[:, 0]]


def _merge(starts_ns: Int64s, ends_ns: Int64s, *, gap_ns: float) -> list[tuple[int, int]]:
    """First and last task of each box: a box takes in small tasks that follow at once."""
    boxes: list[tuple[int, int]] = []
    for task in range(len(starts_ns)):
        is_small = ends_ns[task] - starts_ns[task] < gap_ns
        if boxes and is_small and starts_ns[task] - ends_ns[boxes[-1][1]] < gap_ns:
            boxes[-1] = (boxes[-1][0], task)
        else:
            boxes.append((task, task))
    return boxes


def _build_ticks(length_ns: int) -> tuple[Tick, ...]:
    ticks = []
    for number in range(TICKS):
        share = number / (TICKS - 1)
        anchor = {0: "start", TICKS - 1: "end"}.get(number, "middle")
        x = round(LEFT + share * (WIDTH - LEFT), 2)
        ticks.append(Tick(x=x, anchor=anchor, words=format_duration(length_ns * share)))
    return tuple(ticks)


def _note(evidence: Evidence, shown: int, *, has_quiet_lanes: bool) -> str:
    sentences = [
        f"Rank {ranks[0]} stands for {format_ranks(ranks)}."
        for ranks in evidence.class_ranks[:shown]
        if len(ranks) > 1
    ]
    left_out = evidence.job.rank_count - shown
    if left_out:
        sentences.append(f"{left_out} more classes of ranks are not drawn.")
    if has_quiet_lanes:
        sentences.append(
            "Lanes with nothing to do in this time are left out: a host that runs ahead has done "
            "its part before."
        )
    return " ".join(sentences)
