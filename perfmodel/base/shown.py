"""Shown: what every answer offers in Python and in a notebook.

How an answer is shown is known in `perfmodel.reports`, far above; it is looked
up when somebody asks, so that answers stay plain values. The import contract
lists this one step upwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Shown:
    """An answer that can be looked at: as a line, a table, a picture, a page, plain values."""

    __slots__ = ()

    def __repr__(self) -> str:
        text: str = _view().describe(self)
        return text

    def _repr_html_(self) -> str:
        text: str = _view().to_html(self)
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` writes them."""
        document: dict[str, Any] = _view().to_dict(self)
        return document

    def to_frame(self) -> pandas.DataFrame:
        """A table: a line per class of ranks, plan, layout, scenario or change."""
        frame: pandas.DataFrame = _view().to_frame(self)
        return frame

    def plot(self, path: str | Path | None = None) -> Figure:
        """A picture, written to *path* if there is one (png, svg or pdf)."""
        figure: Figure = _view().plot(self, None if path is None else Path(path))
        return figure

    def save_report(self, path: str | Path) -> Path:
        """Write the page that `--report` writes; gives *path* back."""
        written: Path = _view().save_report(self, Path(path))
        return written


def _view() -> Any:
    from perfmodel.reports import showing

    return showing
