"""Shown: what every answer offers in Python and in a notebook.

`perfmodel.reports` knows how an answer is shown. It is looked up on use, so that answers stay
plain values; the import contract lists this one import upwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


class Shown:
    """An answer that shows itself: as text, table, page, or plain values."""

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
        """A table: one row per class of ranks, plan, layout, scenario or change."""
        frame: pandas.DataFrame = _view().to_frame(self)
        return frame

    def save_report(self, path: str | Path) -> Path:
        """Write the page that `--report` writes, and return *path*."""
        written: Path = _view().save_report(self, Path(path))
        return written


def _view() -> Any:
    from perfmodel.reports import showing

    return showing
