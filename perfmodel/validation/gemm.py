"""Validation of gemm kernels against a measured table."""

from __future__ import annotations

from pathlib import Path

from perfmodel.costs.gemm import GemmModel
from perfmodel.costs.tables.gemm_table import load_gemm_table
from perfmodel.validation.kernels import validate_kernels
from perfmodel.validation.scoreboard import Scoreboard


def validate_gemm(path: Path) -> Scoreboard:
    """Compare the table at *path* with predictions from the shipped calibration."""
    return validate_kernels("gemm", load_gemm_table(path), GemmModel())
