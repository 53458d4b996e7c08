"""Fields: the types of values in a workload file, read strictly.

A whole number is a whole number: `true`, `"8"` and `8.0` are refused, because
each of them is a slip somewhere else in the file.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError
from perfmodel.base.units import parse_duration_ns, parse_size


def _read_size(value: Any) -> Any:
    try:
        return parse_size(value)
    except InputError as fault:
        raise ValueError(str(fault)) from None


def _read_duration(value: Any) -> Any:
    try:
        return parse_duration_ns(value)
    except InputError as fault:
        raise ValueError(str(fault)) from None


def _read_dtype(value: Any) -> Any:
    if isinstance(value, DType):
        return value
    try:
        return parse_dtype(value) if isinstance(value, str) else value
    except InputError as fault:
        raise ValueError(str(fault)) from None


# Bounds are far above what anybody trains; beyond them products of sizes overflow, or a graph of
# so many layers is built for hours.
Count = Annotated[int, Field(strict=True, ge=1, le=2**31)]
Width = Annotated[int, Field(strict=True, ge=1, le=2**24)]
Degree = Annotated[int, Field(strict=True, ge=1, le=2**16)]
LayerCount = Annotated[int, Field(strict=True, ge=1, le=1_024)]
NaturalNumber = Annotated[int, Field(strict=True, ge=0, le=2**16)]
Switch = Annotated[bool, Field(strict=True)]
Words = Annotated[str, Field(strict=True, min_length=1)]
Number = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(_read_size), Field(ge=0, le=2**60)]
Duration = Annotated[float, BeforeValidator(_read_duration), Field(ge=0, le=1e13)]
NumberFormat = Annotated[DType, BeforeValidator(_read_dtype)]


class Section(BaseModel):
    """A mapping in a workload file: unknown keys are refused and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class InputSection(Section):
    """How batches get to the GPU.

    *prefetch* copies the next batch while this one is worked on. *load_time*
    is what the loader needs for a batch, with room for two finished batches;
    without it batches are ready when asked for.
    """

    prefetch: Switch = True
    load_time: Duration | None = None


class CommonSpec(Section):
    """What every workload states; those of the catalog describe themselves and name a source."""

    name: Words
    description: Words = "not described"
    source: Words = "not stated"
    stack: Words = "pytorch_fused"
    batch: Count
    input: InputSection = InputSection()
    sync_each_iteration: Switch = False
