"""Formats: machines in the files of other programs, read into machine files."""

from topologies.formats.reading import ForeignMachine, read_foreign

__all__ = ["ForeignMachine", "read_foreign"]
