"""Optimizers: what each keeps per parameter and launches in a step, as `optimizers.yaml` says.

That file is the only place that names one; `none` leaves the step out of an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from perfmodel.base.errors import InputError
from perfmodel.base.fields import NaturalNumber, OneOf, Switch
from perfmodel.base.forms import Form, load_document

NO_OPTIMIZER = "none"


@dataclass(frozen=True, slots=True)
class Optimizer(Form):
    """State of a parameter and operators of a step; the file explains the fields."""

    states: NaturalNumber
    step: tuple[tuple[str, NaturalNumber, NaturalNumber], ...]
    fused: tuple[tuple[str, str, NaturalNumber, NaturalNumber], ...] = ()
    is_local: Switch = True
    is_orthogonal: Switch = False
    ends: str = ""


@cache
def load_optimizers() -> dict[str, Optimizer]:
    """Every optimizer, by name."""
    file = Path(__file__).with_name("optimizers.yaml")
    return load_document(file, InputError).read(dict[str, Optimizer])


OptimizerName = Annotated[str, OneOf(lambda: (*load_optimizers(), NO_OPTIMIZER))]
