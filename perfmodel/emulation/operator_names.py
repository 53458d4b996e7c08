"""Operator names: the names of torch's operators in cost models and stacks.

The name of a kernel decides how well it uses memory. Operators that are not listed keep their own
name, which the cost model prices with its plain curve and tags as assumed. Host times of a stack
are by the operator that the script calls (`linear`), not by the kernels inside it (`addmm`): it
is recognised by its most characteristic kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfmodel.base.documents import load_yaml
from perfmodel.emulation.rank_record import SPARSE

_NAMES = load_yaml(Path(__file__).with_suffix(".yaml"))


def _by_operator(section: str) -> dict[str, str]:
    """The names in *section* of the file, each by the operators listed below it."""
    return {operator: name for name, listed in _NAMES[section].items() for operator in listed}


KERNEL_NAMES = _by_operator("kernels")
"""Operator, without namespace, overload and the underscore of in-place variants -> kernel."""
GATHERING = frozenset(_NAMES["gathering"])
"""Operators that read as much of their source as they write."""
SCATTERING = frozenset(_NAMES["scattering"])
"""Operators that touch only as much of their target as they write."""
SOFTMAXES = frozenset(_NAMES["softmaxes"])
GEMMS = frozenset(_NAMES["gemms"])
_BY_KERNEL, _PLAIN = _by_operator("by_kernel"), _by_operator("plain")


def base_name(operator: str) -> str:
    """`aten._foreach_add_.Scalar` is `add`."""
    parts = operator.split(".")
    name = parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[0]
    name = name.removeprefix("_foreach_")
    # Names that end in an underscore of their own are listed with it.
    return name if name in KERNEL_NAMES or name in SCATTERING else name.removesuffix("_")


def kernel_name(name: str) -> str:
    """The kernel of a base name; the name itself where none is known."""
    if name.startswith(SPARSE):
        return "gather"
    return KERNEL_NAMES.get(name, name)


def aten_name(operator: str) -> str:
    """`aten.add_.Tensor` is `add_`; names without a namespace stay."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def host_operator(names: Sequence[str]) -> str:
    """The operator that launches kernels, or makes views, called *names*."""
    for name in names:
        if name in _BY_KERNEL:
            return _BY_KERNEL[name]
    first = names[0]
    return _PLAIN.get(first, first)
