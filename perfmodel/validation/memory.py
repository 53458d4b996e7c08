"""Validation of memory kernels against a measured table."""

from __future__ import annotations

from pathlib import Path

from perfmodel.costs.memory import MemoryModel
from perfmodel.costs.tables.memory_table import load_memory_table
from perfmodel.validation.kernels import validate_kernels
from perfmodel.validation.scoreboard import Scoreboard


def validate_memory(path: Path) -> Scoreboard:
    """Compare the table at *path* with predictions from the shipped calibration."""
    return validate_kernels("memory", load_memory_table(path), MemoryModel())
