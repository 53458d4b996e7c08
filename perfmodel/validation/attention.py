"""Validation of attention kernels against a measured table."""

from __future__ import annotations

from pathlib import Path

from perfmodel.costs.attention import AttentionModel
from perfmodel.costs.tables.attention_table import load_attention_table
from perfmodel.validation.kernels import validate_kernels
from perfmodel.validation.scoreboard import Scoreboard


def validate_attention(path: Path) -> Scoreboard:
    """Compare the table at *path* with predictions from the shipped calibration."""
    return validate_kernels("attention", load_attention_table(path), AttentionModel())
