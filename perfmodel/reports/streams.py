"""Streams: what every stream of a recording spent its time on, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.reports.pictures import as_written, build_figure, save_picture

_COLOURS = {
    "lookup": "#d95f02",
    "gemm": "#1b9e77",
    "memory": "#7570b3",
    "communication": "#e7298a",
    "other": "#a6761d",
    "idle": "#e6e6e6",
}


def plot_stream_parts(documents: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the streams of every job to *path*; the ending decides the format."""
    heights = [max(len(document["streams"]), 2) for document in documents]
    figure = build_figure(9, 1.2 + 0.28 * sum(heights))
    axes = figure.subplots(len(documents), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, document in zip(axes, documents, strict=True):
        _draw(axis, document)
    axes[0].legend(ncols=len(_COLOURS), loc="lower left", bbox_to_anchor=(0, 1.02), fontsize=8)
    axes[-1].set_xlabel("ms")
    save_picture(figure, path, dpi=150)


def _draw(axis: Any, document: dict[str, Any]) -> None:
    streams = document["streams"]
    names = [f"rank {stream['rank']} stream {stream['stream']}" for stream in streams]
    places = range(len(streams))
    left = [0.0] * len(streams)
    for part, colour in _COLOURS.items():
        widths = [stream["parts_ms"][part] for stream in streams]
        axis.barh(places, widths, left=left, color=colour, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.set_yticks(places, names, fontsize=7)
    axis.invert_yaxis()
    axis.set_ylabel(as_written(str(document["job"])), fontsize=7)
