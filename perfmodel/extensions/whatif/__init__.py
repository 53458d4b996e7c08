"""What-if: small graph transformations that compose, each with its assumptions."""

from perfmodel.extensions.whatif.parsing import parse_sweep, parse_transformation
from perfmodel.extensions.whatif.recipes import load_recipes
from perfmodel.extensions.whatif.transformation import Transformation, apply_all

__all__ = [
    "Transformation",
    "apply_all",
    "load_recipes",
    "parse_sweep",
    "parse_transformation",
]
