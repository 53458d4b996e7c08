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
from perfmodel.reports.rank_text import name_ranks
from perfmodel.reports.sentences import describe_other_time, describe_run, describe_title
from perfmodel.reports.timeline_picture import build_timeline_picture

MAX_CLASSES = 16
MAX_LABELS = 12
MAX_WAITS = 20

PART_COLOURS = {
    Part.COMPUTE: ("#3f9a54", "compute"),
    Part.EXPOSED_COMMUNICATION: ("#3b74c4", "exposed communication"),
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
    path = prediction.critical_path
    total_ns = prediction.iteration_ns
    return {
        "title": describe_title(prediction),
        "answer": format_duration(total_ns),
        "low": format_duration(prediction.interval.low_ns),
        "high": format_duration(prediction.interval.high_ns),
        "other_time": describe_other_time(prediction),
        "parts": _parts(prediction.time),
        "classes": _classes(prediction),
        "classes_left_out": max(len(prediction.rank_classes) - MAX_CLASSES, 0),
        "timeline": build_timeline_picture(prediction.evidence),
        "path_kinds": [_share(share, total_ns) for share in path.by_kind],
        "path_labels": [_share(share, total_ns) for share in path.by_label[:MAX_LABELS]],
        "rank_changes": path.rank_changes,
        "waits": _waits(prediction),
        "memory": _memory(prediction),
        "provenance": ", ".join(
            f"{ratio:.1%} {kind.word}" for kind, ratio in prediction.provenance_ratio.items()
        ),
        "assumptions": prediction.assumptions,
        "scenario": _scenario(prediction),
        "version": perfmodel.__version__,
        "where": describe_run(prediction),
    }


def _parts(time: TimeParts) -> list[dict[str, Any]]:
    total_ns = max(time.total_ns, 1)
    rows, done_ns = [], 0
    for part, duration_ns in time.of_part_ns.items():
        colour, words = PART_COLOURS[part]
        rows.append(
            {
                "colour": colour,
                "words": words,
                "time": format_duration(duration_ns),
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
            "memory": format_size(entry.memory.peak_bytes),
        }
        for entry in prediction.rank_classes[:MAX_CLASSES]
    ]


def _share(share: PathShare, total_ns: int) -> dict[str, Any]:
    return {
        "name": share.name,
        "time": format_duration(share.duration_ns),
        "percent": f"{share.duration_ns / max(total_ns, 1):.1%}",
        "tasks": share.task_count,
    }


def _waits(prediction: Prediction) -> list[dict[str, str]]:
    return [
        {
            "who": name_ranks(wait.waiting_ranks),
            "awaited": f"rank {wait.awaited_rank}",
            "label": wait.label,
            "time": format_duration(wait.duration_ns),
        }
        for wait in prediction.waits[:MAX_WAITS]
    ]


def _memory(prediction: Prediction) -> dict[str, Any]:
    fullest = max(prediction.rank_classes, key=lambda entry: entry.memory.peak_bytes)
    purposes = sorted(fullest.memory.of_purpose_bytes.items(), key=lambda item: -item[1])
    return {
        "peak": format_size(fullest.memory.peak_bytes),
        "capacity": format_size(prediction.memory_capacity_bytes),
        "ranks": name_ranks(fullest.ranks),
        "fits": prediction.fits_in_memory,
        "purposes": [{"name": name, "size": format_size(size)} for name, size in purposes],
    }


def _scenario(prediction: Prediction) -> dict[str, str]:
    document = to_scenario_document(prediction.scenario)
    return {
        key.replace("_", " "): ", ".join(value) if isinstance(value, list) else str(value)
        for key, value in document.items()
        if value not in (None, [])
    }
