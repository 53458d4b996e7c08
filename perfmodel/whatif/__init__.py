"""What-if: small graph transformations that compose, each with its assumptions."""

from perfmodel.whatif.parsing import TRANSFORMATIONS, parse_sweep, parse_transformation
from perfmodel.whatif.transformation import Transformation, apply_all

__all__ = [
    "TRANSFORMATIONS",
    "Transformation",
    "apply_all",
    "parse_sweep",
    "parse_transformation",
]
