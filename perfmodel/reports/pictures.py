"""Pictures: drawn without a window, saved whole or not at all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError
from perfmodel.base.writing import check_writable, draft_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMATS = (".png", ".svg", ".pdf")


def build_figure(width: float, height: float) -> Figure:
    """An empty picture of so many inches, drawn without a window."""
    # Without a home that it may write, it warns of its cache in a temporary folder.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
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
