"""Page: a prediction as one HTML file that needs nothing else.

All names go through the template's escaping; none reaches the page as markup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import perfmodel
from perfmodel.base.units import format_duration, format_size
from perfmodel.prediction.answer import Part, PathShare, Prediction, TimeParts
from perfmodel.reports.document import to_scenario_document
from perfmodel.reports.rank.table import name_ranks
from perfmodel.reports.text import (
    build_scale,
    describe_other_time,
    describe_rank_changes,
    describe_run,
    describe_speed,
    describe_title,
    gather_waits,
)
from perfmodel.reports.timeline_picture import build_timeline_picture

MAX_CLASSES = 16
MAX_LABELS = 12
MAX_WAITS = 20

PART_COLOURS = {
    Part.COMPUTE: ("#3f9a54", "compute"),
    Part.EXPOSED_COMMUNICATION: ("#3b74c4", "exposed communication"),
    Part.EXPOSED_COPIES: ("#8d63b5", "exposed copies"),
    Part.WAITING_FOR_OTHER_RANKS: ("#e0b43a", "waiting for other ranks"),
    Part.HOST_BOUND_IDLE: ("#c8553d", "idle, host-bound"),
}


def build_page(prediction: Prediction) -> str:
    """The page as text."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html.j2").render(**_values(prediction))


def _values(prediction: Prediction) -> dict[str, Any]:
    why = prediction.explanation
    path = why.critical_path
    return {
        "title": describe_title(prediction),
        "answer": format_duration(prediction.iteration_ns),
        "low": format_duration(prediction.interval.low_ns),
        "high": format_duration(prediction.interval.high_ns),
        "is_interval_known": prediction.interval.is_known,
        "speed": describe_speed(prediction),
        "other_time": describe_other_time(prediction),
        "parts": _parts(why.time),
        "classes": _classes(prediction),
        "classes_left_out": max(len(why.rank_classes) - MAX_CLASSES, 0),
        "timeline": build_timeline_picture(prediction.evidence),
        "path_kinds": [_share(share, path.length_ns) for share in path.by_kind],
        "path_labels": [_share(share, path.length_ns) for share in path.by_label[:MAX_LABELS]],
        "rank_changes": describe_rank_changes(path.rank_changes) if path.rank_changes else "",
        "waits": _waits(prediction),
        "memory": _memory(prediction),
        "provenance": ", ".join(
            f"{ratio:.1%} {kind.word}" for kind, ratio in why.provenance_ratio.items()
        ),
        "assumptions": prediction.assumptions,
        "scenario": _scenario(prediction),
        "version": perfmodel.__version__,
        "where": describe_run(prediction),
    }


def _parts(time: TimeParts) -> list[dict[str, Any]]:
    total_ns = max(time.total_ns, 1)
    scale = build_scale(total_ns)
    rows, done_ns = [], 0
    for part, duration_ns in time.of_part_ns.items():
        if not duration_ns:
            continue
        colour, words = PART_COLOURS[part]
        rows.append(
            {
                "colour": colour,
                "words": words,
                "time": scale.text(duration_ns),
                "percent": f"{duration_ns / total_ns:.1%}",
                "start": done_ns / total_ns,
                "share": duration_ns / total_ns,
            }
        )
        done_ns += duration_ns
    return rows


def _classes(prediction: Prediction) -> list[dict[str, Any]]:
    return [
        {
            "name": name_ranks(entry.ranks),
            "parts": _parts(entry.time),
            "memory": format_size(entry.memory.total_bytes) if entry.memory.parts else "",
        }
        for entry in prediction.explanation.rank_classes[:MAX_CLASSES]
    ]


def _share(share: PathShare, total_ns: int) -> dict[str, Any]:
    return {
        "name": share.name,
        "time": build_scale(total_ns).text(share.duration_ns),
        "percent": f"{share.duration_ns / max(total_ns, 1):.1%}",
        "tasks": share.task_count,
    }


def _waits(prediction: Prediction) -> list[dict[str, str]]:
    scale = build_scale(prediction.iteration_ns)
    return [
        {
            "who": name_ranks(crowd.waiting_ranks),
            "awaited": f"rank {crowd.awaited_rank}",
            "label": crowd.label,
            "mean": scale.text(crowd.mean_ns),
            "longest": scale.text(crowd.longest_ns),
        }
        for crowd in gather_waits(prediction.explanation.waits)[:MAX_WAITS]
    ]


def _memory(prediction: Prediction) -> dict[str, Any] | None:
    memory = prediction.memory
    if memory is None:
        return None
    largest_first = sorted(memory.fullest.memory.parts, key=lambda part: -part.size_bytes)
    return {
        "peak": format_size(memory.peak_bytes),
        "capacity": format_size(memory.capacity_bytes),
        "ranks": name_ranks(memory.fullest.ranks),
        "fits": memory.fits,
        "purposes": [
            {"name": part.name, "size": format_size(part.size_bytes)} for part in largest_first
        ],
    }


def _scenario(prediction: Prediction) -> dict[str, str]:
    scenario = prediction.scenario
    document = {} if scenario is None else to_scenario_document(scenario)
    return {
        key.replace("_", " "): ", ".join(value) if isinstance(value, list) else str(value)
        for key, value in document.items()
        if value not in (None, [])
    }
