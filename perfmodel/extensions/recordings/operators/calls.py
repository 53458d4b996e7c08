"""Calls: an operator of torch with its tensors, and the names in `operators.yaml`.

Calls come from a recording, which often knows no outputs, or from an emulated script, which knows
all tensors and the names of their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.documents import load_yaml
from perfmodel.base.dtypes import DType

SPARSE = "sparse_"
"""How names of emulated operators on sparse tensors begin."""


class CallSource(Enum):
    """Where a call is from; the value is its column in the table."""

    RECORDED = "recorded"
    EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a call: shape, number format and bytes; *name* is that of its argument."""

    shape: tuple[int, ...]
    dtype: DType
    size_bytes: int
    is_on_host: bool = False
    name: str = ""
    is_written: bool = False

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator and its arguments: the tensors of each, and other values.

    *values* are by place in a recording, by name in an emulated script. *results* are the output
    tensors, None if unknown. The last five are known of emulated calls only: whether GEMMs of fp32
    run in TF32, what was observed (which rows a lookup reads how often; the query-key pairs and
    kernel of attention), whether images are converted to the layout of tensor cores, whether a
    product loads elements one at a time, and whether one thread sums up each gradient of a weight.
    """

    name: str
    arguments: tuple[tuple[Tensor, ...], ...]
    values: Mapping[int | str, Any] = field(default_factory=dict)
    results: tuple[Tensor, ...] | None = None
    source: CallSource = CallSource.RECORDED
    allows_tf32: bool = False
    observed: Mapping[str, Any] | None = None
    converts_layout: bool = False
    loads_singly: bool = False
    sums_singly: bool = False

    @property
    def word(self) -> str:
        """The name without its namespace."""
        return self.name.rsplit("::", 1)[-1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All input tensors."""
        return tuple(tensor for argument in self.arguments for tensor in argument)

    def operands(self, *places: int) -> tuple[Tensor, ...]:
        """The one tensor in each argument of *places*; none at all if one of them has not one."""
        found = [argument for place in places for argument in self.arguments[place : place + 1]]
        is_whole = len(found) == len(places) and all(len(argument) == 1 for argument in found)
        return tuple(argument[0] for argument in found) if is_whole else ()


def gemm_dtype(call: OperatorCall, tensor: Tensor) -> DType:
    """The number format in which *tensor* is multiplied."""
    is_single = tensor.dtype is DType.FP32
    return DType.TF32 if is_single and call.allows_tf32 else tensor.dtype


@cache
def operator_table() -> dict[str, Any]:
    """The file `operators.yaml`, read once."""
    return load_yaml(Path(__file__).with_name("operators.yaml"))


@cache
def listed(section: str) -> dict[str, str]:
    """What *section* of the table says about the names that it lists."""
    return {name: key for key, names in operator_table()[section].items() for name in names}


@cache
def names_in(section: str, column: str = "") -> frozenset[str]:
    """The names in *section* of the table, or in one *column* of it."""
    names = operator_table()[section]
    return frozenset(names[column] if column else names)


def dtype_of(word: str) -> DType | None:
    """The number format that C++ or torch calls *word*; None if it is not a tensor's."""
    known = listed("dtypes").get(word)
    return None if known is None else DType(known)


def launches_nothing(word: str) -> bool:
    """Whether the operator *word* only makes a view, allocates or asks."""
    return word in names_in("no_kernel")


def aten_name(operator: str) -> str:
    """`aten.add_.Tensor` is `add_`; names without a namespace stay."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def host_operator(names: Sequence[str]) -> str:
    """The operator of a script that launches kernels, or makes views, called *names*.

    Host times of a stack are by the operator that the script calls (`linear`), not by the kernels
    inside it (`addmm`): it is recognised by its most characteristic kernel.
    """
    by_kernel = listed("by_kernel")
    first = next((by_kernel[name] for name in names if name in by_kernel), None)
    return first or listed("plain").get(names[0], names[0])


def emulated_call(words: Mapping[str, Any]) -> OperatorCall:
    """The call that a virtual device described in *words*."""
    written = words.get("written", ())
    inputs = _tensors(words.get("inputs", ()), written)
    return OperatorCall(
        name=_base_name(words["operator"]),
        arguments=tuple((tensor,) for tensor in inputs),
        values=words.get("arguments", {}),
        results=_tensors(words.get("outputs", ())),
        source=CallSource.EMULATED,
        allows_tf32=bool(words.get("allows_tf32")),
        observed=words.get("observed"),
        converts_layout=bool(words.get("converts_layout")),
        loads_singly=bool(words.get("loads_singly")),
        sums_singly=bool(words.get("sums_singly")),
    )


def _tensors(rows: Iterable[Sequence[Any]], written: Sequence[str] = ()) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(tuple(shape), DType(dtype), size_bytes, name=name, is_written=name in written)
        for name, shape, dtype, size_bytes in rows
    )


def _base_name(operator: str) -> str:
    """`aten._foreach_add_.Scalar` is `add`."""
    is_known = operator.startswith(("aten.", "perfmodel."))
    name = aten_name(operator) if is_known else operator.split(".")[0]
    name = name.removeprefix("_foreach_")
    # Names that end in an underscore of their own are listed with it.
    is_whole = name in listed("kernels") or name in names_in("scattering")
    return name if is_whole else name.removesuffix("_")
