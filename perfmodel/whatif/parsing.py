"""Parsing: transformations as typed text, `scale:match=gemm,factor=0.5`.

A value without a key, `machine:dgx_h100`, belongs to the first parameter. A parameter has the name
of its field without the unit: the field `to_ns` is typed `to=20.5ms`, and `size_bytes` is typed
`size=25MB`.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, ScenarioError
from perfmodel.base.fields import Bandwidth, Duration, NumberFormat, Parsed, ReadAs, Size
from perfmodel.base.forms import Document, key_of
from perfmodel.base.options import EXAMPLES, expand_values
from perfmodel.base.units import format_duration, format_size
from perfmodel.whatif.activations import EncodeActivations, Offload, Recompute
from perfmodel.whatif.buckets import ChangeBuckets
from perfmodel.whatif.durations import (
    HostOverhead,
    MixedPrecision,
    ReplaceDType,
    Scale,
    ScaleBatch,
    SetDuration,
)
from perfmodel.whatif.editing import (
    DeleteLayers,
    Insert,
    Move,
    Remove,
    RemoveStalls,
    WithoutRecompute,
)
from perfmodel.whatif.fusion import Fuse, JoinOptimizer, RestructureBatchNorm
from perfmodel.whatif.gradients import DataParallel, HookCollectives
from perfmodel.whatif.hosts import CudaGraphs, PrefetchData, RemoveStraggler, SetGap
from perfmodel.whatif.ordering import Overlap, Prioritise, Serialise
from perfmodel.whatif.scaling_out import ChangeMachine, ChangeRanks
from perfmodel.whatif.selection import Numbers, Pattern
from perfmodel.whatif.traffic import ByLevels, Compress, Quantise, SparsifyGradients
from perfmodel.whatif.transformation import Transformation

TRANSFORMATIONS: dict[str, type[Any]] = {
    "scale": Scale,
    "set": SetDuration,
    "insert": Insert,
    "remove": Remove,
    "move": Move,
    "delete_layers": DeleteLayers,
    "fuse": Fuse,
    "optimizer": JoinOptimizer,
    "dtype": ReplaceDType,
    "amp": MixedPrecision,
    "batch_norm": RestructureBatchNorm,
    "batch": ScaleBatch,
    "recompute": Recompute,
    "no_recompute": WithoutRecompute,
    "offload": Offload,
    "gist": EncodeActivations,
    "host_overhead": HostOverhead,
    "cuda_graphs": CudaGraphs,
    "gap": SetGap,
    "no_stalls": RemoveStalls,
    "no_straggler": RemoveStraggler,
    "prefetch": PrefetchData,
    "bucket": ChangeBuckets,
    "overlap": Overlap,
    "serialise": Serialise,
    "hooks": HookCollectives,
    "priority": Prioritise,
    "compress": Compress,
    "quantise": Quantise,
    "dgc": SparsifyGradients,
    "blueconnect": ByLevels,
    "data_parallel": DataParallel,
    "machine": ChangeMachine,
    "ranks": ChangeRanks,
}
"""Every transformation by its name."""


_MOST_NUMBERS = 10**6


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a transformation: its key in the text, and its field."""

    key: str
    field: str
    type: type[Any]
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def words(self) -> str:
        """The parameter as text, with its default."""
        return f"{self.key}={'...' if self.is_required else self._default_words}"

    @property
    def _default_words(self) -> str:
        if self.default is None or (self.field.endswith("_ns") and self.default < 0):
            return "(none)"
        if self.field.endswith("_ns"):
            return format_duration(self.default).replace(" ", "")
        if self.field.endswith("_bytes"):
            return format_size(self.default).replace(" ", "")
        return str(self.default.value if isinstance(self.default, Enum) else self.default)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The transformation for each of several values of one parameter, as typed in *text*."""

    text: str
    name: str
    key: str
    points: tuple[tuple[str, Transformation], ...]


def list_parameters(name: str) -> tuple[Parameter, ...]:
    """The parameters of the transformation *name*; required ones first."""
    kind = TRANSFORMATIONS[name]
    hints = get_type_hints(kind)
    parameters = [_parameter(field, hints[field.name]) for field in fields(kind)]
    return tuple(sorted(parameters, key=lambda parameter: not parameter.is_required))


def parse_transformation(text: str, *, topology: str | None = None) -> Transformation:
    """The transformation that *text* describes.

    *topology* is the machine for those that take one and do not name it.
    """
    return _build(text, *_split(text), topology)


def parse_sweep(text: str, *, topology: str | None = None) -> Sweep:
    """The transformations that *text* describes, with one parameter as `a,b,c` or `a:b:x2`."""
    name, given = _split(_joined(text))
    expanded = {key: expand_values(value.replace(_COMMA, ",")) for key, value in given.items()}
    several = {key: values for key, values in expanded.items() if len(values) > 1}
    if len(several) != 1:
        raise ScenarioError(
            f"sweep {text!r}: must have exactly one parameter with several values, has "
            f"{len(several)}. {EXAMPLES}"
        )
    [(key, values)] = several.items()
    points = tuple((value, _build(text, name, given | {key: value}, topology)) for value in values)
    return Sweep(text, name, key, points)


_COMMA = ";"
"""Replaces a comma inside the values of a sweep, where commas also separate parameters."""


def _joined(text: str) -> str:
    """*text* with a piece that names no parameter joined to the previous value."""
    first, *others = text.split(",")
    return first + "".join(f",{piece}" if "=" in piece else _COMMA + piece for piece in others)


def _split(text: str) -> tuple[str, dict[str, str]]:
    name, _, rest = text.partition(":")
    name = name.strip()
    if name not in TRANSFORMATIONS:
        near = difflib.get_close_matches(name, TRANSFORMATIONS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"what-if {name!r}: must be one of {', '.join(TRANSFORMATIONS)}.{hint}")
    given: dict[str, str] = {}
    keys = [parameter.key for parameter in list_parameters(name)]
    for piece in filter(None, rest.split(",")):
        key, sign, value = piece.partition("=")
        if keys and not sign and not given and key.strip() not in keys:
            key, sign, value = keys[0], "=", piece
        if not sign or not key.strip() or not value.strip() or key.strip() in given:
            raise ScenarioError(
                f"what-if {text!r}: parameters must be key=value, each once, separated by "
                f"commas; got {piece!r}. {_usage(name)}"
            )
        given[key.strip()] = value.strip()
    return name, given


def _build(text: str, name: str, given: dict[str, str], topology: str | None) -> Transformation:
    parameters = list_parameters(name)
    machine = "was" if name == "machine" else "topology"
    if topology is not None and machine in [one.key for one in parameters]:
        given = {machine: topology, **given}
    document = Document(f"what-if {text!r}", given, ScenarioError, advice=_usage(name))
    stated = document.read(_form(name))
    values = {
        one.field: getattr(stated, one.key)
        for one in parameters
        if one.key in stated.model_fields_set
    }
    try:
        built: Transformation = TRANSFORMATIONS[name](**values)
    except ScenarioError as fault:
        raise ScenarioError(f"what-if {text!r}: {fault}") from None
    return built


@cache
def _form(name: str) -> type[BaseModel]:
    """What the transformation *name* takes, by key."""
    keys: dict[str, Any] = {
        one.key: (_type_of(one), ... if one.is_required else None) for one in list_parameters(name)
    }
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model(name, __config__=config, **keys)


def _type_of(parameter: Parameter) -> Any:
    for unit, kind in _UNITS.items():
        if parameter.field.endswith(unit):
            return kind
    return _TYPES.get(parameter.type, parameter.type)


def _usage(name: str) -> str:
    words = ", ".join(parameter.words for parameter in list_parameters(name))
    return f"{name} takes {words or 'no parameters'}."


def _parameter(field: Field[Any], hint: Any) -> Parameter:
    kind = hint
    if get_origin(hint) in (Union, UnionType):
        [kind] = [one for one in get_args(hint) if one is not type(None)]
    return Parameter(key_of(field.name), field.name, kind, field.default)


def _parse_float(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"must be a number, got {value!r}")
    return number


def _parse_int(value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise InputError(f"must be a whole number of zero or more, got {value!r}")
    return int(value)


def _parse_numbers(value: str) -> Numbers:
    numbers: list[int] = []
    for piece in value.split("+"):
        first, _, last = piece.partition("-")
        bounds = _parse_int(first), _parse_int(last or first)
        if not 0 <= bounds[1] - bounds[0] <= _MOST_NUMBERS:
            raise InputError(f"must be like 2 or 0-3 or 0+5, got {value!r}")
        numbers += range(bounds[0], bounds[1] + 1)
    return Numbers(tuple(sorted(set(numbers))))


_UNITS = {
    "_ns": Annotated[int, ReadAs(Duration, round)],
    "_bytes_per_s": Bandwidth,
    "_bytes": Size,
}
"""Types of quantities, by the unit that ends the name of a field."""
_TYPES = {
    float: Annotated[float, Parsed(_parse_float, "0.5")],
    int: Annotated[int, Parsed(_parse_int, "8")],
    Pattern: Annotated[Pattern, Parsed(Pattern, "gemm*")],
    Numbers: Annotated[Numbers, Parsed(_parse_numbers, "0-3")],
    DType: NumberFormat,
}
