"""Primitives: the steps that recipes are made of.

A primitive changes the op of every selected task, the tasks of a program, or a whole job. Its
keyword parameters are its arguments in a recipe, without their units: `to_ns` is written `to`.
One that prices work takes the machine of the recipe, which is never an argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from perfmodel.base.forms import key_of
from perfmodel.extensions.whatif.buckets import resize
from perfmodel.extensions.whatif.compiling import compile_kernels
from perfmodel.extensions.whatif.durations import (
    count_repriced,
    enlarge,
    refuse_narrow,
    reprice,
    scale,
    set_duration,
)
from perfmodel.extensions.whatif.editing import insert, remove
from perfmodel.extensions.whatif.fusion import merge
from perfmodel.extensions.whatif.gradients import hook, reduce_gradients
from perfmodel.extensions.whatif.hosts import equalise, pause, run_ahead
from perfmodel.extensions.whatif.ordering import prioritise
from perfmodel.extensions.whatif.recosting import Recosted
from perfmodel.extensions.whatif.repeating import accumulate, replicate
from perfmodel.extensions.whatif.scaling_out import clone, count_grown, count_rehosted, rehost
from perfmodel.extensions.whatif.selection import Selection
from perfmodel.extensions.whatif.sharding import shard_update, split
from perfmodel.graph.job import JobGraph

Count = Callable[[JobGraph, Selection, str, Sequence[dict[str, Any]]], Recosted]
"""How much of some time is priced again by steps with these arguments."""


class Level(Enum):
    """What a primitive is given: nothing, an op with its ranks, a program, or a job."""

    SELECTION = "selection"
    OP = "op"
    PROGRAM = "program"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a primitive: its *key* in recipes and its *name* in Python."""

    key: str
    name: str
    hint: Any
    is_required: bool

    @property
    def is_machine(self) -> bool:
        """Whether it is the machine of the recipe, which no step states."""
        return self.key == "machine"


@dataclass(frozen=True, slots=True)
class Primitive:
    """A *function* on one level.

    Tasks that it is given count as touched where it *keeps_tasks*, even if they stay as they are.
    *count* says how much of their time it can price.
    """

    level: Level
    function: Callable[..., Any]
    keeps_tasks: bool = False
    count: Count | None = None


PRIMITIVES = {
    "select": Primitive(Level.SELECTION, Selection, keeps_tasks=True),
    "scale": Primitive(Level.OP, scale, keeps_tasks=True),
    "enlarge": Primitive(Level.OP, enlarge, keeps_tasks=True),
    "set": Primitive(Level.OP, set_duration, keeps_tasks=True),
    "reprice": Primitive(Level.OP, reprice, keeps_tasks=True, count=count_repriced),
    "insert": Primitive(Level.PROGRAM, insert),
    "remove": Primitive(Level.PROGRAM, remove),
    "merge": Primitive(Level.PROGRAM, merge),
    "replicate": Primitive(Level.PROGRAM, replicate),
    "accumulate": Primitive(Level.PROGRAM, accumulate),
    "compile": Primitive(Level.PROGRAM, compile_kernels),
    "split": Primitive(Level.JOB, split),
    "resize": Primitive(Level.PROGRAM, resize),
    "pause": Primitive(Level.PROGRAM, pause, keeps_tasks=True),
    "run_ahead": Primitive(Level.PROGRAM, run_ahead),
    "equalise": Primitive(Level.JOB, equalise, keeps_tasks=True),
    "refuse_narrow": Primitive(Level.JOB, refuse_narrow, keeps_tasks=True),
    "prioritise": Primitive(Level.JOB, prioritise),
    "hook": Primitive(Level.PROGRAM, hook),
    "reduce_gradients": Primitive(Level.JOB, reduce_gradients),
    "shard_update": Primitive(Level.PROGRAM, shard_update),
    "rehost": Primitive(Level.JOB, rehost, keeps_tasks=True, count=count_rehosted),
    "clone": Primitive(Level.JOB, clone, count=count_grown),
}
"""Every primitive by its name: first the general ones, then those that know one optimisation."""


@cache
def arguments_of(name: str) -> tuple[Argument, ...]:
    """The arguments of the primitive *name*."""
    function = PRIMITIVES[name].function
    hints = get_type_hints(function)
    found = []
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY or function is Selection:
            hint = hints[one.name]
            if get_origin(hint) in (Union, UnionType):
                [hint] = [part for part in get_args(hint) if part is not type(None)]
            found.append(Argument(key_of(one.name), one.name, hint, one.default is one.empty))
    return tuple(found)
