"""Schedules: the orders in which pipeline stages can take micro-batches, as `schedules.yaml` says.

That file and the order itself, `workloads/transformer/schedules.py`, are all that name one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

from perfmodel.base.errors import InputError
from perfmodel.base.fields import Line, OneOf, Switch
from perfmodel.base.forms import Form, load_document

DEFAULT_SCHEDULE = "1f1b"
"""What a pipeline runs unless it is stated; the only one that needs no name in an answer."""


@dataclass(frozen=True, slots=True)
class Schedule(Form):
    """What an order of micro-batches allows; the file explains the fields."""

    sentence: Line
    splits_backward: Switch = False
    is_folded: Switch = False
    interleaves: Switch = False
    pairs_turns: Switch = False
    trainers: Mapping[str, Line] = field(default_factory=dict)


@cache
def load_schedules() -> dict[str, Schedule]:
    """Every schedule, by name."""
    file = Path(__file__).with_name("schedules.yaml")
    return load_document(file, InputError).read(dict[str, Schedule])


ScheduleName = Annotated[str, OneOf(lambda: (*load_schedules(),))]
