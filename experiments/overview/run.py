"""How an answer comes about, and what ranks wait for: two pictures.

python experiments/overview/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.figures import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PAGE,
    PURPLE,
    SKY,
    Wishes,
    legend_below,
    new_figure,
    read_wishes,
)
from perfmodel.api import Scenario, predict
from perfmodel.graph.ops import Communication, EmbeddingOp, Gemm
from perfmodel.graph.program import LaneKind

LANES = {LaneKind.COMPUTE: "compute", LaneKind.COMMUNICATION: "comm."}


def main() -> None:
    """Draw the flow of an answer and a stretch of a replay."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    draw_flow(wishes, scenario)
    draw_waiting(wishes, scenario["waiting"])


def draw_flow(wishes: Wishes, scenario: dict[str, Any]) -> None:
    """Boxes in columns, an arrow from each to those it feeds."""
    figure, axes = new_figure(width=PAGE, height=2.3)
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.axis("off")
    colours = dict(zip(scenario["columns"], (SKY, GREEN, BLUE, AMBER), strict=True))
    for column, (title, left) in enumerate(scenario["columns"].items()):
        axes.text(left + 9.5, 97, title, ha="center", va="top", weight="bold")
        boxes = [box for box in scenario["boxes"] if box["column"] == column]
        for box in boxes:
            box["centre"] = (left, box["at"])
            axes.text(
                left + 9.5, box["at"], box["text"], ha="center", va="center", fontsize=6,
                bbox={"boxstyle": "round,pad=0.5", "fc": "white", "ec": colours[title], "lw": 1.2},
            )  # fmt: skip
    places = {box["name"]: box["centre"] for box in scenario["boxes"]}
    for source, target in scenario["arrows"]:
        (x0, y0), (x1, y1) = places[source], places[target]
        if x0 == x1:  # from one box to its neighbour above or below
            way = 1 if y1 > y0 else -1
            begin, end = (x0 + 9.5, y0 + 9 * way), (x1 + 9.5, y1 - 9 * way)
        else:
            begin, end = (x0 + 17.5, y0), (x1 + 1.5, y1)
        axes.annotate("", xy=end, xytext=begin, arrowprops={"arrowstyle": "->", "color": GREY})
    wishes.save(figure, "overview.png")


def draw_waiting(wishes: Wishes, asked: dict[str, Any]) -> None:
    """Streams of all ranks about the first exchange of pooled vectors: who is late, who waits."""
    prediction = predict(
        Scenario(topology=asked["topology"], workload=asked["workload"], samples=2),
        executor="ray" if wishes.ray_address else "serial",
        ray_address=wishes.ray_address,
    )
    evidence = prediction.evidence
    begin = evidence.window.from_ns
    figure, axes = new_figure(height=2.4)
    told: set[str] = set()
    names = []
    for rank in range(len(evidence.class_ranks)):
        program = evidence.job.program_of(rank)
        lanes = program.task_lanes()
        starts, ends = evidence.starts_ns(rank) - begin, evidence.ends_ns(rank) - begin
        waits = evidence.waits_ns(rank)
        for number, lane in enumerate(program.lanes):
            if lane.kind not in LANES:
                continue
            row = len(names)
            names.append(f"rank {evidence.class_ranks[rank][0]} {LANES[lane.kind]}")
            for task in np.flatnonzero(lanes == number):
                op = evidence.job.ops[program.op[task]]
                word, colour = word_of(op)
                spans = [(starts[task], ends[task], word, colour)]
                if waits[task] > 0:
                    spans.append((starts[task] - waits[task], starts[task], "waiting", "#DDDDDD"))
                for start, end, label, fill in spans:
                    shown = None if label in told else label
                    axes.barh(row, (end - start) / 1e6, left=start / 1e6, color=fill, label=shown)
                    told.add(label)
    axes.set_yticks(range(len(names)), names, fontsize=5)
    axes.invert_yaxis()
    axes.set(xlim=(0, (evidence.window.to_ns - begin) / 1e6), xlabel="ms of one iteration")
    axes.grid(visible=False, axis="y")
    legend_below(figure, axes)
    wishes.save(figure, "waiting.png")


def word_of(op: Any) -> tuple[str, str]:
    """What a bar is."""
    if isinstance(op, Communication):
        return "communication", PURPLE
    if isinstance(op, EmbeddingOp):
        return "lookup and update", ORANGE
    return ("products", BLUE) if isinstance(op, Gemm) else ("other kernels", SKY)


if __name__ == "__main__":
    main()
