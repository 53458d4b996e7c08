"""Formats: workloads and layouts in the files of other programs, read by tables of their fields."""

from perfmodel.extensions.formats.models.fields import FieldUse, Use
from perfmodel.extensions.formats.models.foreign import ForeignFile, read_foreign, read_layout

__all__ = ["FieldUse", "ForeignFile", "Use", "read_foreign", "read_layout"]
