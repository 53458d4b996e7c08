"""Pictures: drawn without a window, saved whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.base.writing import check_writable, draft_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def build_figure(width: float, height: float) -> Figure:
    """An empty picture of so many inches, drawn without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_stacks(
    axes: Axes,
    names: Sequence[str],
    stacks: Mapping[str, tuple[str | None, Sequence[float]]],
    *,
    label: str,
    ends: Sequence[tuple[float, float]] = (),
) -> None:
    """A bar per name, made of *stacks* (colour and widths by word); *ends* are intervals."""
    places, done = list(range(len(names))), np.zeros(len(names))
    for words, (colour, widths) in stacks.items():
        if any(widths):
            axes.barh(places, widths, left=done, color=colour, label=words)
        done = done + np.array(widths)
    if ends:
        low, high = np.array(ends).T
        spread = [np.maximum(done - low, 0), np.maximum(high - done, 0)]
        axes.errorbar(done, places, xerr=spread, fmt="none", ecolor="#333", capsize=3)
    axes.set_yticks(places, [as_written(name) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    if len(stacks) > 1:
        axes.legend(fontsize=7)


def draw_times(times_ms: Sequence[tuple[str, float]]) -> Figure:
    """A bar per name: milliseconds of an iteration."""
    figure = build_figure(8, 1.4 + 0.4 * len(times_ms))
    stack = {"": ("#3b74c4", [time_ms for _, time_ms in times_ms])}
    names = [name for name, _ in times_ms]
    draw_stacks(figure.subplots(), names, stack, label="iteration ms")
    return figure


def check_picture_path(path: Path) -> None:
    """Raise unless *path* can become a picture."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"picture {path}: must end in {', '.join(FORMATS)}, got {path.suffix or 'nothing'!r}."
        )
    check_writable("picture", path)


def as_written(words: str) -> str:
    """*words* of a person for a picture, where two dollar signs would make mathematics."""
    return words.replace("$", r"\$")


def save_picture(figure: Figure, path: Path, **options: Any) -> None:
    """Save *figure* to *path*; its ending decides the format, equal pictures have equal bytes."""
    check_picture_path(path)
    stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    with draft_of(path) as draft:
        figure.savefig(draft, format=path.suffix[1:].lower(), metadata=stamp, **options)
